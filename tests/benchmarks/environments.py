"""Peers, and the environments they run in: their pins of redis-py clash with each other's and ours."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Peer:
    """What a peer needs, and how it was set up here; its driver is `peers/NAME.py`."""

    name: str
    packages: tuple[str, ...]
    backends: frozenset[str]
    settings: str
    consumes: float = 1.0
    """Which share of the jobs of a run it consumes: slow ones get fewer."""


def _peer(
    name: str, packages: str, backends: str, settings: str, consumes: float = 1.0
) -> tuple[str, Peer]:
    where = frozenset(backends.split())
    return name, Peer(name, tuple(packages.split()), where, settings, consumes)


PEERS: Mapping[str, Peer] = dict(
    [
        _peer(
            "celery",
            "celery[redis]",
            "redis",
            "1 process, 10 threads, acks before the work, prefetch x50, no results; bulk: group()",
            0.3,
        ),
        _peer(
            "dramatiq",
            "dramatiq[redis]",
            "redis",
            "1 process, 10 threads, acks after the work, no results; no bulk",
        ),
        _peer(
            "huey",
            "huey redis psycopg[binary]",
            "redis postgres sqlite",
            "1 process, 10 threads, off the queue before the work, results only on sqlite; no bulk",
            0.5,
        ),
        _peer(
            "taskiq",
            "taskiq taskiq-redis",
            "redis",
            "streams, 1 process, 10 coroutines, acks after the work, no results; no bulk",
        ),
        _peer(
            "rq",
            "rq",
            "redis",
            "SimpleWorker, one job at a time, no results; bulk: enqueue_many of 1,000",
            0.1,
        ),
        _peer(
            "arq",
            "arq",
            "redis",
            "1 process, 10 coroutines, polls each 10 ms (0.5 s as it comes), no results; no bulk",
            0.4,
        ),
        _peer(
            "saq",
            "saq[redis,postgres] hiredis psycopg[binary,pool]",
            "redis postgres",
            "1 process, 10 coroutines, acks after the work, no results; no bulk",
            0.4,
        ),
        _peer(
            "procrastinate",
            "procrastinate psycopg[binary]",
            "postgres",
            "1 process, 10 coroutines, rows of done jobs stay; bulk: batch_defer of 1,000",
            0.2,
        ),
        _peer(
            "pgqueuer",
            "pgqueuer asyncpg",
            "postgres",
            "1 process, batches of 100, no cap, buffered acks, rows deleted; bulk: lists of 1,000",
        ),
    ]
)


def chosen(names: str, backend: str) -> list[Peer]:
    """The peers of a comma-separated list that run on a backend; refuses names that mean nothing."""
    known = [peer.name for peer in PEERS.values() if backend in peer.backends]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(
            f"no peer {', '.join(unknown)} on {backend}; there {'is' if len(known) == 1 else 'are'}: "
            f"{', '.join(known) or 'none'}"
        )
    return [PEERS[name] for name in wanted]


def python_of(peer: Peer) -> str:
    """The interpreter of a peer's environment, which is made where it is missing or outdated."""
    folder = ROOT / ".venv-peers" / peer.name
    python, note = folder / "bin" / "python", folder / "made-for"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    asked = hashlib.sha256(f"{version} {peer.packages}".encode()).hexdigest()
    if python.exists() and note.exists() and note.read_text() == asked:
        return str(python)
    print(f"installing {peer.name} into {folder.relative_to(ROOT)} …", file=sys.stderr, flush=True)
    uv = _uv()
    for words in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", str(python), *peer.packages],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"can't install {peer.name}:\n{done.stderr}")
    note.write_text(asked)
    return str(python)


def version_of(peer: Peer) -> str:
    """The peer's version, as installed."""
    code = f"from importlib.metadata import version; print(version({peer.name!r}))"
    done = subprocess.run([python_of(peer), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("peers need uv to make their environments: pip install uv")
    return found
