"""What `taskmq doctor` finds about the file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from taskmq.errors import TaskmqError
from taskmq.transport.sqlite.schema import VERSION
from taskmq.transport.types import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskmq.transport.sqlite.database import Database

_LOW_SPACE = 200 * 1024 * 1024
_LARGE_LOG = 256 * 1024 * 1024
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}
)


def findings(database: Database) -> list[Finding]:
    """Look at the file, its schema, its log and its disk."""
    try:
        return list(_look(database))
    except TaskmqError as error:
        return [
            Finding(
                level="error",
                subject="database",
                message=str(error),
                advice="nothing can be enqueued or run until this is mended",
            )
        ]


def _look(database: Database) -> Iterator[Finding]:
    (integrity,) = database.query("PRAGMA quick_check(1)")[0]
    if integrity == "ok":
        yield Finding(level="ok", subject="integrity", message=f"{database.path} is sound")
    else:
        yield Finding(
            level="error",
            subject="integrity",
            message=f"{database.path} is damaged: {integrity}",
            advice="stop all workers, then restore a backup or use sqlite3's .recover",
        )
    (mode,) = database.query("PRAGMA journal_mode")[0]
    yield Finding(
        level="ok" if mode == "wal" else "error",
        subject="journal",
        message=f"journal mode is {mode}",
        advice="" if mode == "wal" else "some other program changed it; set it back to wal",
    )
    yield Finding(level="ok", subject="schema", message=f"schema version {VERSION}")
    yield _log(database.path)
    yield _space(database.path)
    yield _file_system(database.path)


def _log(path: str) -> Finding:
    log = Path(f"{path}-wal")
    size = log.stat().st_size if log.exists() else 0
    large = size > _LARGE_LOG
    return Finding(
        level="warning" if large else "ok",
        subject="log",
        message=f"the write-ahead log has {size / 1e6:,.1f} MB",
        advice="a reader keeps a transaction open and stops its clean-up; end it" if large else "",
    )


def _space(path: str) -> Finding:
    free = shutil.disk_usage(Path(path).parent).free
    low = free < _LOW_SPACE
    size = Path(path).stat().st_size
    return Finding(
        level="warning" if low else "ok",
        subject="space",
        message=f"the file has {size / 1e6:,.1f} MB, {free / 1e6:,.0f} MB are free beside it",
        advice="free some space: a full disk stops every enqueue and settlement" if low else "",
    )


def _file_system(path: str) -> Finding:
    kind = _kind_of_file_system(path)
    network = kind in _NETWORK
    return Finding(
        level="error" if network else "ok",
        subject="file system",
        message=f"the file is on {kind or 'a file system of unknown kind'}",
        advice="locks are not reliable there: move the file to a local disk" if network else "",
    )


def _kind_of_file_system(path: str) -> str:
    """The type of the mount that the file is on, where the system tells."""
    real = os.path.realpath(path)
    best, kind = "", ""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind
