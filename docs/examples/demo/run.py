"""The demo: thousands of real files, two worker processes, one of them killed half way.

Every file becomes a job on a sqlite queue in a temporary folder. The answer is checked against a
plain loop over the same files.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from taskmq import TaskHandle
    from taskmq.transport.types import JobRecord

HERE = Path(__file__).resolve().parent
SKIPPED = {"__pycache__", "site-packages", "dist-packages"}
URGENT = 9
console = Console()


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hatch run demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: hatch run demo --folder ~/src --limit 500 --concurrency 2",
    )
    stdlib = Path(sysconfig.get_path("stdlib"))
    parser.add_argument(
        "--folder",
        type=Path,
        default=stdlib,
        help="what to examine (default: Python's own library)",
    )
    parser.add_argument(
        "--pattern", default="*", help="which files of it, like *.py (default: all)"
    )
    parser.add_argument("--limit", type=int, help="at most so many files")
    parser.add_argument(
        "--concurrency", type=int, default=4, help="slots of each worker (default: 4)"
    )
    parser.add_argument(
        "--urgent", type=int, default=5, help="how many files jump ahead (default: 5)"
    )
    parser.add_argument("--no-kill", action="store_true", help="let both workers live")
    parser.add_argument("--timeout", type=float, default=300, help="give up after so many seconds")
    chosen = parser.parse_args(arguments)
    if not chosen.folder.is_dir():
        parser.error(f"--folder {chosen.folder} is not a folder")
    return chosen


def find_files(folder: Path, pattern: str, limit: int | None) -> list[str]:
    """The files to examine, byte code and installed packages left out."""
    found = sorted(
        str(path)
        for path in folder.rglob(pattern)
        if path.is_file() and path.suffix != ".pyc" and not SKIPPED.intersection(path.parts)
    )
    return found[:limit]


class Workers:
    """The worker processes, as a user would start them."""

    def __init__(self, folder: Path, concurrency: int) -> None:
        self.folder = folder
        self.command = [sys.executable, "-m", "taskmq", "worker", "-c", str(concurrency)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TASKMQ_APP": "taskmq_demo:app", "PYTHONPATH": str(HERE)}
        with (self.folder / f"worker-{len(self.processes) + 1}.log").open("wb") as log:
            process = subprocess.Popen(
                self.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches the demo only, which then stops its workers in order.
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def check(self, expected: set[int]) -> None:
        """Fail with its own words when a worker ended that nobody killed."""
        for number, process in enumerate(self.processes, 1):
            if process.poll() is not None and process.pid not in expected:
                log = (self.folder / f"worker-{number}.log").read_text(errors="replace")
                raise SystemExit(f"worker {number} ended with {process.returncode}:\n{log[-2000:]}")

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass
class Story:
    """What happened, for the table at the end."""

    files: list[str]
    handles: dict[str, TaskHandle[Any]] = field(default_factory=dict)
    records: dict[str, JobRecord] = field(default_factory=dict)
    urgent: list[str] = field(default_factory=list)
    waiting_before_urgent: int = 0
    killed: bool = False
    seconds: float = 0.0


@contextmanager
def progress_bar(total: int) -> Iterator[Any]:
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield bar, bar.add_task("examining", total=total)


def ended(story: Story) -> int:
    """How many jobs have ended, by what the queue still holds."""
    from taskmq_demo import QUEUE, app

    left = sum(
        queue.pending + queue.delayed + queue.in_flight for queue in app.transport.stats([QUEUE])
    )
    return len(story.handles) - left


def submit(story: Story, paths: Sequence[str], priority: int = 0) -> None:
    from taskmq_demo import examine_file

    handles = examine_file.map_async([(path,) for path in paths], priority=priority)
    story.handles.update(zip(paths, handles, strict=True))


def run_jobs(story: Story, wanted: argparse.Namespace, workers: Workers) -> None:
    """Enqueue, watch, let some jump ahead, kill a worker half way, and wait for the end."""
    total = len(story.files)
    story.urgent = story.files[total - min(wanted.urgent, total) :]
    submit(story, [path for path in story.files if path not in set(story.urgent)])
    console.print(f"{len(story.handles):,} files enqueued in one call; two workers start")
    begin = time.monotonic()
    victim = workers.start()
    workers.start()
    killed: set[int] = set()
    late: list[str] = list(story.urgent)
    with progress_bar(total) as (bar, row):
        while (done := ended(story)) < total or late:
            bar.update(row, completed=done)
            if late and done >= total // 4:
                story.waiting_before_urgent = len(story.handles) - done
                submit(story, late, URGENT)
                bar.console.print(
                    f"{len(late)} urgent files enqueued behind {story.waiting_before_urgent:,} others"
                )
                late = []
            if not killed and not wanted.no_kill and done >= total // 2:
                victim.send_signal(signal.SIGKILL)
                killed.add(victim.pid)
                third = workers.start()
                bar.console.print(
                    f"worker {victim.pid} killed (SIGKILL); worker {third.pid} started"
                )
            workers.check(killed)
            if time.monotonic() - begin > wanted.timeout:
                raise SystemExit(
                    f"not done after {wanted.timeout:.0f} s: {done:,} of {total:,} files"
                )
            time.sleep(0.05)
        bar.update(row, completed=total)
    story.seconds = time.monotonic() - begin
    story.killed = bool(killed)


def collect(story: Story) -> None:
    from taskmq_demo import app

    paths = list(story.handles)
    for at in range(0, len(paths), 500):
        part = paths[at : at + 500]
        records = app.transport.get_jobs([story.handles[path].id for path in part])
        story.records.update({p: r for p, r in zip(part, records, strict=True) if r is not None})


def dead_letters() -> dict[str, str]:
    """The reason of every dead letter, by job id."""
    from taskmq_demo import app

    reasons: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = app.transport.list_dead(limit=500, cursor=cursor)
        for letter in page.letters:
            error = letter.error
            reasons[letter.id] = f"{error.type}: {error.message}" if error else letter.reason
        if (cursor := page.cursor) is None:
            return reasons


def check(story: Story, reasons: dict[str, str]) -> tuple[Counter[str], list[str]]:
    """Examine the same files in a plain loop, and compare; totals, and what differs."""
    from taskmq_demo import examine

    totals: Counter[str] = Counter()
    wrong: list[str] = []
    for path in story.files:
        handle, record = story.handles[path], story.records.get(path)
        try:
            report = examine(path)
        except Exception as exc:  # noqa: BLE001 (whatever the parser says is the answer)
            totals["failed"] += 1
            reason = reasons.get(handle.id, "no dead letter")
            if type(exc).__name__ not in reason:
                wrong.append(f"{path}: {type(exc).__name__} here, {reason} there")
            continue
        totals["files"] += 1
        totals["lines"] += report.lines
        totals["nodes"] += report.nodes
        if record is None or record.state != "SUCCEEDED":
            wrong.append(f"{path}: fine here, {record.state if record else 'lost'} there")
        elif handle.get(timeout=5) != report:
            wrong.append(f"{path}: another answer")
    return totals, wrong


def places_of_urgent(story: Story) -> str:
    """At which places the urgent jobs were started, of all."""
    order = sorted(story.records, key=lambda path: story.records[path].started_at or 0.0)
    places = sorted(order.index(path) + 1 for path in story.urgent if path in story.records)
    if not places:
        return "none"
    return f"enqueued last, started as no. {places[0]:,} to {places[-1]:,} of {len(order):,}"


def tell(story: Story, reasons: dict[str, str], totals: Counter[str]) -> None:
    table = Table(title="what the workers did", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    again = sum(1 for record in story.records.values() if record.deliveries > 1)
    table.add_row("files", f"{totals['files']:,} examined, {totals['failed']:,} failed")
    table.add_row("lines", f"{totals['lines']:,}")
    table.add_row("syntax tree nodes", f"{totals['nodes']:,}")
    table.add_row("dead letters", f"{len(reasons):,}")
    kinds = Counter(reason.split(" (")[0][:60] for reason in reasons.values())
    for reason, count in kinds.most_common(6):
        table.add_row("", f"{count} x {reason}")
    if len(kinds) > 6:
        table.add_row("", f"and {len(kinds) - 6} other reasons")
    note = " (the killed worker held them)" if story.killed else ""
    table.add_row("redeliveries", f"{again}{note}")
    table.add_row("urgent", places_of_urgent(story))
    speed = len(story.files) / story.seconds
    table.add_row("throughput", f"{speed:,.0f} files/s in {story.seconds:.1f} s, start-up included")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = options(arguments)
    files = find_files(wanted.folder, wanted.pattern, wanted.limit)
    if not files:
        console.print(f"no file like {wanted.pattern} in {wanted.folder}")
        return 2
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="taskmq-demo-") as name:
        folder = Path(name)
        os.environ["TASKMQ_TRANSPORT"] = f"sqlite:///{folder}/queue.db"
        sys.path.insert(0, str(HERE))
        from taskmq_demo import app

        story, workers = Story(files), Workers(folder, wanted.concurrency)
        try:
            run_jobs(story, wanted, workers)
            collect(story)
            reasons = dead_letters()
            with console.status("checking against a plain loop over the same files"):
                begin = time.monotonic()
                totals, wrong = check(story, reasons)
                alone = time.monotonic() - begin
        except KeyboardInterrupt:
            console.print("interrupted; the workers are stopped")
            return 130
        finally:
            workers.stop()
            app.close()
    tell(story, reasons, totals)
    if wrong:
        console.print(
            f"[red]{len(wrong)} answers differ from the plain loop's[/]:", *wrong[:10], sep="\n"
        )
        return 1
    console.print(
        f"[green]The same answer as a plain loop over the same {len(files):,} files[/] ({alone:.1f} s alone)."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
