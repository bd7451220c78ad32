"""The `taskmq` command. A command of your own builds on `TaskmqCommand` and `Session`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskmq_cli.errors import Failure, Misuse
    from taskmq_cli.group import TaskmqCommand, TaskmqGroup
    from taskmq_cli.session import Session, pass_session

    __version__: str

__all__ = [
    "Failure",
    "Misuse",
    "Session",
    "TaskmqCommand",
    "TaskmqGroup",
    "__version__",
    "pass_session",
]

_HOMES = {
    "Failure": "taskmq_cli.errors",
    "Misuse": "taskmq_cli.errors",
    "Session": "taskmq_cli.session",
    "TaskmqCommand": "taskmq_cli.group",
    "TaskmqGroup": "taskmq_cli.group",
    "pass_session": "taskmq_cli.session",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("taskmq-cli")
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
