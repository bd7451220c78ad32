"""Events: what happens, told to sinks that can neither slow nor break a job."""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from taskmq.clock import SYSTEM_CLOCK, Clock
from taskmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

    from taskmq.config import Config
    from taskmq.plugins import Plugins

logger = logging.getLogger("taskmq.events")


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that happened. Only the fields that apply are set; `data` has the rest."""

    type: str
    """What happened: "task.succeeded", "worker.started" …"""
    at: float
    """When, in UTC seconds since the epoch, by the clock of the process that tells it."""
    job: str | None = None
    """The job's id."""
    task: str | None = None
    """The task's name."""
    queue: str | None = None
    """The job's queue."""
    attempt: int | None = None
    """The number of the attempt, from 1."""
    worker: str | None = None
    """The worker's id; None in producers."""
    data: dict[str, Any] = {}
    """What else there is to say, by type."""


class EventSink(ABC):
    """Where events go. `emit` gets them in batches, on a thread of the sink's own.

    ```python
    class Counter(EventSink):
        def emit(self, events):
            for event in events:
                statsd.incr(event.type)
    ```
    """

    immediate: ClassVar[bool] = False
    """Deliver at once, on the thread that emits: only for sinks that do no more than remember."""
    in_producers: ClassVar[bool] = True
    """Whether a process that only submits jobs uses this sink when `Config.events` names it."""

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Make the sink that `Config.events` names."""
        return cls()

    @abstractmethod
    def emit(self, events: Sequence[Event]) -> None:
        """Take a batch, oldest first. What it raises is logged, and the batch is lost."""

    def close(self) -> None:
        """Free what the sink holds; nothing is emitted afterwards."""


class CollectingSink(EventSink):
    """Remembers all events, for tests."""

    immediate = True

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, events: Sequence[Event]) -> None:
        """Append them to `events`."""
        self.events.extend(events)

    def of(self, type: str) -> list[Event]:
        """The events of one type, in order."""
        return [event for event in self.events if event.type == type]


class EventBus:
    """Hands events to sinks, each of which has its own bounded queue and thread.

    While no sink wants events, `enabled` is False and `emit` returns at once; callers that would
    have to gather data for an event ask it first.
    """

    def __init__(
        self,
        sinks: Iterable[EventSink] = (),
        *,
        clock: Clock = SYSTEM_CLOCK,
        max_queued: int = 10_000,
    ) -> None:
        self.enabled = False
        self._clock = clock
        self._max_queued = max_queued
        self._feeds: list[_Feed] = []
        for sink in sinks:
            self.add(sink)

    @property
    def dropped(self) -> int:
        """How many events were dropped because a sink was too slow."""
        return sum(feed.dropped for feed in self._feeds)

    def add(self, sink: EventSink) -> None:
        """Let a sink take part from now on.

        Raises:
            ConfigError: It has no `emit`.
        """
        if isinstance(sink, type) or not callable(getattr(sink, "emit", None)):
            raise ConfigError(f"a sink is an object with emit(events), not {sink!r:.80}")
        if getattr(sink, "ignores_all", False):
            return
        self._feeds = [*self._feeds, _Feed(sink, self._max_queued)]
        self.enabled = True

    def emit(
        self,
        type: str,
        *,
        job: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        attempt: int | None = None,
        worker: str | None = None,
        **data: Any,
    ) -> None:
        """Tell what happened, now. Never blocks and never raises."""
        if not self.enabled:
            return
        event = Event(
            type=type,
            at=self._clock.time(),
            job=job,
            task=task,
            queue=queue,
            attempt=attempt,
            worker=worker,
            data=data,
        )
        for feed in self._feeds:
            feed.put(event)

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until the sinks have taken what was emitted so far; False when time was over."""
        deadline = SYSTEM_CLOCK.monotonic() + timeout
        flushed = True
        for feed in self._feeds:
            flushed &= feed.flush(deadline - SYSTEM_CLOCK.monotonic())
        return flushed

    def close(self, timeout: float = 5.0) -> None:
        """Flush and close the sinks. What is emitted afterwards is dropped."""
        self.enabled = False
        feeds, self._feeds = self._feeds, []
        deadline = SYSTEM_CLOCK.monotonic() + timeout
        for feed in feeds:
            feed.close(deadline - SYSTEM_CLOCK.monotonic())


class _Feed:
    """One sink's queue and thread.

    `put` must cost next to nothing: it appends to a bounded deque and wakes the thread only when
    that sleeps. The thread lingers after each wake-up, so that a stream of events costs a few
    dozen wake-ups a second rather than one an event.
    """

    LINGER = 0.02
    IDLE = 1.0

    def __init__(self, sink: EventSink, max_queued: int) -> None:
        self.sink = sink
        self.dropped = 0
        self._immediate = bool(getattr(sink, "immediate", False))
        self._max_queued = max_queued
        self._failed = False
        self.reset()
        _feeds.add(self)

    def reset(self) -> None:
        self._queue: deque[Event] = deque(maxlen=self._max_queued)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._wanted = threading.Event()
        self._hurry = threading.Event()
        self._asleep = True
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, event: Event) -> None:
        if self._immediate:
            self._deliver([event])
            return
        with self._lock:
            if len(self._queue) == self._max_queued:
                self.dropped += 1
            self._queue.append(event)
            if not self._asleep or self._closed:
                return
            self._asleep = False
            if self._thread is None and not self._start():
                # Too many threads, or the interpreter ends: the next event tries again.
                self._asleep = True
                return
        self._wanted.set()

    def flush(self, timeout: float) -> bool:
        with self._idle:
            if self._asleep:
                return True
            self._hurry.set()
            return self._idle.wait_for(lambda: self._asleep, max(timeout, 0.0))

    def close(self, timeout: float) -> None:
        self.flush(timeout)
        self._closed = True
        self._hurry.set()
        self._wanted.set()
        if (close := getattr(self.sink, "close", None)) is not None:
            self._guarded(close)

    def _start(self) -> bool:
        # A daemon: a sink that hangs must not keep the process from ending.
        name = f"taskmq-events-{type(self.sink).__name__}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while not self._closed:
            if not self._wanted.wait(self.IDLE) and self._retire():
                return
            self._wanted.clear()
            self._hurry.wait(self.LINGER)
            while batch := self._take():
                self._deliver(batch)

    def _retire(self) -> bool:
        """End an idle thread, so that a bus nobody closed leaves none behind."""
        with self._lock:
            if self._queue:
                return False
            self._thread = None
            return True

    def _take(self) -> list[Event]:
        with self._idle:
            batch = list(self._queue)
            self._queue.clear()
            if not batch:
                self._asleep = True
                self._hurry.clear()
                self._idle.notify_all()
            return batch

    def _deliver(self, batch: list[Event]) -> None:
        self._guarded(self.sink.emit, batch)

    def _guarded(self, function: Callable[..., object], *args: object) -> None:
        try:
            function(*args)
        # A sink may raise anything, SystemExit and asyncio's CancelledError too, and must break nobody.
        # A series of failures is logged once.
        except BaseException as error:
            if self._immediate and isinstance(error, KeyboardInterrupt):
                raise
            if not self._failed:
                self._failed = True
                logger.exception("the event sink %s failed; its events are lost", type(self.sink))
        else:
            self._failed = False


_feeds: weakref.WeakSet[_Feed] = weakref.WeakSet()


def _reset_feeds() -> None:
    for feed in list(_feeds):
        feed.reset()


if hasattr(os, "register_at_fork"):
    # A forked child has the queue but not the thread, and its lock may be held for ever.
    os.register_at_fork(after_in_child=_reset_feeds)


def make_sink(config: Config, plugins: Plugins, *, producer: bool = False) -> EventSink | None:
    """Make the sink that `Config.events` names; None when a producer is to be silent.

    Raises:
        ConfigError: No plugin brings a sink of that name.
    """
    factory: Any = plugins.resolve("sinks", config.events)
    if producer and not getattr(factory, "in_producers", True):
        return None
    from_config: Any = getattr(factory, "from_config", None)
    return cast("EventSink", from_config(config) if from_config is not None else factory())


_encoder = msgspec.json.Encoder(enc_hook=repr)
_decoder = msgspec.json.Decoder(Event)


def event_to_json(event: Event) -> bytes:
    """Encode an event as one JSON object, whatever its data holds."""
    try:
        return _encoder.encode(event)
    # Lone surrogates, huge ints, cycles: shown as well as can be, never lost.
    except (UnicodeEncodeError, OverflowError, RecursionError, TypeError, msgspec.MsgspecError):
        fields = msgspec.structs.asdict(event)
        fields["data"] = {str(key): repr(value)[:1000] for key, value in event.data.items()}
        shown = {key: value for key, value in fields.items() if value is not None}
        return json.dumps(shown, default=repr).encode()


def event_from_json(data: bytes) -> Event:
    """Decode what `event_to_json` wrote."""
    return _decoder.decode(data)
