"""The built-in sinks: what they write."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import Any

import pytest

from taskmq.config import Config
from taskmq.events import Event
from taskmq.sinks import LogSink, NullSink, StdoutSink

EVENTS = [
    Event(type="task.succeeded", at=1_700_000_000.25, job="01J", task="app.send", attempt=1),
    Event(type="task.failed", at=1_700_000_001.0, job="01K", data={"error": "a b\n\x1b[31mc"}),
]


class CountingStream(io.StringIO):
    """Counts the writes."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


def test_stdout_writes_a_json_line_for_each_event_in_one_call() -> None:
    stream = CountingStream()

    StdoutSink(stream=stream).emit(EVENTS)

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines == [
        {
            "type": "task.succeeded",
            "at": 1_700_000_000.25,
            "job": "01J",
            "task": "app.send",
            "attempt": 1,
        },
        {
            "type": "task.failed",
            "at": 1_700_000_001.0,
            "job": "01K",
            "data": {"error": "a b\n\x1b[31mc"},
        },
    ]
    assert stream.writes == 1


def test_stdout_writes_lines_for_people_without_control_characters() -> None:
    stream = io.StringIO()

    StdoutSink("pretty", stream).emit(EVENTS)

    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d task.succeeded app.send 01J", first)
    assert r"error='a b\n\x1b[31mc'" in second
    assert "\x1b" not in second


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_stdout_escapes_what_its_stream_can_not_take(encoding: str) -> None:
    odd = Event(type="task.failed", at=1.0, task="naïve → 雪", data={"line": "a\u2028b"})
    lines = io.TextIOWrapper(io.BytesIO(), encoding)
    pretty = io.TextIOWrapper(io.BytesIO(), encoding)

    StdoutSink("json", lines).emit([odd, odd])
    StdoutSink("pretty", pretty).emit([odd])

    lines.seek(0)
    assert [json.loads(line)["task"] for line in lines] == [odd.task, odd.task]
    pretty.seek(0)
    assert "\\u2192" in pretty.read()


def test_stdout_finds_the_stream_when_it_writes(capsys: pytest.CaptureFixture[str]) -> None:
    StdoutSink.from_config(Config(log_format="pretty")).emit(EVENTS[:1])

    assert "task.succeeded" in capsys.readouterr().out


def test_stdout_says_nothing_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    StdoutSink().emit(EVENTS)


def test_long_data_is_cut() -> None:
    stream = io.StringIO()

    StdoutSink("pretty", stream).emit([Event(type="x", at=1.0, data={"text": "y" * 10_000})])

    assert len(stream.getvalue()) < 500


def test_log_tells_failures_from_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "taskmq.events")

    LogSink().emit(EVENTS)

    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "app.send 01J" in caplog.records[0].message
    assert vars(caplog.records[1])["taskmq_event"] is EVENTS[1]


def test_null_takes_everything_and_does_nothing() -> None:
    NullSink().emit(EVENTS)


def test_lines_for_people_leave_out_what_goes_without_saying() -> None:
    stream = io.StringIO()
    job = "01JDABCDEFGHJKMNPQRSTVWXYZ"
    plain: dict[str, Any] = {
        "at": 1.0,
        "job": job,
        "task": "shop.tasks.send",
        "worker": "host-1-ab",
    }
    events = [
        Event(type="worker.started", at=1.0, worker="host-1-ab", data={"concurrency": 4}),
        Event(type="task.started", **plain, queue="default", attempt=1, data={"deliveries": 1}),
        Event(type="task.started", **plain, queue="email", attempt=2, data={"deliveries": 3}),
        Event(
            type="task.succeeded", **plain, queue="email", attempt=1, data={"duration": 0.0123456}
        ),
        Event(type="task.retrying", **plain, attempt=1, data={"delay": 12.0, "error": "OSError"}),
    ]

    StdoutSink("pretty", stream).emit(events)

    assert [line[9:] for line in stream.getvalue().splitlines()] == [
        "worker.started worker=host-1-ab concurrency=4",
        f"task.started   shop.tasks.send {job}",
        f"task.started   shop.tasks.send {job} queue=email attempt=2 deliveries=3",
        f"task.succeeded shop.tasks.send {job} duration=0.0123",
        f"task.retrying  shop.tasks.send {job} delay=12 error=OSError",
    ]
