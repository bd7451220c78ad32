"""What runs inside a child: import the app, then one job after the other on the main thread."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import traceback
from collections import deque
from typing import TYPE_CHECKING

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TaskmqError
from taskmq.execution import Unrunnable, finish, prepare, run
from taskmq_worker import lifespan
from taskmq_worker.children import guard, loading, wire
from taskmq_worker.children.control import Control, ParentSink
from taskmq_worker.children.relay import relay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq import App
    from taskmq.transport.types import Delivery, SettleResult

_monotonic = SYSTEM_CLOCK.monotonic

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(arguments: Sequence[str]) -> None:
    """Serve the parent until it closes the channel of starts."""
    jobs, starts, control, life = map(int, arguments)
    guard.ignore_stop_signals()
    guard.end_with_parent(life)
    guard.free_forks((jobs, starts, control, life))
    for descriptor in (jobs, starts, control, life):
        # Programs that a task starts must not hold the channels open.
        os.set_inheritable(descriptor, False)
    channel = _Jobs(socket.socket(fileno=jobs), socket.socket(fileno=starts))
    setup = channel.next()
    if not isinstance(setup, wire.Setup):
        raise SystemExit("this program is started by a worker, never by hand")
    loading.in_child = True
    sys.path[:] = setup.path
    sys.argv[:] = setup.argv
    try:
        app = loading.load_app(setup.app_path)
    # Whatever the modules of a user raise at import, SystemExit included.
    except BaseException as error:  # noqa: BLE001
        channel.send(wire.Broken(_cause(error), traceback.format_exc()))
        raise SystemExit(3) from None
    serve = Control(socket.socket(fileno=control), lambda: guard.end_if_orphaned(life))
    _serve(app, setup, channel, serve)


def _serve(app: App, setup: wire.Setup, channel: _Jobs, control: Control) -> None:
    _show_log(setup.log_level)
    control.listen()
    app.report_to(
        ParentSink(control) if setup.events else None, relay(control) if setup.relayed else None
    )
    try:
        lifespan.start(app)
    except TaskmqError as error:
        channel.send(wire.Broken(str(error), traceback.format_exc()))
        raise SystemExit(3) from None
    url = app.config.transport
    channel.send(wire.Ready(list(app.tasks), url if isinstance(url, str) else None))
    runner = _Runner(app, setup, channel, control)
    while (number := channel.next_start()) is not None:
        runner.run(number, channel.job(number))
    lifespan.stop(app)
    with contextlib.suppress(OSError):
        app.events.flush(1.0)


class _Runner:
    """Runs deliveries and says what became of them."""

    def __init__(self, app: App, setup: wire.Setup, channel: _Jobs, control: Control) -> None:
        self._app = app
        self._worker = setup.worker
        self._max_memory = setup.max_memory
        self._channel = channel
        self._control = control

    def run(self, number: int, delivery: Delivery) -> None:
        """Take one delivery to its outcome, and to the end of its hooks."""
        began = _monotonic()
        control = self._control.begin(delivery.receipt)
        attempt = prepare(self._app, delivery, worker=self._worker, control=control)
        if isinstance(attempt, Unrunnable):
            self._answer(number, attempt, began)
            return
        outcome = run(attempt)
        waits = attempt.task.has_end_hooks and not attempt.hooks_done
        self._channel.send(
            wire.done(
                number,
                outcome.settlement,
                _monotonic() - began,
                waits=waits,
                retire=self._is_too_big(),
            )
        )
        if waits:
            finish(attempt, outcome, self._channel.answer(number))
            self._channel.send(wire.HooksDone(number))

    def _answer(self, number: int, verdict: Unrunnable, began: float) -> None:
        duration = _monotonic() - began
        self._channel.send(
            wire.done(number, verdict.settlement, duration, waits=False, retire=False)
        )

    def _is_too_big(self) -> bool:
        return self._max_memory is not None and resident_memory() > self._max_memory


class _Jobs:
    """The channels of jobs and starts; only the main thread uses them."""

    def __init__(self, jobs: socket.socket, starts: socket.socket) -> None:
        self._jobs = jobs
        self._starts = starts
        self._frames = wire.Frames()
        self._messages: deque[wire.ToChild] = deque()
        self._ahead: deque[wire.Job] = deque()

    def send(self, message: wire.ToParent) -> None:
        """Send a message; it is in the kernel's hands when this returns."""
        self._jobs.sendall(wire.frame(message))

    def next(self) -> wire.ToChild:
        """The next message of the parent."""
        while not self._messages:
            data = self._jobs.recv(1 << 16)
            if not data:
                raise SystemExit(0)
            self._messages.extend(map(wire.to_child.decode, self._frames.feed(data)))
        return self._messages.popleft()

    def next_start(self) -> int | None:
        """Read the number of a job, after which it counts as started; None at the end."""
        data = self._starts.recv(wire.NUMBER.size)
        while data and len(data) < wire.NUMBER.size:
            data += self._starts.recv(wire.NUMBER.size - len(data))
        if not data:
            return None
        number: int = wire.NUMBER.unpack(data)[0]
        return number

    def job(self, number: int) -> Delivery:
        """The delivery of this number; what was sent before it and did not start was taken back."""
        while True:
            while self._ahead:
                job = self._ahead.popleft()
                if job.number == number:
                    return job.delivery
            message = self.next()
            if isinstance(message, wire.Jobs):
                self._ahead.extend(message.jobs)

    def answer(self, number: int) -> SettleResult:
        """The transport's answer to an outcome."""
        while True:
            message = self.next()
            if isinstance(message, wire.Settled) and message.number == number:
                return message.result
            if isinstance(message, wire.Jobs):
                self._ahead.extend(message.jobs)


def resident_memory() -> int:
    """Bytes of memory that this process has in use."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _cause(error: BaseException) -> str:
    """An error of the import in one line, with the place in the user's code."""
    text = f"{type(error).__name__}: {error}"
    ours = (__file__, loading.__file__)
    places = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in ours
    ]
    inside = [place for place in places if "importlib" not in place]
    return f"{text} ({inside[-1]})" if inside else text


def _show_log(level: int | None) -> None:
    """Show the log as the parent does, unless the app has set up its own."""
    if level is not None and not logging.getLogger().handlers:
        logging.basicConfig(level=level, format=_FORMAT)
