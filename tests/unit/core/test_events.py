"""Events: a sink never slows or breaks what emits them."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.waiting import wait_until
from taskmq.clock import FakeClock
from taskmq.config import Config
from taskmq.errors import ConfigError
from taskmq.events import (
    CollectingSink,
    Event,
    EventBus,
    EventSink,
    event_from_json,
    event_to_json,
    make_sink,
)
from taskmq.plugins import Plugins
from taskmq.sinks import LogSink, NullSink, StdoutSink

if TYPE_CHECKING:
    from collections.abc import Sequence


class Gate(EventSink):
    """A sink that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[list[str]] = []
        self.closed = 0

    def emit(self, events: Sequence[Event]) -> None:
        assert self.open.wait(10)
        self.batches.append([event.type for event in events])

    def close(self) -> None:
        self.closed += 1

    @property
    def types(self) -> list[str]:
        return [type_ for batch in self.batches for type_ in batch]


class Broken(EventSink):
    """A sink that fails."""

    def emit(self, events: Sequence[Event]) -> None:
        raise RuntimeError("sink down")

    def close(self) -> None:
        raise RuntimeError("can't close")


def test_without_sinks_no_event_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmq.events.Event", lambda **_: pytest.fail("built"))
    bus = EventBus([NullSink()])

    assert not bus.enabled
    bus.emit("task.succeeded", job="1")
    assert bus.flush(0)


def test_an_event_carries_what_it_was_told_and_when() -> None:
    sink = CollectingSink()
    bus = EventBus([sink], clock=FakeClock(50.0))

    bus.emit("task.succeeded", job="1", task="t", queue="q", attempt=2, worker="w", took=1.5)
    bus.emit("worker.started")

    assert sink.events == [
        Event(
            type="task.succeeded",
            at=50.0,
            job="1",
            task="t",
            queue="q",
            attempt=2,
            worker="w",
            data={"took": 1.5},
        ),
        Event(type="worker.started", at=50.0),
    ]
    assert sink.of("worker.started") == sink.events[1:]


def test_events_reach_a_sink_in_order_and_in_batches() -> None:
    gate = Gate()
    bus = EventBus([gate])

    for number in range(1000):
        bus.emit(f"e{number}")
    gate.open.set()

    assert bus.flush(10)
    assert gate.types == [f"e{number}" for number in range(1000)]
    assert len(gate.batches) < 20
    bus.close()


def test_emitting_never_waits_for_a_stuck_sink_and_the_oldest_are_dropped() -> None:
    gate = Gate()
    bus = EventBus([gate], max_queued=10)
    bus.emit("first")
    wait_until(lambda: not bus._feeds[0]._queue)

    for number in range(25):
        bus.emit(f"e{number}")

    assert bus.dropped == 15
    assert not bus.flush(0.01)
    gate.open.set()
    assert bus.flush(10)
    assert gate.types == ["first", *(f"e{number}" for number in range(15, 25))]
    bus.close()


def test_a_stuck_sink_holds_up_no_other() -> None:
    stuck, free = Gate(), Gate()
    free.open.set()
    bus = EventBus([stuck, free])

    bus.emit("e")

    wait_until(lambda: free.types == ["e"])
    assert stuck.types == []
    stuck.open.set()
    bus.close()


def test_a_broken_sink_breaks_nobody_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = CollectingSink()
    bus = EventBus([Broken(), good])

    for _ in range(3):
        bus.emit("e")
        assert bus.flush(10)
    bus.close()

    assert len(good.events) == 3
    assert caplog.text.count("the event sink") == 1
    assert "sink down" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("immediate", [True, False])
def test_a_sink_may_raise_what_is_no_exception_and_hears_the_next_event(
    error: type[BaseException], immediate: bool
) -> None:
    heard: list[str] = []

    class Leaving(EventSink):
        def emit(self, events: Sequence[Event]) -> None:
            heard.extend(event.type for event in events)
            raise error

    Leaving.immediate = immediate
    bus = EventBus([Leaving()])
    bus.emit("first")
    assert bus.flush(10)
    bus.emit("second")
    assert bus.flush(10)
    bus.close()
    assert heard == ["first", "second"]


def test_emitting_without_a_thread_to_be_had_raises_nothing_and_tells_it_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sink = Gate()
    sink.open.set()
    bus = EventBus([sink])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        bus.emit("first")
    bus.emit("second")
    assert bus.flush(10)
    assert sink.types == ["first", "second"]
    bus.close()


def test_closing_flushes_closes_the_sinks_and_drops_what_comes_later() -> None:
    gate = Gate()
    gate.open.set()
    bus = EventBus([gate])
    bus.emit("before")

    bus.close()
    bus.close()
    bus.emit("after")

    assert (gate.types, gate.closed) == (["before"], 1)
    assert not bus.enabled


def test_closing_does_not_wait_longer_than_told_for_a_stuck_sink() -> None:
    gate = Gate()
    bus = EventBus([gate])
    bus.emit("e")

    bus.close(timeout=0.05)

    assert gate.closed == 1
    gate.open.set()


def test_the_thread_of_an_idle_sink_ends_and_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taskmq.events._Feed.IDLE", 0.01)
    gate = Gate()
    gate.open.set()
    bus = EventBus([gate])
    bus.emit("one")
    feed = bus._feeds[0]
    wait_until(lambda: feed._thread is None)

    bus.emit("two")

    assert bus.flush(10)
    assert gate.types == ["one", "two"]


@pytest.mark.parametrize("sink", [CollectingSink, None, object()])
def test_what_is_no_sink_is_refused(sink: Any) -> None:
    with pytest.raises(ConfigError, match="a sink is an object with emit"):
        EventBus().add(sink)


def test_the_configured_sink_is_made_and_stdout_is_silent_in_producers() -> None:
    plugins = Plugins()

    assert isinstance(make_sink(Config(), plugins), StdoutSink)
    assert make_sink(Config(), plugins, producer=True) is None
    assert isinstance(make_sink(Config(events="log"), plugins, producer=True), LogSink)
    assert isinstance(make_sink(Config(events="null"), plugins), NullSink)
    plugins.register("sinks", "mine", CollectingSink)
    plugins.register("sinks", "made", lambda: CollectingSink())
    assert isinstance(make_sink(Config(events="mine"), plugins), CollectingSink)
    assert isinstance(make_sink(Config(events="made"), plugins), CollectingSink)
    with pytest.raises(ConfigError, match="no plugin brings the event sink 'otel'"):
        make_sink(Config(events="otel"), plugins)


texts = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    texts, st.none() | texts, st.none() | st.integers(1, 100), st.dictionaries(texts, json_values)
)
def test_events_survive_a_round_trip_through_json(
    type_: str, job: str | None, attempt: int | None, data: dict[str, Any]
) -> None:
    event = Event(type=type_, at=1.5, job=job, attempt=attempt, data=data)

    assert event_from_json(event_to_json(event)) == event


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("odd", ["\ud800", object(), 2**100, {1, 2}, _cycle(), float("nan")])
def test_whatever_the_data_holds_an_event_becomes_one_json_line(odd: Any) -> None:
    line = event_to_json(Event(type="task.failed", at=1.0, job="j", data={"odd": odd}))

    assert b"\n" not in line
    shown = json.loads(line)
    assert (shown["type"], shown["job"]) == ("task.failed", "j")
    assert "odd" in shown["data"]
