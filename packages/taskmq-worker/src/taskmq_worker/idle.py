"""Whether queues are idle: what is left in them that a worker would still run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.transport.types import ReserveRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.contract import Transport
    from taskmq.transport.types import QueueShare

_LOOK_AGAIN = 0.25


def left_over(
    transport: Transport, worker: str, queues: Sequence[QueueShare], within: float, *, delayed: bool
) -> tuple[list[str], float]:
    """Name what would still start within this time, and say when to look again.

    Args:
        transport: The transport to ask.
        worker: Who asks.
        queues: The queues that count.
        within: Seconds; what is due later does not count.
        delayed: Count what is due later, and what other workers hold; else only what is ready now.
    """
    names: list[str] = []
    later = 0
    for stats in transport.stats([share.name for share in queues]):
        parts = {"pending": stats.pending}
        if delayed:
            parts |= {"blocked": stats.blocked, "in flight": stats.in_flight}
            later += stats.delayed
        found = [f"{count} {what}" for what, count in parts.items() if count]
        if found:
            names.append(f"queue {stats.queue!r} has {', '.join(found)}")
    pause = _LOOK_AGAIN
    if later:
        look = transport.reserve(ReserveRequest(worker=worker, queues=tuple(queues), limit=0))
        due_in = look.next_due_in
        if look.head is not None:
            names.append("something is due now")
        elif due_in is not None and due_in <= within:
            names.append(f"{later} delayed, the first due in {due_in:.1f} s")
            pause = min(pause, max(0.01, due_in))
    return names, pause
