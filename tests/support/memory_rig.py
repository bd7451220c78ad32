"""Short words for tests of the memory transport's inside."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from taskmq.transport.types import Ack, Delivery, Message, QueueShare, ReserveRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from taskmq.transport.memory import MemoryTransport

Q = (QueueShare("q"),)


def message(id: str, **fields: Any) -> Message:
    fields.setdefault("task", "t")
    fields.setdefault("queue", "q")
    fields.setdefault("envelope", b"x")
    return Message(id=id, **fields)


def put(transport: MemoryTransport, count: int, prefix: str = "j", **fields: Any) -> list[str]:
    ids = [f"{prefix}{index:06d}" for index in range(count)]
    transport.enqueue([message(id, **fields) for id in ids])
    return ids


def take(
    transport: MemoryTransport,
    limit: int = 1,
    worker: str = "w",
    queues: tuple[QueueShare, ...] = Q,
    lease: float = 60.0,
) -> list[Delivery]:
    request = ReserveRequest(worker=worker, queues=queues, limit=limit, lease=lease)
    return transport.reserve(request).deliveries


def take_all(transport: MemoryTransport, queues: tuple[QueueShare, ...] = Q) -> list[Delivery]:
    """Reserve until there is nothing left."""
    found: list[Delivery] = []
    while True:
        reply = transport.reserve(ReserveRequest(worker="w", queues=queues, limit=100))
        found += reply.deliveries
        if not reply.deliveries and not reply.more:
            return found


def ack(transport: MemoryTransport, deliveries: Sequence[Delivery], worker: str = "w") -> None:
    reply = transport.settle(worker, [Ack(receipt=each.receipt) for each in deliveries])
    assert all(result.status == "ok" for result in reply.results)


def work_of(call: Callable[[], object]) -> int:
    """How much Python a call runs: its lines and loop steps, the same on every machine."""
    steps = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal steps
        steps += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps
