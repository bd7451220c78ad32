"""Going through many dead letters in bounded batches, safe to interrupt and to run twice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from taskmq_cli import output
from taskmq_cli.errors import note

if TYPE_CHECKING:
    from taskmq.transport import Transport

BATCH = 500

Act = Callable[[Sequence[str]], int]


def dead_count(transport: Transport, queue: str | None) -> int:
    """Return how many dead letters there are, of one queue or of all."""
    stats = transport.stats(None if queue is None else [queue])
    return sum(each.dead for each in stats if queue is None or each.queue == queue)


def batches(transport: Transport, queue: str | None, until: float | None) -> Iterator[list[str]]:
    """Yield the ids of dead letters, oldest first, that died at or before `until`.

    A job that was replayed and dies again meanwhile is newer than `until`: it isn't met again.
    """
    cursor: str | None = None
    while True:
        page = transport.list_dead(queue, limit=BATCH, cursor=cursor)
        fresh = [each.id for each in page.letters if until is None or each.died_at <= until]
        if fresh:
            yield fresh
        cursor = page.cursor
        if cursor is None or len(fresh) < len(page.letters):
            return


def through(total: int, verb: str, groups: Iterator[list[str]], act: Act) -> int:
    """Apply `act` to every group with a progress bar on stderr; return what it counted in all.

    Each group is one atomic step of the backend: killed in between, the rest is as it was, and the
    same command goes on from there.
    """
    done = 0
    try:
        with _progress(total, verb) as advance:
            for ids in groups:
                done += act(ids)
                advance(len(ids))
    except KeyboardInterrupt:
        note(f"interrupted after {done:,} of {output.counted(total, 'dead letter')}; run it again")
        raise
    return done


@contextmanager
def _progress(total: int, verb: str) -> Generator[Callable[[int], None], None, None]:
    if total <= BATCH or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=output.console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda count: bar.advance(task, count)


def now_of(transport: Transport) -> float | None:
    """Return the transport's now, None for one without a clock to ask."""
    from taskmq.errors import TransportError

    try:
        return transport.now()
    except TransportError:
        return None
