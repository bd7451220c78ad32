"""Transports that break one promise each: the conformance suite must find every one of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq.clock import FakeClock
from taskmq.errors import TransportError
from taskmq.states import JobState
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import (
    Ack,
    Arrival,
    Bury,
    CompleteResult,
    Completion,
    Delivery,
    Enqueued,
    ExtendReply,
    Extension,
    Fence,
    FollowUps,
    HeartbeatReply,
    JobPage,
    JobRecord,
    Message,
    ReapReport,
    ReapRequest,
    Release,
    ReopenResult,
    ReserveReply,
    ReserveRequest,
    Retention,
    Retry,
    Settlement,
    SettleReply,
    SettleResult,
    WorkerInfo,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Honest(MemoryTransport):
    """Tells the truth; the liars change one thing each."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        super().__init__(clock=clock or FakeClock())
        # Shared by all duplicates, which are shallow copies.
        self.notes: dict[str, Any] = {}


class _ChangesMessages(Honest):
    def change(self, message: Message) -> Message:
        raise NotImplementedError

    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        return super().enqueue([self.change(message) for message in messages], fence=fence)


class _ChangesSettlements(Honest):
    def change(self, settlement: Settlement) -> Settlement:
        raise NotImplementedError

    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        return super().settle(worker, [self.change(each) for each in settlements])


class _ChangesDeliveries(Honest):
    def change(self, deliveries: list[Delivery]) -> list[Delivery]:
        raise NotImplementedError

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        reply = super().reserve(request)
        return msgspec.structs.replace(reply, deliveries=self.change(reply.deliveries))


class DeliversTwice(Honest):
    def reserve(self, request: ReserveRequest) -> ReserveReply:
        reply = super().reserve(request)
        last = self.notes.get("last")
        if reply.deliveries:
            self.notes["last"] = reply.deliveries[-1]
            return reply
        if last is None or not request.limit:
            return reply
        del self.notes["last"]
        return msgspec.structs.replace(reply, deliveries=[last])


class IgnoresReceipts(_ChangesSettlements):
    """Whoever had the job once may settle it."""

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        reply = super().reserve(request)
        self.notes.update({delivery.receipt: delivery.id for delivery in reply.deliveries})
        return reply

    def change(self, settlement: Settlement) -> Settlement:
        record = self.get_jobs([self.notes.get(settlement.receipt, "")])[0]
        current = record.receipt if record else None
        return msgspec.structs.replace(settlement, receipt=current or settlement.receipt)


class PublishesWhenLost(Honest):
    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        reply = super().settle(worker, settlements)
        for settlement, result in zip(settlements, reply.results, strict=True):
            if result.status == "lost" and settlement.follow_ups:
                self.enqueue(settlement.follow_ups.enqueue)
        return reply


class HandsOutBackwards(_ChangesDeliveries):
    def change(self, deliveries: list[Delivery]) -> list[Delivery]:
        return deliveries[::-1]


class IgnoresPriority(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, priority=0)


class IgnoresWeights(Honest):
    def reserve(self, request: ReserveRequest) -> ReserveReply:
        shares = tuple(msgspec.structs.replace(share, weight=1) for share in request.queues)
        return super().reserve(msgspec.structs.replace(request, queues=shares))


class ForgetsLostDeliveries(_ChangesDeliveries):
    def change(self, deliveries: list[Delivery]) -> list[Delivery]:
        return [msgspec.structs.replace(delivery, deliveries=1) for delivery in deliveries]


class ForgetsCountedReleases(_ChangesSettlements):
    def change(self, settlement: Settlement) -> Settlement:
        if isinstance(settlement, Release):
            return msgspec.structs.replace(settlement, counted=False)
        return settlement


class CountsReleases(_ChangesSettlements):
    def change(self, settlement: Settlement) -> Settlement:
        if isinstance(settlement, Release):
            return msgspec.structs.replace(settlement, counted=True)
        return settlement


class NeverTakesBack(Honest):
    def reap(self, request: ReapRequest) -> ReapReport:
        return super().reap(msgspec.structs.replace(request, recover=False))


class TakesBackEarly(Honest):
    def reserve(self, request: ReserveRequest) -> ReserveReply:
        return super().reserve(msgspec.structs.replace(request, lease=0.001))


class IgnoresMessageLease(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, lease=None)


class ForgetsExtensions(Honest):
    def extend(self, worker: str, extensions: Sequence[Extension]) -> ExtendReply:
        return ExtendReply(now=self.now())


class LosesArrivals(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, successors=())


class CountsArrivalsTwice(Honest):
    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        return super().settle(worker, [self._doubled(each) for each in settlements])

    def _doubled(self, settlement: Settlement) -> Settlement:
        follow_ups = settlement.follow_ups or FollowUps()
        known = [r for r in self.list_jobs(limit=2000).jobs if r.receipt == settlement.receipt]
        more = tuple(
            Arrival(to=edge.to, source=f"{record.id} again")
            for record in known
            for edge in record.successors
        )
        both = msgspec.structs.replace(follow_ups, arrive=follow_ups.arrive + more)
        return msgspec.structs.replace(settlement, follow_ups=both)


class PublishesLater(Honest):
    """The job ends in one step, what follows from it comes in another."""

    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        bare = [msgspec.structs.replace(each, follow_ups=None) for each in settlements]
        reply = super().settle(worker, bare)
        time.sleep(0.005)
        for settlement, result in zip(settlements, reply.results, strict=True):
            if result.status == "ok" and settlement.follow_ups:
                self.enqueue(settlement.follow_ups.enqueue)
        return reply


class NeverSaysAlready(Honest):
    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        reply = super().settle(worker, settlements)
        results = [
            SettleResult("lost") if result.status == "already" else result
            for result in reply.results
        ]
        return msgspec.structs.replace(reply, results=results)


class AlwaysSaysOk(Honest):
    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        reply = super().settle(worker, settlements)
        return msgspec.structs.replace(reply, results=[SettleResult("ok")] * len(settlements))


class LetsOneRefusalBlockAll(Honest):
    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        if any(settlement.receipt == "no-such-receipt" for settlement in settlements):
            raise TransportError("one of the settlements is wrong")
        return super().settle(worker, settlements)


class NeverFreesKeys(Honest):
    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        owners: dict[str, str] = self.notes
        answers: list[Enqueued] = []
        for message in messages:
            owner = owners.setdefault(message.key, message.id) if message.key else message.id
            if owner != message.id:
                answers.append(Enqueued(owner, "duplicate"))
            else:
                answers += super().enqueue([message], fence=fence)
        return answers


class IgnoresKeys(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, key=None)


class IgnoresKeyScopes(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, key_scope="window")


class IgnoresConcurrencyKeys(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, concurrency_key=None)


class IgnoresConcurrencyLimits(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, concurrency_limit=99)


class IgnoresDelays(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, delay=None, eta=None)


class RunsTheExpired(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, expires=None)


class NeverPrunes(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, job_ttl=1e9)


class IgnoresRetention(Honest):
    def reap(self, request: ReapRequest) -> ReapReport:
        keep = Retention(dead_letter_ttl=None, dead_letter_max=None, worker_ttl=1e9)
        return super().reap(msgspec.structs.replace(request, retention=keep))


class LosesDeadLetters(_ChangesSettlements):
    def change(self, settlement: Settlement) -> Settlement:
        if isinstance(settlement, Bury):
            return Ack(receipt=settlement.receipt, state=JobState.FAILED, error=settlement.error)
        return settlement


class ReplaysWithoutEnd(Honest):
    def replay_dead(
        self, ids: Sequence[str], *, queue: str | None = None, priority: int | None = None
    ) -> int:
        super().replay_dead(ids, queue=queue, priority=priority)
        return len(ids)


class ForgetsAttempts(_ChangesDeliveries):
    def change(self, deliveries: list[Delivery]) -> list[Delivery]:
        return [msgspec.structs.replace(delivery, attempt=1) for delivery in deliveries]


class RetriesAtOnce(_ChangesSettlements):
    def change(self, settlement: Settlement) -> Settlement:
        if isinstance(settlement, Retry):
            return msgspec.structs.replace(settlement, delay=0.0)
        return settlement


class LosesMeta(_ChangesSettlements):
    def change(self, settlement: Settlement) -> Settlement:
        return msgspec.structs.replace(settlement, meta=None)


class DecodesEnvelopes(_ChangesMessages):
    def change(self, message: Message) -> Message:
        return msgspec.structs.replace(message, envelope=message.envelope.strip(b"\x00"))


class EnqueuesOneByOne(Honest):
    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        answers: list[Enqueued] = []
        for message in messages:
            answers += super().enqueue([message], fence=fence)
            time.sleep(0.0002)
        return answers


class IgnoresFences(Honest):
    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        return super().enqueue(messages)


class HidesCancellation(_ChangesDeliveries):
    def change(self, deliveries: list[Delivery]) -> list[Delivery]:
        return deliveries

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        return msgspec.structs.replace(super().reserve(request), cancelled=frozenset())


class CompletesAnything(Honest):
    def complete(self, token: str, completion: Completion) -> CompleteResult:
        super().complete(token, completion)
        return CompleteResult("ok")


class ReopensWithoutComparing(Honest):
    def reopen(
        self,
        ids: Sequence[str],
        *,
        expect: Mapping[str, int] | None = None,
        descendants: Any = "all",
    ) -> ReopenResult:
        return super().reopen(ids, descendants=descendants)


class ElectsEverybody(Honest):
    def heartbeat(self, info: WorkerInfo) -> HeartbeatReply:
        return msgspec.structs.replace(super().heartbeat(info), maintain=True)


class GivesLeasesToAll(Honest):
    """Declares named leases, and has none."""

    def acquire(self, name: str, owner: str, ttl: float) -> int | None:
        return 1


class HasNoJobListing(Honest):
    """Declares job listing, and has none."""

    def list_jobs(self, **selection: Any) -> JobPage:
        raise TransportError("not here")


class DeniesItsWorkers(Honest):
    supports_workers = False


class CannotHoldEverything(Honest):
    limitations = {"everything": "too much"}


class DropsOldRecordsFromAnswers(Honest):
    def get_jobs(self, ids: Sequence[str], *, envelopes: bool = False) -> list[JobRecord | None]:
        return [record for record in super().get_jobs(ids, envelopes=envelopes) if record]
