"""The whole system, ours and the peers taking turns: enqueue, consume, latency, what the server does."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from backends import Backend, Failed
from environments import Peer
from figures import Figure, percentile, say
from ratios import raw_enqueue
from systems import Idle, Rival, Row, System, Taskmq

SAMPLES = 200
Rows = dict[str, list[Row]]


def systems(backend: Backend, peers: Sequence[Peer]) -> list[System]:
    """Ours first; Huey on SQLite both at our `synchronous` and as it comes."""
    found: list[System] = [Taskmq()]
    for peer in peers:
        if backend.client == "sqlite3":
            ours = getattr(backend, "synchronous", "NORMAL")
            found += [
                Rival(peer, f"{peer.name} {level}", BENCH_SYNCHRONOUS=level)
                for level in dict.fromkeys((ours, "FULL"))
            ]
        else:
            found.append(Rival(peer))
    return found


def throughput(backend: Backend, peers: Sequence[Peer], jobs: int, runs: int) -> list[Figure]:
    """Enqueue one by one and in bulk, then drain it with one worker process."""
    raws: list[tuple[float, float]] = []
    rows: Rows = {}
    for number in range(runs):
        for system in systems(backend, peers):
            say(f"throughput on {backend.name}, run {number + 1} of {runs}: {system.name}")
            with peers_may_fail(system):
                rows.setdefault(system.name, []).append(system.run(backend, jobs))
        if backend.client:
            raws.append(raw_enqueue(backend, jobs))
    rows = {name: found for name, found in rows.items() if len(found) == runs}
    return [
        *enqueued(backend, rows["taskmq"], raws),
        *consumed(backend, rows["taskmq"]),
        *side_by_side(backend, rows),
        *beside(backend, rows),
    ]


@contextmanager
def peers_may_fail(system: System) -> Generator[None]:
    """A peer that breaks is missing from the table; the others and ours are worth having."""
    try:
        yield
    except Failed as error:
        if not isinstance(system, Rival):
            raise
        print(f"{system.name} is left out: {error}", file=sys.stderr, flush=True)


def enqueued(backend: Backend, rows: list[Row], raws: list[tuple[float, float]]) -> list[Figure]:
    group = f"enqueue, {backend.name}"
    single = [row.single for row in rows]
    bulk = [row.bulk or 0.0 for row in rows]
    many = [each / one for each, one in zip(bulk, single, strict=True)]
    embedded = backend.name in {"memory", "sqlite"}
    figures = [
        Figure.of(group, "one by one", "jobs/s", single),
        Figure.of(group, "CPU of the producer", "ms/1,000", [row.single_cpu for row in rows]),
        Figure.of(group, "bulk (map_async)", "jobs/s", bulk),
        Figure.of(group, "bulk / one by one", "", many, "goal: at least 10" if embedded else ""),
    ]
    if not raws:
        return figures
    bare = f"bare {backend.client}"
    goal = "goal: at least 0.75" if backend.name == "redis" else ""
    return [
        *figures,
        Figure.of(group, f"{bare}, one by one", "jobs/s", [one for one, _ in raws]),
        Figure.of(group, f"{bare}, 1,000 at once", "jobs/s", [many for _, many in raws]),
        Figure.of(
            group,
            "ratio to bare, one by one",
            "",
            [mine / one for mine, (one, _) in zip(single, raws, strict=True)],
            goal,
        ),
        Figure.of(
            group,
            "ratio to bare, bulk",
            "",
            [mine / many for mine, (_, many) in zip(bulk, raws, strict=True)],
        ),
    ]


def consumed(backend: Backend, rows: list[Row]) -> list[Figure]:
    group = f"consume, {backend.name}, 1 process, threads, concurrency 10, results stored"
    if rows[0].consume is None:
        return []
    figures = [
        Figure.of(group, "consume", "jobs/s", [row.consume or 0.0 for row in rows]),
        Figure.of(group, "CPU of the worker", "ms/1,000", [row.cpu or 0.0 for row in rows]),
        Figure.of(group, "peak RSS", "MiB", [row.rss or 0.0 for row in rows]),
    ]
    for name, (unit, _) in rows[0].server.items():
        values = [row.server[name][1] for row in rows]
        figures.append(Figure.of(group, f"server: {name}", unit, values))
    return figures


MEASURES: tuple[tuple[str, str, Callable[[Row], float | None]], ...] = (
    ("enqueue", "jobs/s", lambda row: row.single),
    ("bulk", "jobs/s", lambda row: row.bulk),
    ("consume", "jobs/s", lambda row: row.consume),
    ("CPU", "ms/1,000", lambda row: row.cpu),
    ("RSS", "MiB", lambda row: row.rss),
)


def side_by_side(backend: Backend, rows: Rows) -> list[Figure]:
    if len(rows) == 1:
        return []
    group = f"side by side, {backend.name}, 1 worker process"
    figures: list[Figure] = []
    for system, found in rows.items():
        for name, unit, read in MEASURES:
            values = [value for row in found if (value := read(row)) is not None]
            if values:
                figures.append(Figure.of(group, name, unit, values, subject=system))
        for name in ("round trips", "commands", "statements", "WAL"):
            if name in found[0].server:
                unit = found[0].server[name][0]
                values = [row.server[name][1] for row in found]
                figures.append(Figure.of(group, name, unit, values, subject=system))
    return figures


Goal = tuple[str, str, str]
"""A measure, the peer it is against (or the best of all), and what is wanted."""

GOALS: dict[str, tuple[Goal, ...]] = {
    "redis": (
        ("consume", "best", "goal: at least 6"),
        ("enqueue", "dramatiq", "goal: at least 1.3"),
        ("bulk", "rq", "goal: at least 4"),
        ("CPU", "dramatiq", "goal: under 0.2"),
    ),
    "postgres": (
        ("consume", "pgqueuer", "goal: at least 1"),
        ("consume", "procrastinate", "goal: at least 30"),
        ("enqueue", "best", "goal: at least 1.3"),
        ("bulk", "pgqueuer", "goal: at least 1"),
    ),
    "sqlite": (
        ("enqueue", "huey NORMAL", "goal: at least 2"),
        ("consume", "huey NORMAL", "goal: at least 6"),
        ("enqueue", "huey FULL", ""),
        ("consume", "huey FULL", ""),
    ),
}


def beside(backend: Backend, rows: Rows) -> list[Figure]:
    """The ratios that were promised, run by run."""
    reads = {name: read for name, _, read in MEASURES}
    group = f"taskmq / peer, {backend.name}"
    figures: list[Figure] = []
    for measure, other, goal in GOALS.get(backend.name, ()):
        found = _against(rows, reads[measure], other)
        if found is not None:
            peer, ratios = found
            figures.append(Figure.of(group, f"{measure} / {peer}", "", ratios, goal))
    return figures


def _against(
    rows: Rows, read: Callable[[Row], float | None], other: str
) -> tuple[str, list[float]] | None:
    peers = {
        name: [value for row in found if (value := read(row)) is not None]
        for name, found in rows.items()
        if name != "taskmq"
    }
    peers = {name: values for name, values in peers.items() if values}
    if other == "best" and peers:
        other = max(peers, key=lambda name: statistics.median(peers[name]))
    if other not in peers:
        return None
    ours = [read(row) or 0.0 for row in rows["taskmq"]]
    return other, [mine / theirs for mine, theirs in zip(ours, peers[other], strict=True)]


def latency(backend: Backend, peers: Sequence[Peer], runs: int) -> list[Figure]:
    """Pick-up by an idle worker process, the round trip of ours, and what the worker costs while idle.

    The systems take turns, and what all turns saw is put together: one series of a busy machine says
    nothing about the tail.
    """
    found: dict[str, Idle] = {}
    for number in range(runs):
        for system in systems(backend, peers):
            say(f"an idle worker on {backend.name}, run {number + 1} of {runs}: {system.name}")
            with peers_may_fail(system):
                idle = system.idle(backend, SAMPLES)
                if system.name in found:
                    found[system.name].extend(idle)
                else:
                    found[system.name] = idle
    where = "in this process" if backend.name == "memory" else "process"
    group = f"an idle worker {where}, {backend.name}, {runs * SAMPLES} calls 5 to 15 ms apart"
    figures: list[Figure] = []
    for name, idle in found.items():
        figures += [
            _percentile(f"{group}: pick-up", f"p{percent}", idle.pickup, percent, name)
            for percent in (50, 95, 99)
        ]
        if idle.cpu is not None:
            figures.append(
                Figure.of(f"{group}: pick-up", "idle CPU", "% of core", [idle.cpu], subject=name)
            )
    mine = found["taskmq"]
    figures += [
        _percentile(group, f"call to get p{percent}", mine.round_trip, percent, "")
        for percent in (50, 95, 99)
    ]
    return [*figures, *promised(backend, group, found)]


def _percentile(group: str, name: str, values: list[float], percent: int, subject: str) -> Figure:
    value = percentile(values, percent)
    return Figure(group, name, value, "ms", min(values), max(values), "", subject)


def promised(backend: Backend, group: str, found: dict[str, Idle]) -> list[Figure]:
    """The goals of an idle worker."""
    mine = found["taskmq"]
    at = {
        name: {p: percentile(idle.pickup, p) for p in (50, 95, 99)} for name, idle in found.items()
    }
    ours = at.pop("taskmq")
    most = 1 if backend.name == "memory" else 10

    def figure(name: str, value: float, unit: str, goal: str) -> Figure:
        return Figure(group, name, value, unit, value, value, goal)

    figures = [
        figure("pick-up p95", ours[95], "ms", f"goal: under {most} ms"),
        figure(
            "ratio, call to get p50 / pick-up p50",
            percentile(mine.round_trip, 50) / ours[50],
            "",
            "goal: under 3",
        ),
    ]
    if mine.cpu is not None:
        figures.append(figure("CPU while idle", mine.cpu, "% of core", "goal: under 1"))
    nearest = {"redis": ("huey", "goal: at most 1.25"), "postgres": ("pgqueuer", "goal: at most 1")}
    if (near := nearest.get(backend.name)) and near[0] in at:
        name, goal = near
        figures.append(figure(f"ratio, pick-up p50 / {name}", ours[50] / at[name][50], "", goal))
    if at:
        best = min(at, key=lambda name: at[name][99])
        goal = "goal: under 1" if backend.name == "redis" else ""
        figures.append(figure(f"ratio, pick-up p99 / {best}", ours[99] / at[best][99], "", goal))
    return figures


def chord(backend: Backend, count: int = 1000) -> list[Figure]:
    """Celery's chord of `count` no-op tasks on Redis: the yardstick of a workflow of that size."""
    from environments import PEERS, python_of

    python = python_of(PEERS["celery"])
    say(f"celery's chord of {count:,}")
    with backend.place() as at:
        at.environment["BENCH_RESULTS"] = "1"
        before = at.counters.read()
        with at.worker("-m", "peers.celery", "serve", python=python):
            row = at.run("-m", "peers.celery", "chord", str(count), python=python)
        after = at.counters.read()
    group = f"celery's chord of {count:,}, results on {backend.name}, 1 process, 10 threads"
    values = [("call", "s", row["call_s"]), ("call to result", "s", row["total_s"])]
    if after:
        values.append(("commands", "/job", (after["commands"] - before["commands"]) / count))
    return [Figure(group, name, value, unit, value, value) for name, unit, value in values]
