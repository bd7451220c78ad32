"""The built-in event sinks: `stdout`, `log` and `null`."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, ClassVar, Literal, TextIO

from taskmq.events import Event, EventSink, event_to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.config import Config


class LogSink(EventSink):
    """Writes events to the logger `taskmq.events`, failures as warnings."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("taskmq.events")

    def emit(self, events: Sequence[Event]) -> None:
        """Log each of them, with the event as `record.taskmq_event`."""
        for event in events:
            level = logging.WARNING if event.type in _NOTABLE else logging.INFO
            if self._logger.isEnabledFor(level):
                self._logger.log(level, "%s", describe(event), extra={"taskmq_event": event})


class NullSink(EventSink):
    """Takes no events; with it alone none are built."""

    ignores_all: ClassVar[bool] = True

    def emit(self, events: Sequence[Event]) -> None:
        """Do nothing."""


class StdoutSink(EventSink):
    """Writes events to standard output: JSON lines, or lines for people. Silent in producers."""

    in_producers = False

    def __init__(
        self, format: Literal["json", "pretty"] = "json", stream: TextIO | None = None
    ) -> None:
        self._pretty = format == "pretty"
        self._stream = stream

    @classmethod
    def from_config(cls, config: Config) -> StdoutSink:
        """Make one that writes as `Config.log_format` says."""
        return cls(config.log_format)

    def emit(self, events: Sequence[Event]) -> None:
        """Write the batch with one call."""
        line = _pretty_line if self._pretty else _json_line
        # None in a process without standard output, whatever the stubs say.
        stream: TextIO | None = self._stream or sys.stdout
        if stream is None:
            return
        text = "".join(map(line, events))
        try:
            stream.write(text)
        except UnicodeEncodeError:
            # A terminal or pipe without UTF-8. JSON has escapes for what it can't take.
            text = "".join(map(_plain_line, events)) if self._pretty else _escaped(text)
            stream.write(text)
        stream.flush()


_NOTABLE = frozenset(
    {
        "task.failed",
        "task.dropped",
        "task.hook_error",
        "transport.error",
        "workflow.failed",
        "worker.unhealthy",
    }
)


def describe(event: Event) -> str:
    """An event as one line of text without its time."""
    parts = [f"{event.type:<16}"]
    parts += [part for part in (event.task, event.job) if part]
    named = {"queue": event.queue, "attempt": event.attempt, "worker": event.worker, **event.data}
    parts += [f"{key}={_short(value)}" for key, value in named.items() if value is not None]
    return " ".join(parts)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    if len(text) > 300:
        text = text[:299] + "…"
    return text if text.isprintable() and " " not in text else ascii(text)


def _json_line(event: Event) -> str:
    return event_to_json(event).decode() + "\n"


def _escaped(lines: str) -> str:
    # Whatever is not ASCII stands within a string.
    return "".join(json.dumps(json.loads(line)) + "\n" for line in lines.split("\n")[:-1])


def _plain_line(event: Event) -> str:
    return _pretty_line(event).encode("ascii", "backslashreplace").decode()


def _pretty_line(event: Event) -> str:
    at = datetime.fromtimestamp(event.at, timezone.utc).astimezone()
    return f"{at:%H:%M:%S} {_told(event)}\n"


def _told(event: Event) -> str:
    """An event for people: what goes without saying is left out, numbers are rounded."""
    parts = [f"{event.type:<14}", event.task or "", event.job or ""]
    # A terminal mostly shows one worker: its name is told once.
    worker = event.worker if event.type == "worker.started" else None
    named = {"queue": event.queue, "attempt": event.attempt, "worker": worker, **event.data}
    for key, value in named.items():
        if value is None or value == "" or _USUAL.get(key) == value:
            continue
        if key == "queue" and event.type not in _WITH_QUEUE:
            continue
        shown = f"{value:.3g}" if isinstance(value, float) else _short(value)
        parts.append(f"{key}={shown}")
    return " ".join(part for part in parts if part)


_USUAL = {"attempt": 1, "deliveries": 1, "priority": 0, "queue": "default"}
_WITH_QUEUE = frozenset({"task.submitted", "task.started"})
