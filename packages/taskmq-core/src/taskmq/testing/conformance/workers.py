"""The registry of workers and the election of who does maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.testing.conformance.scenario import check, equal, near, scenario
from taskmq.transport.types import Retention, WorkerInfo

if TYPE_CHECKING:
    from taskmq.testing.conformance.rig import Rig


def beat(rig: Rig, worker: str, **fields: Any) -> bool:
    """Send a heartbeat; whether this worker is to do the maintenance."""
    info = WorkerInfo(id=worker, heartbeat_interval=rig.moment, **fields)
    reply = rig.transport.heartbeat(info)
    near(reply.now, rig.transport.now(), "now", within=rig.slack)
    return reply.maintain


@scenario("R10.1", "workers")
def workers_are_listed(rig: Rig) -> None:
    """A registered worker is listed with what it said last and when."""
    beat(rig, "w1", hostname="h", pid=7, queues=("a", "b"), pool="threads", concurrency=4)
    beat(rig, "w2")
    rig.elapse(rig.moment * 0.5)
    beat(rig, "w1", hostname="h", pid=7, queues=("a",), in_flight=3, state="stopping", version="1")
    listed = {info.id: info for info in rig.transport.list_workers()}
    equal(sorted(listed), ["w1", "w2"], "workers")
    info = listed["w1"]
    equal(
        (
            info.hostname,
            info.pid,
            info.queues,
            info.in_flight,
            info.state,
            info.version,
            info.stale,
        ),
        ("h", 7, ("a",), 3, "stopping", "1", False),
        "what w1 said last",
    )
    near(info.heartbeat_at, rig.transport.now(), "heartbeat_at", within=rig.slack)


@scenario("R10.2", "workers")
def silent_workers_are_stale(rig: Rig) -> None:
    """A worker that missed two intervals is `stale`, and no longer once it beats again."""
    beat(rig, "w1")
    rig.elapse(rig.moment * 2.5)
    beat(rig, "w2")
    stale = {info.id: info.stale for info in rig.transport.list_workers()}
    equal(stale, {"w1": True, "w2": False}, "stale")
    beat(rig, "w1")
    equal(any(info.stale for info in rig.transport.list_workers()), False, "stale after a beat")


@scenario("R10.3", "workers")
def deregistered_workers_are_gone(rig: Rig) -> None:
    """A deregistered worker is forgotten; what it holds is left to its lease; repetition is harmless."""
    beat(rig, "w1")
    rig.put()
    rig.take_one("w1", lease=rig.moment)
    rig.transport.deregister("w1")
    rig.transport.deregister("w1")
    rig.transport.deregister("never-was")
    equal(rig.transport.list_workers(), [], "workers")
    equal(rig.take("w2"), [], "deliveries while the lease stands")
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    equal(len(rig.take("w2")), 1, "deliveries after the lease")


@scenario("I10.4", "workers")
def one_worker_maintains(rig: Rig) -> None:
    """Exactly one worker is elected and stays elected while it beats."""
    workers = ["w1", "w2", "w3"]
    elected: list[str] = []
    for turn in range(4):
        beats = {worker: beat(rig, worker) for worker in workers}
        chosen = [worker for worker, maintain in beats.items() if maintain]
        equal(len(chosen), 1, f"elected workers in round {turn}")
        elected += chosen
        rig.elapse(rig.moment * 0.5)
    equal(len(set(elected)), 1, "different workers elected while all beat")


@scenario("I10.5", "workers")
def maintenance_moves_on(rig: Rig) -> None:
    """Another worker is elected once the elected one has deregistered or missed two intervals."""
    equal(beat(rig, "w1"), True, "the first worker is elected")
    equal(beat(rig, "w2"), False, "the second one is not")
    rig.elapse(rig.moment * 1.2)
    equal(beat(rig, "w2"), False, "elected after a single missed interval")
    rig.elapse(rig.moment * 1.2)
    equal(beat(rig, "w2"), True, "elected after two missed intervals")
    equal(beat(rig, "w1"), False, "the earlier one, back again")
    rig.transport.deregister("w2")
    equal(beat(rig, "w1"), True, "elected after the other has deregistered")


@scenario("I10.6", "workers")
def election_at_once(rig: Rig) -> None:
    """Of workers that start at the same instant exactly one is elected."""
    handles = [rig.duplicate() for _ in range(6)]
    infos = [WorkerInfo(id=f"w{n}", heartbeat_interval=rig.moment) for n in range(6)]
    answers = rig.together(
        *((lambda h=h, i=i: h.heartbeat(i).maintain) for h, i in zip(handles, infos, strict=True))
    )
    equal(sum(answers), 1, "elected")


@scenario("I12.1", "workers")
def dead_workers_are_pruned(rig: Rig) -> None:
    """A worker that is silent for `worker_ttl` is dropped by reap, not before."""
    beat(rig, "old")
    rig.elapse(rig.moment * 3)
    beat(rig, "new")
    retention = Retention(worker_ttl=rig.moment * 4)
    rig.reap(retention=retention)
    equal(len(rig.transport.list_workers()), 2, "workers before the end of worker_ttl")
    rig.elapse(rig.moment * 2)
    rig.reap(retention=retention)
    listed = [info.id for info in rig.transport.list_workers()]
    check(listed == ["new"], f"workers after the end of worker_ttl: {listed}")
