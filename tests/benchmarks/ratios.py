"""The ratios of the design: against the raw client, against a thread pool, and by depth."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from backends import Backend, Memory
from figures import Figure, say, timed
from raw import RawQueue, raw_queue

from taskmq import App, Config
from taskmq.ids import new_id
from taskmq.plugins import Plugins
from taskmq.transport import Transport
from taskmq.transport.open import open_transport
from taskmq.transport.types import Ack, Message, Payload, QueueShare, ReserveRequest
from taskmq_worker import Worker

ENVELOPE = bytes(range(200))
RESULT = Payload("application/msgpack", b"\x2a")
SHARES = (QueueShare("bench"),)


@contextmanager
def opened(backend: Backend) -> Generator[Transport]:
    """A transport on an empty backend."""
    with backend.place() as at:
        transport = open_transport(at.url, Plugins(), 5.0)
        try:
            yield transport
        finally:
            transport.close()


@contextmanager
def opened_raw(backend: Backend) -> Generator[RawQueue]:
    """The bare client on an empty backend."""
    with backend.place() as at:
        raw = raw_queue(backend, at)
        try:
            yield raw
        finally:
            raw.close()


def fill(transport: Transport, jobs: int, *, delay: float | None = None) -> None:
    """Enqueue no-op messages in calls of 1,000."""
    for at in range(0, jobs, 1000):
        transport.enqueue(
            [
                Message(id=new_id(), task="noop", queue="bench", envelope=ENVELOPE, delay=delay)
                for _ in range(min(1000, jobs - at))
            ]
        )


def fill_raw(raw: RawQueue, jobs: int) -> None:
    for at in range(0, jobs, 1000):
        raw.enqueue([(new_id(), ENVELOPE) for _ in range(min(1000, jobs - at))])


def drain(transport: Transport, batch: int, jobs: int) -> float:
    """Reserve and settle `jobs` messages in batches; jobs a second."""
    credits: dict[str, float] = {}
    with timed() as clock:
        for _ in range(jobs // batch):
            request = ReserveRequest(worker="w", queues=SHARES, limit=batch, credits=credits)
            reply = transport.reserve(request)
            credits = dict(reply.credits)
            acks = [Ack(receipt=d.receipt, result=RESULT) for d in reply.deliveries]
            settled = transport.settle("w", acks)
            assert len(settled.results) == batch
            assert all(result.status == "ok" for result in settled.results)
    return jobs / clock.wall


def drain_raw(raw: RawQueue, batch: int, jobs: int) -> float:
    with timed() as clock:
        for _ in range(jobs // batch):
            claimed = raw.claim(batch)
            assert len(claimed) == batch
            raw.finish(claimed, RESULT.data)
    return jobs / clock.wall


def efficiency(backend: Backend, jobs: int, runs: int) -> list[Figure]:
    """Reserve and settle alone, beside the raw client, the two taking turns."""
    figures: list[Figure] = []
    if not backend.client:
        return []
    bare = f"bare {backend.client}"
    group = f"transport efficiency, {backend.name} against {bare}"
    at_100 = 0.4 if backend.name == "postgres" else 0.5
    for batch, least in ((10, 0.6), (100, at_100)):
        ours: list[float] = []
        raws: list[float] = []
        say(f"{group}, batches of {batch}")
        for _ in range(runs):
            with opened_raw(backend) as raw:
                fill_raw(raw, jobs)
                raws.append(drain_raw(raw, batch, jobs))
            with opened(backend) as transport:
                fill(transport, jobs)
                ours.append(drain(transport, batch, jobs))
        ratio = [mine / raw for mine, raw in zip(ours, raws, strict=True)]
        figures += [
            Figure.of(group, f"{bare}, batches of {batch}", "jobs/s", raws),
            Figure.of(group, f"reserve + settle, batches of {batch}", "jobs/s", ours),
            Figure.of(group, f"ratio at {batch}", "", ratio, f"goal: at least {least}"),
        ]
    return figures


def raw_enqueue(backend: Backend, jobs: int) -> tuple[float, float]:
    """What the bare client enqueues one by one, and 1,000 at once; jobs a second."""
    with opened_raw(backend) as raw:
        messages = [(new_id(), ENVELOPE) for _ in range(jobs)]
        raw.enqueue_one((new_id(), ENVELOPE))
        with timed() as single:
            for message in messages:
                raw.enqueue_one(message)
        many = [(new_id(), ENVELOPE) for _ in range(jobs)]
        with timed() as bulk:
            for at in range(0, jobs, 1000):
                raw.enqueue(many[at : at + 1000])
    return jobs / single.wall, jobs / bulk.wall


def overhead(jobs: int, runs: int) -> list[Figure]:
    """CPU of a no-op job on memory, results kept, beside a bare thread pool."""
    group = "worker overhead on memory, concurrency 10, results kept, sink null"
    say(group)
    ours: list[float] = []
    pools: list[float] = []
    for _ in range(runs):
        with ThreadPoolExecutor(10) as pool, timed() as clock:
            wait([pool.submit(lambda: None) for _ in range(jobs)])
        pools.append(clock.cpu / jobs * 1e6)
        with App(Config(transport="memory://", default_queue="bench", events="null")) as app:
            task = app.task(name="bench.noop")(lambda number: number)
            task.map_async([(number,) for number in range(jobs)])
            with Worker(app, concurrency=10) as worker, timed() as clock:
                worker.run_until_idle(timeout=120)
            ours.append(clock.cpu / jobs * 1e6)
    ratio = [mine / pool for mine, pool in zip(ours, pools, strict=True)]
    return [
        Figure.of(group, "ThreadPoolExecutor(10).submit(noop)", "µs CPU/job", pools),
        Figure.of(group, "worker", "µs CPU/job", ours),
        Figure.of(group, "ratio", "", ratio, "goal: at most 3"),
    ]


def depth(backend: Backend, runs: int) -> list[Figure]:
    """Reserve and settle with little and with much behind: it must make no difference."""
    group = f"depth, {backend.name}: reserve + settle in batches of 10"
    deep = 100_000 if isinstance(backend, Memory) or backend.client == "sqlite3" else 20_000
    figures: list[Figure] = []
    for name, delay in (("queued", None), ("delayed", 3600.0)):
        say(f"{group}, {deep:,} {name}")
        speeds: dict[int, list[float]] = {1_000: [], deep: []}
        for many, found in speeds.items():
            with opened(backend) as transport:
                fill(transport, many, delay=delay)
                for _ in range(runs):
                    fill(transport, 1000)
                    found.append(drain(transport, 10, 1000))
        for many, found in speeds.items():
            figures.append(Figure.of(group, f"{many:,} {name}", "jobs/s", found))
        ratio = [slow / quick for slow, quick in zip(speeds[deep], speeds[1_000], strict=True)]
        figures.append(Figure.of(group, f"ratio, {name}", "", ratio, "goal: about 1"))
    return figures
