"""Honesty: what is declared, what is refused, and names that are odd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.errors import TransportError
from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import CAPABILITIES, Broken, check, equal, near, scenario
from taskmq.transport.types import Ack, Bury, Payload, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Callable

ODD_NAMES = (
    "with space",
    "a:b::c",
    "{braces} and {0}",
    "percent %s %d %%",
    "quote ' \" ` ; --",
    "star * ? [a-z] _ \\",
    "ünïcödé-日本語-🎉",
    "a/b#c?d=e&f",
    "x" * 255,
    ".",
    "None",
)


@scenario("I13.1")
def missing_capabilities_refuse(rig: Rig) -> None:
    """Exactly the methods behind a capability declared missing raise TransportError."""
    transport = rig.transport
    calls: dict[str, list[tuple[str, Callable[[], object]]]] = {
        "leases": [
            ("acquire", lambda: transport.acquire("name", "owner", 1.0)),
            ("renew", lambda: transport.renew("name", 1, 1.0)),
            ("release", lambda: transport.release("name", 1)),
        ],
        "workers": [
            ("heartbeat", lambda: transport.heartbeat(WorkerInfo(id="w"))),
            ("deregister", lambda: transport.deregister("w")),
            ("list_workers", transport.list_workers),
        ],
        "job_listing": [("list_jobs", transport.list_jobs)],
        "rates": [("take_tokens", lambda: transport.take_tokens([]))],
    }
    for capability, methods in calls.items():
        for name, call in methods:
            _refuses(name, call, refused=not getattr(transport, f"supports_{capability}"))


def _refuses(name: str, call: Callable[[], object], *, refused: bool) -> None:
    try:
        call()
    except TransportError as error:
        check(refused, f"{name} raises {error!r} though its capability is declared present")
        return
    check(not refused, f"{name} works though its capability is declared missing")


@scenario("I13.2")
def capabilities_are_booleans(rig: Rig) -> None:
    """Capabilities are declared on the class as booleans, limitations as texts by scenario."""
    for capability in CAPABILITIES:
        value = getattr(type(rig.transport), f"supports_{capability}", None)
        check(isinstance(value, bool), f"supports_{capability} is {value!r} on the class")
    for name, why in rig.transport.limitations.items():
        check(why.strip(), f"limitation {name} gives no reason")


@scenario("I13.3")
def transport_tells_of_itself(rig: Rig) -> None:
    """A transport tells its time, URL and findings; migrating again harms nothing."""
    rig.transport.ping()
    description = rig.transport.describe()
    check(description.get("url"), "describe has no url")
    first = rig.transport.now()
    rig.elapse(rig.moment)
    check(rig.transport.now() > first, "the transport's clock stands still")
    for finding in rig.transport.diagnose():
        check(finding.level in {"ok", "warning", "error"}, f"a finding of level {finding.level!r}")
    rig.put()
    rig.transport.migrate()
    rig.transport.migrate()
    equal(len(rig.take()), 1, "messages after a repeated migration")


@scenario("I13.4")
def duplicates_share_the_storage(rig: Rig) -> None:
    """A duplicate is a handle on the same storage and clock; closing one leaves the others working."""
    other = rig.transport.duplicate()
    job_id = rig.put()
    record = other.get_jobs([job_id])[0]
    equal(record and record.id, job_id, "what the duplicate sees")
    near(other.now(), rig.transport.now(), "now of the duplicate", within=1.0)
    equal([d.id for d in rig.take(via=other)], [job_id], "what the duplicate reserves")
    equal(rig.state(job_id), JobState.RUNNING, "what the first handle sees")
    if other is not rig.transport:
        other.close()
        other.close()
    equal(rig.state(job_id), JobState.RUNNING, "after the duplicate was closed")


@scenario("I13.5")
def odd_names_work(rig: Rig) -> None:
    """Names with spaces, colons, braces, quotes, unicode or 255 characters work everywhere."""
    for number, name in enumerate(ODD_NAMES):
        job_id = f"{name[:200]}-{number}"
        fields = {"queue": name, "task": name, "key": name, "concurrency_key": name, "step": name}
        rig.put(job_id, **fields)
        record = rig.job(job_id)
        equal((record.queue, record.task, record.key), (name, name, name), "names in the record")
        rig.put(f"other-{number}", queue=name, concurrency_key=name)
        delivery = rig.take_one(name, name)
        equal((delivery.id, delivery.queue, delivery.task), (job_id, name, name), "the delivery")
        rig.confirm(Bury(receipt=delivery.receipt, error=boom(message=name)), worker=name)
        equal(rig.dead_ids(name), [job_id], "dead letters of the queue")
        equal(rig.transport.replay_dead([job_id]), 1, "replayed")
        rig.transport.revoke([job_id, f"other-{number}"])
        equal(rig.take(name, name), [], "deliveries after the revoke")
    listed = {entry.queue for entry in rig.transport.stats()}
    check(
        listed <= set(ODD_NAMES), f"stats lists queues that nobody named: {listed - set(ODD_NAMES)}"
    )


@scenario("I13.6")
def names_are_told_apart(rig: Rig) -> None:
    """Names that differ by case, accents or trailing space are different names."""
    names = ["Case", "case", "é", "e\u0301", "space", "space ", "a:b", "a::b"]
    ids = [rig.put(queue=name, key=name) for name in names]
    for name, job_id in zip(names, ids, strict=True):
        equal(rig.take_ids("w1", name), [job_id], f"deliveries of {name!r}")


@scenario("I13.7")
def any_bytes_round_trip(rig: Rig) -> None:
    """Results, metas and envelopes are bytes: every byte comes back."""
    data = bytes(range(256)) * 40
    job_id = rig.put(envelope=data)
    delivery = rig.take_one()
    equal(delivery.envelope, data, "envelope")
    rig.confirm(
        Ack(receipt=delivery.receipt, result=Payload("application/x; a=é", data), meta=data)
    )
    record = rig.job(job_id)
    equal(record.result, Payload("application/x; a=é", data), "result")
    equal(record.meta, data, "meta")


@scenario("I13.8")
def odd_error_texts_are_kept_or_refused(rig: Rig) -> None:
    """Error texts with NUL, surrogates or great length are stored or refused, and block nothing."""
    texts = ["nul \x00 in it", "half a pair \ud800", "x" * 100_000, "é\u2028\x1b[0m"]
    rig.put_many(len(texts) * 2)
    deliveries = rig.take(limit=20)
    settlements: list[Ack | Bury] = []
    for number, text in enumerate(texts):
        error = boom(message=text)
        odd = deliveries[number * 2].receipt
        settlements.append(
            Bury(receipt=odd, error=error)
            if number % 2
            else Ack(receipt=odd, state=JobState.FAILED, error=error)
        )
        settlements.append(Ack(receipt=deliveries[number * 2 + 1].receipt))
    results = rig.settle(*settlements)
    equal([r.status for r in results[1::2]], ["ok"] * len(texts), "answers to the plain ones")
    for text, delivery, result in zip(texts, deliveries[::2], results[::2], strict=True):
        check(result.status in {"ok", "refused"}, f"{text[:20]!r} answers {result.status}")
        record = rig.job(delivery.id)
        if result.status == "refused":
            check(result.reason, "a refusal without a reason")
            equal(record.state, JobState.RUNNING, "state after a refusal")
        else:
            equal(record.state, JobState.FAILED, "state after odd error text")
            check(record.error is not None, "the error is gone")


@scenario("I13.9")
def factory_gives_empty_storage(rig: Rig) -> None:
    """A fresh transport holds nothing: every scenario runs on storage of its own."""
    equal(rig.transport.stats(), [], "queues")
    equal(rig.dead_ids(), [], "dead letters")
    if rig.transport.supports_job_listing:
        equal(rig.transport.list_jobs().jobs, [], "jobs")
    if rig.transport.supports_workers:
        equal(rig.transport.list_workers(), [], "workers")


@scenario("I13.10")
def closed_transport_does_not_pretend(rig: Rig) -> None:
    """A call on a closed handle raises; it never answers as if it had worked."""
    handle = rig.transport.duplicate()
    if handle is rig.transport:
        return
    handle.close()
    try:
        handle.enqueue([rig.message("after-close")])
    except TransportError:
        equal(rig.transport.get_jobs(["after-close"]), [None], "record after the error")
        return
    # A handle may reconnect by itself; then the message must really be there.
    if rig.transport.get_jobs(["after-close"]) == [None]:
        raise Broken("enqueue on a closed handle answered, but stored nothing")
