"""The built-in transport on one SQLite file."""

from __future__ import annotations

from taskmq.transport.sqlite.transport import SqliteTransport

__all__ = ["SqliteTransport"]
