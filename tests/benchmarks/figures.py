"""What a benchmark measures with: medians of repeated runs, CPU, memory, and how they are printed."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One measured value: the median of several runs and the range they span."""

    group: str
    name: str
    value: float
    unit: str
    low: float
    high: float
    goal: str = ""
    subject: str = ""
    """The system it is of, where several stand side by side in one table."""

    @classmethod
    def of(
        cls,
        group: str,
        name: str,
        unit: str,
        values: Sequence[float],
        goal: str = "",
        subject: str = "",
    ) -> Figure:
        middle = statistics.median(values)
        return cls(group, name, middle, unit, min(values), max(values), goal, subject)


class Clock:
    """Wall time and this process's CPU time of a `with` block, in seconds."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def timed() -> Generator[Clock]:
    clock = Clock()
    wall, cpu = time.perf_counter(), time.process_time()
    yield clock
    clock.cpu = time.process_time() - cpu
    clock.wall = time.perf_counter() - wall


def percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def peak_rss_mib() -> float:
    """The most memory this process has had resident since its start."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would count the parent's memory too, which the child shares until it execs.
        match = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.M)
        assert match is not None
        return int(match[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024


def machine() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
    }


def shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def say(what: str) -> None:
    """A line of progress, for the people who wait."""
    print(f"measuring {what} …", file=sys.stderr, flush=True)


def print_table(figures: Sequence[Figure], settings: Sequence[str]) -> None:
    """A table for people; a range wide enough to matter is a reason to look twice."""
    width = max((len(figure.name) for figure in figures if not figure.subject), default=0)
    for group, found in groupby(figures, lambda figure: figure.group):
        rows = list(found)
        print(f"\n{group}")
        if rows[0].subject:
            print_side_by_side(rows)
            continue
        for figure in rows:
            spread = f"({shown(figure.low)} to {shown(figure.high)})"
            line = (
                f"  {figure.name:<{width}}  {shown(figure.value):>9} {figure.unit:<10} {spread:<22}"
            )
            print(f"{line} {figure.goal}".rstrip())
    print()
    for line in settings:
        print(line)


def print_side_by_side(figures: Sequence[Figure]) -> None:
    """One row a system, one column a measure: medians only, or the lines would not fit a terminal."""
    columns = list(dict.fromkeys((figure.name, figure.unit) for figure in figures))
    subjects = list(dict.fromkeys(figure.subject for figure in figures))
    values = {(figure.subject, figure.name): shown(figure.value) for figure in figures}
    first = max(len(subject) for subject in subjects)
    widths = [
        max(len(name), len(unit), *(len(values.get((each, name), "-")) for each in subjects))
        for name, unit in columns
    ]
    for heads in ([name for name, _ in columns], [unit for _, unit in columns]):
        cells = [f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)]
        print(f"  {'':<{first}}  {'  '.join(cells)}".rstrip())
    for each in subjects:
        cells = [
            f"{values.get((each, name), '-'):>{width}}"
            for (name, _), width in zip(columns, widths, strict=True)
        ]
        print(f"  {each:<{first}}  {'  '.join(cells)}")


def print_json(figures: Sequence[Figure], settings: Sequence[str]) -> None:
    rows = [asdict(figure) for figure in figures]
    print(json.dumps({"machine": machine(), "settings": list(settings), "figures": rows}, indent=1))
