"""What a child does about signals, forks and the death of its parent, before it imports the app."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_LED_BY_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_stop_signals() -> None:
    """Leave Ctrl-C and a manager's SIGTERM to the parent, which stops the child when it is done.

    By handlers that do nothing and not by SIG_IGN: programs that a task starts must not inherit that.
    """
    for number in _LED_BY_PARENT:
        signal.signal(number, _nothing)


def end_with_parent(life: int) -> None:
    """Have the kernel kill this process group once the parent has gone, whoever holds the GIL then."""
    if sys.platform != "linux":
        return
    import fcntl

    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    end_if_orphaned(life)


def end_if_orphaned(life: int) -> None:
    """Kill this process group when the parent has gone; a second look where the kernel does not."""
    if _at_its_end(life):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def free_forks(descriptors: Sequence[int]) -> None:
    """Give processes forked by a task usual signals and none of the channels."""

    def freed() -> None:
        # Their numbers stay taken: objects that own them may close them later.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        for number in _LED_BY_PARENT:
            if signal.getsignal(number) is _nothing:
                usual = signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
                signal.signal(number, usual)

    os.register_at_fork(after_in_child=freed)


_F_SETSIG = 10


def _at_its_end(life: int) -> bool:
    import select

    return bool(select.select([life], [], [], 0)[0])


def _nothing(_number: int, _frame: FrameType | None) -> None:
    return None
