"""The supervisor: keeps N worker processes running, and restarts them one by one when asked."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import selectors
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import ConfigError
from taskmq_worker.probes import LOOPBACK, Probes
from taskmq_worker.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from typing_extensions import Self

_log = logging.getLogger("taskmq.supervisor")
_monotonic = SYSTEM_CLOCK.monotonic

READY_WITHIN = 60.0
"""How long a new process may take to be ready in a rolling restart, seconds."""
SETTLED_AFTER = 30.0
"""A process that was up for this long has not crashed at its start."""
LONGEST_PAUSE = 30.0
LOOK_EVERY = 0.05
MISUSED = 2
"""The exit code of a command that can never work: usage or configuration."""

_STOP = (signal.SIGTERM, signal.SIGINT)


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe is told of all replicas.

    `alive` while no running replica says that it needs a restart, `ready` while at least one takes
    jobs; a replica that crashed is being restarted, which is no reason to restart the rest.
    """

    pid: int
    state: str
    alive: bool
    ready: bool
    reasons: tuple[str, ...]
    replicas: tuple[dict[str, Any], ...]
    at: float


class Supervisor:
    """Runs N copies of a command, each of which is a worker.

    It passes SIGTERM and SIGINT on (a second one, too), restarts what crashes after a pause that grows,
    and on SIGHUP replaces one process after the other: a new one must be ready before an old one stops.
    When it dies itself, the workers see the end of a pipe and stop as on SIGTERM.

    Args:
        command: Starts one worker; `--lifeline FD --health-file PATH` are added to it.
        replicas: How many.
        health_file: Where the health of all is written.
        health_port: Where probes are answered.
        health_host: On which address.

    Raises:
        ConfigError: Not on this system, or the health file or port can't be used.
    """

    def __init__(
        self,
        command: Sequence[str],
        replicas: int,
        *,
        health_file: str | os.PathLike[str] | None = None,
        health_port: int | None = None,
        health_host: str = LOOPBACK,
    ) -> None:
        if sys.platform == "win32":
            raise ConfigError("--replicas needs a POSIX system: start several workers instead")
        self._command = list(command)
        self._count = replicas
        self._probes = Probes(self.report, file=health_file, port=health_port, host=health_host)
        self._folder = Path()
        self._places: list[Replica | None] = [None] * replicas
        self._failures = [0] * replicas
        self._restart_at = [0.0] * replicas
        self._leaving: list[Replica] = []
        self._coming: Replica | None = None
        self._to_roll: list[int] = []
        self._stops = 0
        self._exit_code = 0
        self._made = 0

    # --- the life ---

    def run(self) -> int:
        """Run until every worker has ended after a signal; the exit code of the process."""
        with (
            tempfile.TemporaryDirectory(prefix="taskmq-replicas-") as folder,
            _Signals() as signals,
            contextlib.closing(self._probes),
        ):
            self._folder = Path(folder)
            self._probes.start()
            try:
                while not self._is_over():
                    self._turn()
                    for number in signals.wait(self._pause()):
                        self._signalled(number)
            finally:
                for replica in self._running():
                    replica.kill()
        return self._exit_code

    def report(self) -> FleetReport:
        """How all of them are."""
        told = [replica.health() for replica in self._places if replica is not None]
        reasons = [
            f"replica {number} is not up"
            for number, each in enumerate(self._places)
            if each is None
        ]
        for each in told:
            reasons += [f"pid {each.get('pid')}: {why}" for why in each.get("reasons") or ()]
        return FleetReport(
            pid=os.getpid(),
            state="stopping" if self._stops else "running",
            alive=all(each.get("alive", True) for each in told),
            ready=not self._stops and any(each.get("ready") for each in told),
            reasons=tuple(reasons),
            replicas=tuple(told),
            at=_monotonic(),
        )

    def _is_over(self) -> bool:
        return bool(self._stops) and not self._running()

    def _running(self) -> list[Replica]:
        extra = [self._coming] if self._coming is not None else []
        return [*filter(None, self._places), *self._leaving, *extra]

    def _pause(self) -> float | None:
        """How long nothing needs a look; None until a signal."""
        now = _monotonic()
        if self._is_over():
            return 0.0
        if self._coming is not None or any(r and not r.was_ready for r in self._places):
            return LOOK_EVERY
        if self._stops:
            return None  # Until a child ends, or the next signal.
        due = [at for at, each in zip(self._restart_at, self._places, strict=True) if each is None]
        return max(0.0, min(due) - now) if due else None

    def _turn(self) -> None:
        """Look at everybody once."""
        for number, replica in enumerate(self._places):
            if replica is not None:
                replica.look()
                if (code := replica.ended()) is not None:
                    self._ended(number, replica, code)
            if self._places[number] is None and not self._stops:
                self._start_when_due(number)
        for replica in list(self._leaving):
            if (code := replica.ended()) is not None:
                self._leaving.remove(replica)
                self._count_end(replica, code)
        self._roll()

    # --- crashes ---

    def _spawn(self) -> Replica:
        self._made += 1
        return Replica(self._command, self._folder / f"{self._made}.json")

    def _start_when_due(self, number: int) -> None:
        if _monotonic() >= self._restart_at[number]:
            self._places[number] = self._spawn()

    def _ended(self, number: int, replica: Replica, code: int) -> None:
        self._places[number] = None
        if self._stops:
            self._count_end(replica, code)
            return
        if code == MISUSED and not replica.was_ready:
            # It has said why; a restart would say it again.
            _log.error("a worker can't start with this configuration: everything stops")
            self._exit_code = MISUSED
            self._stop()
            return
        up_for = _monotonic() - replica.started_at
        failures = 0 if up_for >= SETTLED_AFTER or code == 0 else self._failures[number]
        pause = min(LONGEST_PAUSE, 0.2 * 2.0**failures) * random.uniform(0.5, 1.0)
        self._failures[number] = 0 if code == 0 else min(failures + 1, 20)
        self._restart_at[number] = _monotonic() + pause
        _log.warning(
            "the worker with pid %d ended (%s) after %.1f s; another one starts in %.1f s",
            replica.pid,
            _meaning(code),
            up_for,
            pause,
        )

    def _count_end(self, replica: Replica, code: int) -> None:
        # Killed before it could listen to signals, it held nothing.
        is_early = code == -signal.SIGTERM and not replica.was_ready
        if code != 0 and not is_early:
            _log.warning("the worker with pid %d ended: %s", replica.pid, _meaning(code))
            if self._stops:
                self._exit_code = self._exit_code or 1

    # --- signals ---

    def _signalled(self, number: int) -> None:
        if number in _STOP:
            self._stop()
        elif number == signal.SIGHUP and not self._stops:
            _log.warning("rolling restart of %d workers", self._count)
            self._to_roll = list(range(self._count))

    def _stop(self) -> None:
        self._stops += 1
        self._to_roll = []
        if self._coming is not None:
            self._leaving.append(self._coming)
            self._coming = None
        for replica in self._running():
            replica.send(signal.SIGTERM)

    def _roll(self) -> None:
        """One step of a rolling restart: at most one process more than wanted runs at a time."""
        coming = self._coming
        if coming is None:
            if self._to_roll and not self._leaving and not self._stops:
                if self._places[self._to_roll[0]] is None:
                    self._to_roll.pop(0)  # It starts anew by itself.
                else:
                    self._coming = self._spawn()
            return
        coming.look()
        code = coming.ended()
        if code is not None or _monotonic() - coming.started_at > READY_WITHIN:
            what = "was not ready in time" if code is None else f"ended ({_meaning(code)})"
            _log.error("rolling restart given up: the new worker %s; the old ones go on", what)
            self._coming, self._to_roll = None, []
            if code is None:
                self._leaving.append(coming)
                coming.send(signal.SIGTERM)
        elif coming.was_ready:
            number = self._to_roll.pop(0)
            old, self._places[number] = self._places[number], coming
            self._coming = None
            self._failures[number] = 0
            if old is not None:
                self._leaving.append(old)
                old.send(signal.SIGTERM)


class _Signals:
    """Waits for signals, the end of a child among them, without missing one."""

    _NUMBERS = (*_STOP, signal.SIGHUP, signal.SIGCHLD) if sys.platform != "win32" else _STOP

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reader, selectors.EVENT_READ)
        self._earlier_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._earlier = {each: signal.signal(each, _noted) for each in self._NUMBERS}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._earlier_fd)
        self._selector.close()
        self._reader.close()
        self._writer.close()

    def wait(self, timeout: float | None) -> bytes:
        """The signals that have come, or nothing when the time is over."""
        if not self._selector.select(timeout):
            return b""
        with contextlib.suppress(BlockingIOError):
            return self._reader.recv(4096)
        return b""


def _noted(_number: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor has told of it."""


def _meaning(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
