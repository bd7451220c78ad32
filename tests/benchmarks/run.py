"""`hatch run bench`: what a job costs, beside the backend's raw limit and other queues, in the same run.

Absolute figures of a shared machine mean little, and a difference under 20 % none: look at the
ratios. Every figure is the median of several short runs, with their range.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pools
import ratios
import replicas
import whole
import workflows
from backends import Backend, Failed, Memory, backend_of
from environments import Peer, chosen, version_of
from figures import Figure, print_json, print_table, say

PARTS = ("efficiency", "overhead", "throughput", "latency", "depth", "pools", "replicas")
OF_A_SERVER = ("efficiency", "throughput", "latency", "depth")
"""What is measured by default on a server; the other parts have nothing to do with the backend."""


def settings(backend: Backend, peers: Sequence[Peer], jobs: int, runs: int) -> list[str]:
    lines = [
        f"{jobs:,} jobs a run, {runs} runs, medians.",
        *backend.settings(),
        "taskmq: 1 process, 10 threads, acknowledged after the work, results stored, sink null.",
    ]
    lines += [f"{peer.name} {version_of(peer)}: {peer.settings}." for peer in peers]
    if peers:
        lines.append(
            "Peers: from the start of the first job to that of the last, slow ones with fewer jobs;"
        )
        lines.append("taskmq: until the last job is settled.")
    return lines


def measures(
    backend: Backend, peers: Sequence[Peer], jobs: int, runs: int
) -> dict[str, Callable[[], list[Figure]]]:
    """The parts, by name."""
    memory = Memory("memory://")
    beside_memory = [memory] if backend.name == "sqlite" else []

    def latency() -> list[Figure]:
        first = [figure for each in beside_memory for figure in whole.latency(each, [], runs)]
        return [*first, *whole.latency(backend, peers, runs)]

    def depth() -> list[Figure]:
        every = [*beside_memory, backend]
        return [figure for each in every for figure in ratios.depth(each, runs)]

    return {
        "efficiency": lambda: ratios.efficiency(backend, jobs, runs),
        "overhead": lambda: ratios.overhead(jobs, runs),
        "throughput": lambda: whole.throughput(backend, peers, jobs, runs),
        "latency": latency,
        "depth": depth,
        "pools": lambda: pools.measure(jobs, runs),
        "replicas": lambda: replicas.figures(runs) if backend.name == "sqlite" else [],
        "workflows": lambda: workflows.figures(backend, runs, scale=max(1, 1000 // jobs)),
        "chord": lambda: whole.chord(backend),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="hatch run bench",
        description=__doc__,
        epilog="example: hatch run bench --transport redis --peers dramatiq,huey",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--transport",
        default="sqlite://",
        help="memory, sqlite, redis, postgres (these two start a private server), or a URL "
        "such as sqlite://?synchronous=full (default: sqlite)",
    )
    parser.add_argument("--jobs", type=int, default=3000, help="jobs a run (default: 3000)")
    parser.add_argument("--runs", type=int, default=3, help="runs a figure (default: 3)")
    parser.add_argument("--peers", default="", help="other queues to run beside it, by comma")
    parser.add_argument(
        "--only",
        action="append",
        choices=(*PARTS, "workflows", "chord"),
        help="only this part; may be repeated",
    )
    parser.add_argument(
        "--workflows",
        action="store_true",
        help="only what workflows cost; with --peers celery on Redis its chord beside them",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    wanted = parser.parse_args()
    jobs, runs = max(100, wanted.jobs // 100 * 100), wanted.runs
    try:
        return measure(wanted, jobs, runs)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1


def measure(wanted: argparse.Namespace, jobs: int, runs: int) -> int:
    with backend_of(wanted.transport) as backend:
        peers = chosen(wanted.peers, backend.name)
        parts = measures(backend, peers, jobs, runs)
        embedded = backend.name in {"memory", "sqlite"}
        figures: list[Figure] = []
        chosen_parts = wanted.only or (PARTS if embedded else OF_A_SERVER)
        if wanted.workflows:
            celery = backend.name == "redis" and any(each.name == "celery" for each in peers)
            chosen_parts = ("workflows", *(("chord",) if celery else ()))
        for name in chosen_parts:
            say(name)
            figures += parts[name]()
        lines = settings(backend, peers, jobs, runs)
    (print_json if wanted.json else print_table)(figures, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
