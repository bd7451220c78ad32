"""A transport that can be away, or that loses replies: faults of the network without a network."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from taskmq import TransportUnavailable
from taskmq.transport import Transport

METHODS = (
    "enqueue reserve reclaim settle extend reap list_dead get_dead replay_dead purge_dead stats purge "
    "get_jobs get_results update_meta revoke complete reopen wait_jobs wait list_jobs acquire renew "
    "release heartbeat deregister list_workers ping"
).split()
MUTATING = (
    "enqueue reserve reclaim settle extend reap replay_dead purge_dead purge update_meta revoke complete "
    "reopen heartbeat"
).split()


class _Faults:
    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.away = threading.Event()
        self.calls: Counter[str] = Counter()
        self.lose_reply: Callable[[str, int], bool] = lambda name, count: False
        self.lost_replies: Counter[str] = Counter()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.away.is_set():
            raise TransportUnavailable("the test has cut the connection")
        self.calls[name] += 1
        count = self.calls[name]
        answer = getattr(self.inner, name)(*args, **kwargs)
        if self.away.is_set() or self.lose_reply(name, count):
            self.lost_replies[name] += 1
            raise TransportUnavailable(f"the test has lost the reply of {name}()")
        return answer


def _delegate(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.faults.call(name, *args, **kwargs)

    method.__name__ = name
    return method


def _init(self: Any, inner: Transport) -> None:
    self.faults = _Faults(inner)


CutOffTransport: Any = type(
    "CutOffTransport",
    (Transport,),
    {
        **{name: _delegate(name) for name in METHODS},
        "__init__": _init,
        "wake": lambda self, waiter: self.faults.inner.wake(waiter),
        "close": lambda self: self.faults.inner.close(),
        "now": lambda self: self.faults.inner.now(),
        "describe": lambda self: self.faults.inner.describe(),
    },
)
"""Delegates to `inner`. `faults.away` cuts it off; `faults.lose_reply(name, nth)` loses replies."""
