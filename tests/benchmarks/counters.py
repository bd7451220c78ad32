"""What a server counted between two moments: round trips, commands, commits, WAL, its CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

import psutil

UNITS = {
    "round trips": "/100 jobs",
    "scripts": "/100 jobs",
    "commands": "/job",
    "commits": "/100 jobs",
    "statements": "/100 jobs",
    "WAL": "bytes/job",
    "CPU of the server": "ms/1,000",
}
_FACTORS = {"/100 jobs": 100, "/job": 1, "bytes/job": 1, "ms/1,000": 1e6}


class Counters(Protocol):
    """Counts that only rise."""

    lag: float
    """How long the server may take to show what it counted, seconds."""

    def read(self) -> dict[str, float]: ...


class NoCounters:
    """A backend without a server."""

    lag = 0.0

    def read(self) -> dict[str, float]:
        return {}


class RedisCounters:
    """`INFO`: its reads of sockets are the round trips, whatever was pipelined or scripted."""

    lag = 0.0

    def __init__(self, client: Any) -> None:
        self._client = client

    def read(self) -> dict[str, float]:
        stats, cpu = self._client.info("stats"), self._client.info("cpu")
        each = self._client.info("commandstats")
        scripts = sum(
            each.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval")
        )
        return {
            "round trips": stats["total_reads_processed"],
            "scripts": scripts,
            "commands": stats["total_commands_processed"],
            "CPU of the server": cpu["used_cpu_user"] + cpu["used_cpu_sys"],
        }


class PostgresCounters:
    """`pg_stat_database` and, where it is loaded, `pg_stat_statements`; the CPU of a server of our own."""

    lag = 1.2

    def __init__(self, admin: Any, database: str, pids: tuple[int, ...]) -> None:
        self._admin = admin
        self._database = database
        self._pids = pids
        (loaded,) = admin.execute(
            "SELECT current_setting('shared_preload_libraries') LIKE '%pg_stat_statements%'"
        ).fetchone()
        self._statements = bool(loaded)
        if loaded:
            admin.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def read(self) -> dict[str, float]:
        row = self._admin.execute(
            "SELECT xact_commit, pg_current_wal_insert_lsn() - '0/0'::pg_lsn, oid FROM pg_database"
            " JOIN pg_stat_database ON datid = oid WHERE pg_database.datname = %s",
            [self._database],
        ).fetchone()
        found: dict[str, float] = {"commits": float(row[0]), "WAL": float(row[1])}
        if self._statements:
            (calls,) = self._admin.execute(
                "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE dbid = %s", [row[2]]
            ).fetchone()
            found["statements"] = float(calls)
        if self._pids:
            found["CPU of the server"] = tree_cpu(self._pids[0])
        return found


def tree_cpu(pid: int) -> float:
    """CPU seconds of a process and all its descendants, the ended ones too."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
                total += times.children_user + times.children_system
    return total


def tree_rss_mib(pid: int) -> float:
    """Peak resident memory of a process and its descendants, added up."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += _peak(process)
    return total / 1024 / 1024


def _peak(process: psutil.Process) -> int:
    from pathlib import Path

    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)


def per_job(
    before: Mapping[str, float], after: Mapping[str, float], jobs: int
) -> dict[str, tuple[str, float]]:
    """What was counted a job (or 100, or 1,000): name to unit and value."""
    return {
        name: (UNITS[name], (after[name] - before[name]) / jobs * _FACTORS[UNITS[name]])
        for name in UNITS
        if name in after
    }
