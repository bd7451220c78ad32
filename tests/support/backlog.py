"""Filling a transport with jobs in every state, without an app and without a worker."""

from __future__ import annotations

from taskmq.ids import new_id
from taskmq.protocol.codec import CodecSet
from taskmq.protocol.envelope import VERSION, Envelope, encode_envelope
from taskmq.transport import Transport, completion_token
from taskmq.transport.types import (
    Ack,
    Bury,
    Delivery,
    ErrorInfo,
    Message,
    Park,
    QueueShare,
    ReserveRequest,
    Settlement,
    WorkerInfo,
)

ERROR = ErrorInfo(
    type="ValueError", message="no such user", traceback="Traceback …\nValueError: no"
)


class Backlog:
    """Puts jobs on a transport and moves them on as a worker would."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def queued(self, count: int = 1, queue: str = "email", **fields: object) -> list[str]:
        """Enqueue jobs; their ids."""
        messages = [self._message(number, queue, fields) for number in range(count)]
        self.transport.enqueue(messages)
        return [each.id for each in messages]

    def held(self, count: int = 1, queue: str = "email", worker: str = "w1") -> list[Delivery]:
        """Enqueue and reserve jobs; their deliveries."""
        self.queued(count, queue)
        request = ReserveRequest(worker=worker, queues=(QueueShare(queue),), limit=count)
        deliveries = self.transport.reserve(request).deliveries
        assert len(deliveries) == count
        return deliveries

    def dead(self, count: int = 1, queue: str = "email", error: ErrorInfo = ERROR) -> list[str]:
        """Dead letters; their ids."""
        held = self.held(count, queue)
        self._settle([Bury(receipt=each.receipt, error=error) for each in held])
        return [each.id for each in held]

    def succeeded(self, result: object, queue: str = "email") -> str:
        """A job that ended with this result; its id."""
        (delivery,) = self.held(1, queue)
        payload = CodecSet().encode_value(result)
        self._settle([Ack(receipt=delivery.receipt, result=payload, started_ago=0.1)])
        return delivery.id

    def parked(self, queue: str = "email") -> tuple[str, str]:
        """A job that waits for the outside; its id and completion token."""
        (delivery,) = self.held(1, queue)
        self._settle([Park(receipt=delivery.receipt)])
        return delivery.id, completion_token(delivery.id, delivery.receipt)

    def worker(self, name: str, **fields: object) -> None:
        """A worker in the registry."""
        info: dict[str, object] = {"pool": "threads", "concurrency": 8, "queues": ("email",)}
        self.transport.heartbeat(WorkerInfo(id=name, **{**info, **fields}))  # type: ignore[arg-type]

    def _settle(self, settlements: list[Settlement]) -> None:
        reply = self.transport.settle("w1", settlements)
        assert {each.status for each in reply.results} <= {"ok"}, reply

    def _message(self, number: int, queue: str, fields: dict[str, object]) -> Message:
        job, task = new_id(), "shop.send"
        body = CodecSet().encode_call([f"user{number}@b.com"], {"subject": "hi"})
        envelope = Envelope(v=VERSION, id=job, task=task, queue=queue, body=body)
        given: dict[str, object] = {"envelope": encode_envelope(envelope), **fields}
        return Message(id=job, queue=queue, **{"task": task, **given})  # type: ignore[arg-type]
