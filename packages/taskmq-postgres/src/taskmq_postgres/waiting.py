"""Blocking calls: one listening connection a process, and who in this process sleeps for what.

What the SQL side promises (migrations, `sleepers` and `watches`):

- Nobody is notified who does not sleep, and nothing is sent while nobody sleeps. A sleeper is a row
  (name, channel, queues, until). Each process LISTENs on one channel of its own, an identifier of
  the form `taskmq_<32 hex digits>`, and passes it with each sleeper, so that a notification wakes
  one process only. The payload is the sleeper's name (a worker id, or a waiter's name), nothing else.
- `sleep_1(name text, channel text, queues text[], seconds float8) -> boolean` says "about to
  sleep", then probes: true means that something of these queues is visible now (or due), so do not
  sleep. False: block until a notification with this name comes. `seconds` bounds the life of the row.
- Whoever makes n messages of a queue ready, or due at a new time, takes at most n sleepers of that
  queue out of the table and notifies them in the same transaction: one wake-up a message, no herd, and
  that is the debounce (a worker that is awake costs no NOTIFY). `revoke` of a held job wakes its
  worker in the same way, by its name.
- `probe_1(queues text[]) -> boolean` is the cheap look (index only, never the claim query). An enqueue
  that had looked for sleepers before `sleep_1` committed and commits after its probe notifies nobody:
  so probe again about 20 ms after falling asleep, and then at least every second. That also covers lost
  notifications. Without LISTEN (pooler, dead listener) the probe is the polling.
- `awake_1(name text)` takes the sleeper out again (time over, or woken by a local `wake`).
- `watch_1(name text, channel text, ids text[], seconds float8) -> setof text` registers for the ends of
  jobs and returns the ids that have not ended (unknown ones count as ended). Each end of a watched
  job notifies its watchers (payload: the name) and removes that watch. `pending_1(ids text[]) -> setof
  text` only looks; `unwatch_1(name text)` removes what is left. The same 20 ms rule.

Function names here stand for `{prefix}…` in `{schema}`, quoted by `Database.names`.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal

from taskmq.errors import TransportError
from taskmq_postgres import arrays
from taskmq_postgres.jobs import Jobs
from taskmq_postgres.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import JobRecord
    from taskmq_postgres.database import Database

_PROBE: Final = (
    "SELECT {probe_1}(%s), ARRAY("
    "SELECT format('%%s:%%s', m.job, m.attention) FROM {messages} m "
    "WHERE m.worker = %s AND m.attention <> 0 AND m.attention & 5 <> 0)"
)
_SETTLED: Final = 0.02
"""When to look again after falling asleep: by then an enqueue that missed us has committed."""
_LOOK_AGAIN: Final = 1.0
"""How often to look while notifications arrive, seconds."""
_POLL: Final = (0.02, 0.2)
"""How often to look while none do: first, and after a while."""
_EARLY_LIMIT: Final = 1_000
_START: Final = 0.25
"""How long the first who waits gives the listener to be heard."""


class Sleeper:
    """One blocked call."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.told = False
        self.called = False

    def tell(self) -> None:
        """A notification has come."""
        self.told = True
        self._event.set()

    def call(self) -> None:
        """Somebody in this process wants the call to return."""
        self.called = True
        self._event.set()

    def rest(self) -> None:
        """Make ready for another sleep after a notification."""
        self.told = False
        self._event.clear()
        if self.called:
            self._event.set()

    def sleep(self, seconds: float) -> bool:
        """Whether it was ended before the time was over."""
        return self._event.wait(max(0.0, min(seconds, threading.TIMEOUT_MAX)))


class Bedroom:
    """Who sleeps in this process under which name, and the listener that wakes them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._sleepers: dict[str, list[Sleeper]] = {}
        self._early: OrderedDict[str, None] = OrderedDict()
        self._listener: Listener | None = None
        self._closed = False

    def enter(self, name: str, also: str | None = None) -> Sleeper:
        """Register a blocked call; it is called at once when it was woken before it began."""
        self._start_anew_in_a_child()
        sleeper = Sleeper()
        with self._lock:
            for each in (name, also):
                if each is not None:
                    self._sleepers.setdefault(each, []).append(sleeper)
                    if self._early.pop(each, True) is None:
                        sleeper.call()
            if self._closed:
                sleeper.call()
        return sleeper

    def leave(self, name: str, sleeper: Sleeper, also: str | None = None) -> None:
        """The call has returned."""
        with self._lock:
            for each in (name, also):
                group = self._sleepers.get(each, []) if each is not None else []
                if sleeper in group:
                    group.remove(sleeper)
                if each is not None and not group:
                    self._sleepers.pop(each, None)

    def wake(self, name: str) -> None:
        """Make the present calls of this name return, or its next one."""
        self._start_anew_in_a_child()
        with self._lock:
            group = list(self._sleepers.get(name, ()))
            if not group:
                self._early[name] = None
                if len(self._early) > _EARLY_LIMIT:
                    self._early.popitem(last=False)
        for sleeper in group:
            sleeper.call()

    def listener(self) -> Listener:
        """The listener of this process."""
        listener = self._listener
        if listener is None:
            with self._lock:
                listener = self._listener
                if listener is None:
                    listener = self._listener = Listener(self._database, self._tell)
        return listener

    def describe(self) -> str:
        """How sleepers here are woken, as far as is known now."""
        if self._database.settings.listen is None:
            return "polling"
        listener = self._listener
        if listener is None or not listener.error:
            return "LISTEN/NOTIFY"
        return f"polling: {listener.error}"

    def close(self) -> None:
        """Let every blocked call return."""
        self._start_anew_in_a_child()
        with self._lock:
            self._closed = True
            sleeping = [sleeper for group in self._sleepers.values() for sleeper in group]
            listener, self._listener = self._listener, None
        for sleeper in sleeping:
            sleeper.call()
        if listener is not None:
            listener.close()

    def _start_anew_in_a_child(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            # Held, perhaps, by a thread that the fork left behind; so is the parent's listener.
            self._lock = threading.Lock()
            self._sleepers, self._listener = {}, None

    def _tell(self, name: str) -> None:
        with self._lock:
            group = list(self._sleepers.get(name, ()))
        for sleeper in group:
            sleeper.tell()


class Waiting(Jobs):
    """`wait`, `wake` and `wait_jobs`."""

    _bedroom: Bedroom
    _streaks: dict[str, int]
    """How often in a row a worker was told to look at once."""
    _known_calls: dict[str, frozenset[str]]
    """Which of its jobs are revoked, as each worker has been told."""

    def wait(self, worker: str, queues: Sequence[str], timeout: float) -> bool:
        """See the contract."""
        deadline = time.monotonic() + timeout
        sleeper = self._bedroom.enter(worker)
        try:
            if sleeper.called or timeout <= 0:
                return sleeper.called
            return self._sleep_for_messages(worker, sleeper, arrays.texts(queues), deadline)
        except TransportError:
            if not self._database.closed:
                raise
            return True
        finally:
            self._bedroom.leave(worker, sleeper)

    def wake(self, waiter: str) -> None:
        """See the contract."""
        self._bedroom.wake(waiter)

    def wait_jobs(
        self,
        ids: Sequence[str],
        timeout: float,
        *,
        mode: Literal["any", "all"] = "all",
        waiter: str | None = None,
    ) -> list[JobRecord | None]:
        """See the contract."""
        deadline = time.monotonic() + timeout
        # Its own name each time: what comes late from an earlier call must not end this one.
        name = uuid.uuid4().hex
        sleeper = self._bedroom.enter(name, waiter)
        try:
            if ids:
                self._sleep_for_jobs(name, sleeper, list(dict.fromkeys(ids)), deadline, mode)
        finally:
            self._bedroom.leave(name, sleeper, waiter)
        return self.get_jobs(ids)

    def _sleep_for_messages(
        self, worker: str, sleeper: Sleeper, names: arrays.Texts, deadline: float
    ) -> bool:
        listener = self._bedroom.listener()
        if not listener.start(min(_START, max(0.0, deadline - time.monotonic()))):
            return self._poll_for_messages(worker, sleeper, names, deadline)
        left = max(0.0, deadline - time.monotonic())
        look = "SELECT {sleep_1}(%s, %s, %s, %s)"
        if self._ask(look, [worker, listener.channel, names, left])[0][0]:
            self._ask("SELECT {awake_1}(%s)", [worker])
            return self._look_at_once(worker, sleeper, deadline)
        pause = _SETTLED
        while True:
            left = deadline - time.monotonic()
            if sleeper.sleep(min(pause, left)):
                break
            if left <= pause:
                # The row of this sleep is past its time as well.
                self._streaks.pop(worker, None)
                return False
            if self._probe(worker, names):
                self._ask("SELECT {awake_1}(%s)", [worker])
                return self._look_at_once(worker, sleeper, deadline)
            pause = _LOOK_AGAIN if listener.hears else _POLL[1]
        self._streaks.pop(worker, None)
        if not sleeper.told:
            self._ask("SELECT {awake_1}(%s)", [worker])
        return True

    def _poll_for_messages(
        self, worker: str, sleeper: Sleeper, names: arrays.Texts, deadline: float
    ) -> bool:
        """Without notifications: look, more and more rarely. Never the claim query."""
        pause = _POLL[0]
        while not self._probe(worker, names):
            left = deadline - time.monotonic()
            if sleeper.sleep(min(pause, left)):
                self._streaks.pop(worker, None)
                return True
            if left <= pause:
                self._streaks.pop(worker, None)
                return False
            pause = min(_POLL[1], pause * 1.3)
        return self._look_at_once(worker, sleeper, deadline)

    def _look_at_once(self, worker: str, sleeper: Sleeper, deadline: float) -> bool:
        """There is something. A worker that can't take it must not ask for it without a pause."""
        streak = self._streaks.get(worker, 0)
        self._streaks[worker] = min(streak + 1, 10)
        if streak:
            pause = min(_POLL[1], 0.001 * 2**streak)
            sleeper.sleep(min(pause, deadline - time.monotonic()))
        return True

    def _probe(self, worker: str, names: arrays.Texts) -> bool:
        """Whether there is something to reserve, or news of what the worker holds."""
        visible, calls = self._ask(_PROBE, [names, worker])[0]
        known, self._known_calls[worker] = (
            self._known_calls.get(worker, frozenset()),
            frozenset(calls),
        )
        return visible or not known.issuperset(calls)

    def _sleep_for_jobs(
        self, name: str, sleeper: Sleeper, ids: list[str], deadline: float, mode: str
    ) -> None:
        listener = self._bedroom.listener()
        hears = listener.start(min(_START, max(0.0, deadline - time.monotonic())))
        left = max(0.0, deadline - time.monotonic())
        pending = self._pending(ids, (name, listener.channel, left) if hears else None)
        is_watched = hears and bool(pending)
        pause = _SETTLED if hears else _POLL[0]
        try:
            while pending and not (mode == "any" and len(pending) < len(ids)):
                left = deadline - time.monotonic()
                if left <= 0 or sleeper.called:
                    return
                if sleeper.sleep(min(pause, left)):
                    if sleeper.told and len(ids) == 1:
                        # Nobody else has this name: it can only be that end, which has taken the watch.
                        is_watched = False
                        return
                    sleeper.rest()
                    # Of many jobs the ends come thick and fast: looking must not take all of a core.
                    time.sleep(
                        min(0.05, 5e-6 * len(pending), max(0.0, left)) if len(ids) > 1 else 0
                    )
                pending = self._pending(pending)
                hears = hears and listener.hears
                pause = _LOOK_AGAIN if hears else min(_POLL[1], max(pause * 1.3, _POLL[0]))
        finally:
            # Also when all have ended: an end that had missed the watch leaves it there.
            if is_watched:
                self._ask("SELECT {unwatch_1}(%s)", [name])

    def _pending(self, ids: list[str], watch: tuple[str, str, float] | None = None) -> list[str]:
        if watch is None:
            rows = self._ask("SELECT * FROM {pending_1}(%s)", [arrays.texts(ids)])
        else:
            name, channel, left = watch
            rows = self._ask(
                "SELECT * FROM {watch_1}(%s, %s, %s, %s)", [name, channel, arrays.texts(ids), left]
            )
        return [row[0] for row in rows]
