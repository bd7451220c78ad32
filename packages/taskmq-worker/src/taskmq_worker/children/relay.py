"""A transport that lives in the parent, as its children use it: calls over the control channel."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import msgspec

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TransportError
from taskmq.transport import contract, types
from taskmq.transport.contract import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.transport.types import JobRecord
    from taskmq_worker.children.control import Control

RELAYED = frozenset(
    {
        *("enqueue", "update_meta", "get_jobs", "get_results", "revoke", "complete", "reopen"),
        "list_jobs",
        *("stats", "purge", "list_dead", "get_dead", "replay_dead", "purge_dead"),
        *("acquire", "renew", "release", "list_workers", "now", "ping", "wait_jobs"),
    }
)
"""What a task may ask of a transport; reserving and settling are the worker's."""

_monotonic = SYSTEM_CLOCK.monotonic

_SLICE = 0.2


class Call(msgspec.Struct, frozen=True):
    """How the arguments and the answer of one method travel."""

    signature: inspect.Signature
    arguments: msgspec.msgpack.Decoder[Any]
    result: msgspec.msgpack.Decoder[Any]


@cache
def call_of(method: str) -> Call:
    """The types of a relayed method, read from the contract."""
    from taskmq.states import JobState

    function = getattr(Transport, method)
    names = {**vars(types), **vars(contract), "JobState": JobState, "Sequence": Sequence}
    hints = get_type_hints(function, names)
    signature = inspect.signature(function)
    given = [name for name in signature.parameters if name != "self"]
    fields: Any = [(name, hints[name], msgspec.field(default=None)) for name in given]
    arguments = msgspec.defstruct(f"{method}_arguments", fields, kw_only=True)
    return Call(
        signature,
        msgspec.msgpack.Decoder(arguments),
        msgspec.msgpack.Decoder(hints["return"]),
    )


def perform(transport: Transport, method: str, body: bytes) -> bytes:
    """In the parent: make a call on behalf of a child.

    Raises:
        TransportError: The method is none that children may call; or what the call raises.
    """
    if method not in RELAYED:
        raise TransportError(f"a task can't call {method}() of the worker's transport")
    given = msgspec.structs.asdict(call_of(method).arguments.decode(body))
    parameters = call_of(method).signature.parameters
    positional = [
        value
        for name, value in given.items()
        if parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    named = {
        name: value
        for name, value in given.items()
        if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
    }
    return msgspec.msgpack.encode(getattr(transport, method)(*positional, **named))


def relay(control: Control) -> Transport:
    """The transport of the parent, for a child."""
    made: Transport = _Relay(control)
    return made


class _Calls(Transport):
    """All methods of the contract as calls; made concrete below."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._woken: set[str] = set()

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """One call over the channel."""
        call = call_of(method)
        bound = call.signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name != "self"}
        body = self._control.ask(f"transport.{method}", "", msgspec.msgpack.encode(given))
        return call.result.decode(body)

    def wait_jobs(
        self,
        ids: Sequence[str],
        timeout: float,
        *,
        mode: Literal["any", "all"] = "all",
        waiter: str | None = None,
    ) -> list[JobRecord | None]:
        """Wait in short calls: the channel is shared by all threads of the child."""
        until = _monotonic() + timeout
        while True:
            left = until - _monotonic()
            records: list[JobRecord | None] = self.ask(
                "wait_jobs", ids, max(0.0, min(left, _SLICE)), mode=mode
            )
            ended = [record is None or record.state.is_final for record in records]
            woken = waiter is not None and waiter in self._woken
            if woken or left <= _SLICE or (any(ended) if mode == "any" else all(ended)):
                if waiter is not None:
                    self._woken.discard(waiter)
                return records

    def wake(self, waiter: str) -> None:
        """Make a `wait_jobs` of this waiter return soon."""
        self._woken.add(waiter)

    def describe(self) -> dict[str, str]:
        """Where it is."""
        return {"url": "the worker's own transport"}

    def close(self) -> None:
        """Nothing to free: the channel is the child's."""


def _asking(method: str) -> Callable[..., Any]:
    def call(self: _Calls, *args: Any, **kwargs: Any) -> Any:
        return self.ask(method, *args, **kwargs)

    call.__name__ = method
    return call


def _refusing(method: str) -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise TransportError(f"a task can't call {method}() of the worker's transport")

    call.__name__ = method
    return call


_own = {"wait_jobs", "wake", "describe", "close"}
_Relay: Any = type(
    "_Relay",
    (_Calls,),
    {name: _asking(name) for name in RELAYED - _own}
    | {name: _refusing(name) for name in Transport.__abstractmethods__ - RELAYED - _own},
)
