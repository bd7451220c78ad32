"""The private servers of the benchmarks: those of the tests, PostgreSQL counting its statements."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support import services


class CountingPostgres(services.Postgres):
    """Loads pg_stat_statements, whose cost of some microseconds a statement is everybody's."""

    def command(self, *words: str) -> list[str]:
        if Path(words[0]).name == "postgres":
            words = (*words, "-c", "shared_preload_libraries=pg_stat_statements")
        return super().command(*words)


@contextlib.contextmanager
def measured_server(name: str) -> Generator[services.Service]:
    """A server of one's own for the time of a block."""
    if not services.install([name]):
        raise SystemExit(
            f"{name} is missing; as root: apt-get install {services.SERVERS[name].package}"
        )
    if name != "postgres":
        with services.running(name) as service:
            yield service
        return
    folder = Path(tempfile.mkdtemp(prefix="taskmq-bench-postgres-"))
    folder.chmod(0o755)
    pids: list[int] = []
    try:
        url = CountingPostgres().start(folder, pids)
        yield services.Service(name, url, tuple(pids), str(folder))
    finally:
        services.stop(services.Service(name, "", tuple(pids), str(folder)))
