"""The worker: wires its loops together, and starts and stops them in order."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import secrets
import socket
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import ConfigError, TaskmqError, TransportError, TransportUnavailable
from taskmq.transport.types import WorkerInfo
from taskmq_worker.buffer import Buffer
from taskmq_worker.checks import check_start
from taskmq_worker.contact import Contact
from taskmq_worker.crew import Crew
from taskmq_worker.fetcher import Fetcher
from taskmq_worker.health import Health
from taskmq_worker.idle import left_over
from taskmq_worker.keeper import Keeper
from taskmq_worker.limits import Limits
from taskmq_worker.maintenance import Maintenance
from taskmq_worker.pools.base import Pool, Surroundings
from taskmq_worker.probes import LOOPBACK, Probes
from taskmq_worker.replica import watch_lifeline
from taskmq_worker.reports import Reports
from taskmq_worker.reservation import Holdings
from taskmq_worker.settler import Settler
from taskmq_worker.shelf import ResultShelf
from taskmq_worker.signals import AbortRun, Signals
from taskmq_worker.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from taskmq import App
    from taskmq.workflow.reconcile import Reconciler
    from taskmq_worker.health import HealthReport

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

Command = Literal["idle", "slot free", "stop", "stop now", "failed"]

ANSWER_SOON = 0.005
"""How long to wait for the answer to a reservation before looking again, seconds."""
KILLED = 2.0
"""How long the end of killed bodies may take to be noticed, seconds."""
UNWIND = 0.5
"""How long bodies get to notice that the worker stops, once their time is over, seconds."""
FLUSH = 5.0
"""How long the last settlements may take while the transport is away, seconds."""


_NAMED = 5
"""How many reasons an error lists."""


class NotIdle(TaskmqError, TimeoutError):
    """`run_until_idle` ran out of time; the message names what was left."""


class Worker:
    """Runs the jobs of some queues in this process.

    ```python
    with Worker(app, queues=["email"], concurrency=8) as worker:
        worker.run_until_idle(timeout=30)  # or worker.run() until a signal
    ```

    Args:
        app: The app whose tasks it runs.
        queues: The queues it serves; None: every queue that the app knows of.
        concurrency: How many jobs run at once (`Config.concurrency`).
        pool: What runs them (`Config.pool`).
        prefetch: How many unstarted jobs it may hold (`Config.prefetch`).
        app_path: Where child processes import the app from, as "module:attribute".
        worker_id: How its id in the registry begins (host name and pid when None); what follows is
            unique for each start.
        shutdown_timeout: How long running jobs may take at the stop (`Config.shutdown_timeout`).
        health_file: Where it writes its health, every second.
        health_port: Where it answers HTTP probes; 0 takes a free port.
        health_host: On which address; loopback by default.
        lifeline: A pipe's reading end; once nobody holds the other end, `run` stops as on SIGTERM.

    Raises:
        ConfigError: An option, a task or the transport does not fit; found before anything starts.
    """

    def __init__(
        self,
        app: App,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        pool: str | None = None,
        prefetch: int | None = None,
        app_path: str | None = None,
        worker_id: str | None = None,
        shutdown_timeout: float | None = None,
        health_file: str | os.PathLike[str] | None = None,
        health_port: int | None = None,
        health_host: str = LOOPBACK,
        lifeline: int | None = None,
    ) -> None:
        app.load()
        self.app = app
        self.app_path = app_path
        self.hostname = socket.gethostname()
        # Never the name alone: a worker takes back what the transport has under its id, and a second
        # one of that name would take what the first one runs.
        self.id = f"{worker_id or f'{self.hostname}-{os.getpid()}'}-{secrets.token_hex(4)}"
        self.shares = app.queue_shares(queues)
        config = app.config
        given = {"concurrency": concurrency, "pool": pool, "prefetch": prefetch}
        changes = {name: value for name, value in given.items() if value is not None}
        self._config = config.replace(**changes) if changes else config
        config = self._config
        self._grace = config.shutdown_timeout if shutdown_timeout is None else shutdown_timeout
        kind = app.plugins.resolve("pools", config.pool)
        if not (isinstance(kind, type) and issubclass(kind, Pool)):
            raise ConfigError(
                f"the pool {config.pool!r} is no subclass of taskmq_worker's Pool: {kind!r}"
            )
        self.transport = app.transport
        check_start(app.tasks.values(), kind, self.transport)
        self.pool = kind(config.concurrency)
        self._wire()
        self._lifeline = lifeline
        self._reconciler: Reconciler | None = None
        self.probes = Probes(self.health, file=health_file, port=health_port, host=health_host)

    def _reconcile(self) -> None:
        if self._reconciler is None:
            # Imported late: a worker without workflows has no use for it before its first minute.
            from taskmq.workflow.reconcile import Reconciler

            self._reconciler = Reconciler(self.app)
        self._reconciler.run()

    def _wire(self) -> None:
        app, config, transport = self.app, self._config, self.transport
        interval = min(config.heartbeat_interval, config.lease / 3)
        self._interval = interval
        self.reports = Reports(app.events, self.id, lambda: app.run_teller)
        self._contact = Contact(2 * interval, max(interval, 0.5), self.reports.transport_error)
        self.holdings = Holdings()
        self.buffer = Buffer(self.pool.slots, config.prefetch, config.prefetch_window)
        self._settler = Settler(
            transport, self.id, self.holdings, self._contact, self.reports, shelf=self._shelf()
        )
        self._maintenance = Maintenance(
            transport,
            self._contact,
            self.reports,
            config.retention(),
            everyone=not transport.supports_workers,
            reconcile=self._reconcile,
        )
        self._keeper = Keeper(
            transport,
            self.id,
            self.holdings,
            self.buffer,
            self._settler,
            self._contact,
            interval=interval,
            describe=self._describe if transport.supports_workers else None,
            on_elected=self._maintenance.elect,
        )
        limits = Limits(app.tasks.values())
        self._fetcher = Fetcher(
            transport,
            self.id,
            self.shares,
            self.buffer,
            self.holdings,
            self._settler,
            self._keeper,
            self._contact,
            config,
            automatic=config.prefetch is None,
            reserved_slots=config.reserved_slots,
            gate=limits.gate,
        )
        self._slot = Slot(
            app,
            self.id,
            self._settler,
            self._keeper,
            self._contact,
            self.reports,
            limits,
        )
        self._contact.on_return += [self._keeper.hurry, self._settler.hurry]
        self.buffer.on_low = self._slot_free
        self._settler.on_reply = self._fetcher.heed
        self._keeper.on_cancel = self.pool.cancel
        self._settler.on_idle = self._idle
        self._fetcher.on_drained = self._idle
        self.pool.configure(
            Surroundings(
                app=app,
                config=config,
                worker=self.id,
                app_path=self.app_path,
                slot=self._slot,
                settler=self._settler,
                keeper=self._keeper,
                holdings=self.holdings,
                reports=self.reports,
            )
        )
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._crew = Crew(lambda: self._command("failed"))
        self.state = "new"
        self._health = Health(
            self.id,
            state=lambda: self.state,
            failure=lambda: self._crew.failure,
            buffer=self.buffer,
            pool=self.pool,
            contact=self._contact,
            fetcher=self._fetcher,
            keeper=self._keeper,
            settler=self._settler,
            interval=interval,
            most_abandoned=config.max_abandoned_threads,
        )
        self._stop_lock = threading.Lock()
        self._stopped = threading.Event()
        self._has_left = threading.Event()
        self._running_in: int | None = None
        self._wants_idle = False
        self._wants_slots = False
        self._started_at = 0.0

    def _shelf(self) -> ResultShelf | None:
        store = self.app.results
        if store is None:
            return None
        config = self._config
        return ResultShelf(
            store,
            config.result_ttl or config.job_ttl,
            config.max_inline_result,
            self.reports.transport_error,
        )

    # --- starting ---

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the loops; returns at once. An unreachable transport is waited for.

        Raises:
            TransportError: The transport answers that it will never work (password, rights, version).
        """
        if self.state != "new":
            if self.state == "running":
                return
            raise TaskmqError("a worker is started once: make another Worker to go on")
        with contextlib.suppress(TransportUnavailable):
            self.transport.ping()
        self.state = "starting"
        with contextlib.ExitStack() as undo:
            undo.callback(self.probes.close)
            self.probes.start()
            self.pool.open()
            undo.pop_all()
        self._started_at = SYSTEM_CLOCK.time()
        self._crew.spawn("settler", self._settler.run)
        self._crew.spawn("keeper", self._keeper.run)
        self.pool.start(self.buffer, self._slot.work, self._crew.spawn)
        self._crew.spawn("fetcher", self._fetcher.run)
        self._crew.spawn("maintenance", self._maintenance.run)
        self.state = "running"
        self._keeper.report()
        if self.reports.enabled:
            self.reports.worker(
                "started",
                queues=[share.name for share in self.shares],
                pool=self.pool.name,
                concurrency=self.pool.slots,
            )

    # --- running ---

    def run(self) -> int:
        """Run jobs until SIGTERM, SIGINT or `stop`; the exit code of the process.

        Signals are handled while it runs when this is the main thread; the earlier handlers are put
        back afterwards.
        """
        self.app.report_as_worker()
        with Signals(self._signalled) as signals:
            self._running_in = threading.get_ident()
            if self._lifeline is not None:
                watch_lifeline(self._lifeline, self._cut_off)
            self.start()
            if self.pool.on_caller:
                self._serve_supervised(signals)
            else:
                self._supervise(signals)
        return self._exit_code()

    def run_until_idle(self, timeout: float | None = None) -> None:
        """Run jobs until the queues hold nothing that would start within the timeout.

        Pending and blocked jobs, delayed jobs and retries that are due before the time is over, and
        what other workers hold are waited for. It returns at once when what is left is due later than
        that, is held (`PENDING`) or is parked. Without a timeout it waits for everything delayed.

        Raises:
            NotIdle: The time is over and something is still pending or running; the message names it.
        """
        self._run_until(timeout, delayed=True)

    def run_once(self, timeout: float | None = None) -> int:
        """Run what is ready now, and stop; the exit code of the process.

        Raises:
            TransportUnavailable: The transport is out of reach.
        """
        self.transport.ping()
        self.app.report_as_worker()
        with Signals(self._signalled):
            self._run_until(timeout, delayed=False)
            self.stop()
        return self._exit_code()

    def _run_until(self, timeout: float | None, *, delayed: bool) -> None:
        started_here = self.state == "new"
        self.start()
        end = None if timeout is None else _monotonic() + timeout
        self._wants_idle = True
        try:
            self._until_idle(end, timeout, delayed=delayed)
        finally:
            self._wants_idle = False
            if started_here:
                self.stop()

    def _until_idle(self, end: float | None, timeout: float | None, *, delayed: bool) -> None:
        pause = 0.0
        while True:
            left = float("inf") if end is None else end - _monotonic()
            names: list[str] = []
            if self._crew.failure is not None:
                raise TaskmqError(
                    f"the worker failed: {self._crew.failure!r}"
                ) from self._crew.failure
            if not len(self.holdings) and not self.buffer.busy:
                with contextlib.suppress(TransportUnavailable):
                    names, pause = left_over(
                        self.transport, self.id, self.shares, left, delayed=delayed
                    )
                    # In this order: what came meanwhile is on its way, or else it is held.
                    if self._fetcher.asking or len(self.holdings) or self.buffer.busy:
                        pause = min(pause, ANSWER_SOON)
                    elif not names:
                        return
            elif pause <= 0:
                pause = 1.0
            if left <= 0:
                names = names or self._held_here() or ["no answer from the transport yet"]
                if len(names) > _NAMED:
                    names = [*names[:_NAMED], f"and {len(names) - _NAMED:,} more"]
                raise NotIdle(f"not idle after {timeout:g} s: {'; '.join(names)}")
            command = self._next_command(min(left, pause))
            if command in ("stop", "stop now"):
                return

    def _held_here(self) -> list[str]:
        """Name what runs here, or else what waits for the confirmation of its end."""
        running = [each.delivery for each in self.buffer.running()]
        names = [f"{each.task} ({each.id}) still runs here" for each in running[:3]]
        more = len(running) - len(names)
        if running:
            return [*names, *([f"so do {more} more"] if more else [])]
        count = len(self.holdings)
        return [f"{count} unconfirmed or unstarted here"] if count else []

    def _next_command(self, timeout: float) -> Command | None:
        """The next command within this time; in `solo` the caller's thread runs jobs meanwhile."""
        end = _monotonic() + timeout
        while True:
            with contextlib.suppress(Empty):
                if self.pool.on_caller:
                    return self._commands.get_nowait()
                return self._commands.get(timeout=max(0.0, end - _monotonic()))
            left = end - _monotonic()
            if left <= 0:
                return None
            if self.pool.on_caller:
                self.pool.serve(left)

    # --- stopping ---

    def stop(self, grace: float | None = None) -> None:
        """Stop as on SIGTERM and wait for the end; `grace` replaces the shutdown timeout.

        What has not started goes back at once, what runs may finish within the grace, and what
        runs then is handed back with its delivery counted.
        """
        if grace is not None:
            self._grace = grace
        elsewhere = self._running_in not in (None, threading.get_ident())
        if elsewhere and self.state in ("starting", "running"):
            self._command("stop")
            self._stopped.wait()
            return
        self._shut_down(Signals.none())

    def _serve_supervised(self, signals: Signals) -> None:
        """`solo`: jobs run here, so another thread obeys the commands."""
        self._crew.spawn("supervisor", lambda: self._supervise(signals))
        with contextlib.suppress(AbortRun):
            while not self.pool.closing:
                self.pool.serve(None)
        self._has_left.set()
        self._stopped.wait()

    def _supervise(self, signals: Signals) -> None:
        """Wait for the command to stop, then do it."""
        while self._commands.get() in ("idle", "slot free"):
            pass
        self._shut_down(signals)

    def _shut_down(self, signals: Signals) -> None:
        with self._stop_lock:
            if self.state == "running":
                self.state = "stopping"
                self._keeper.report()
                if self.reports.enabled:
                    self.reports.worker("stopping", in_flight=self.buffer.busy)
                try:
                    self._stop_in_order(signals)
                finally:
                    self.state = "stopped"
                    self.probes.close()
            self._stopped.set()
            self.buffer.poke()

    def _stop_in_order(self, signals: Signals) -> None:
        self._fetcher.close()
        self._crew.join("fetcher")
        self.pool.drain()
        self._fetcher.give_back(self.buffer.unstarted())
        self._wants_slots = True
        finished = self._wait_for_slots(self._grace if self._crew.failure is None else 0.0)
        self._slot.stopping = True
        self.pool.close()
        if not finished:
            self._hand_back()
        self._maintenance.close()
        self._settler.close(FLUSH if self._crew.failure is None else 1.0)
        self._crew.join("settler", FLUSH + 10)
        self._keeper.close()
        self._crew.join("keeper")
        self._crew.join("maintenance")
        self.pool.end()
        if finished:
            self._crew.join("slot")
        if self.transport.supports_workers:
            with contextlib.suppress(TransportError):
                self.transport.deregister(self.id)
        if self.reports.enabled:
            self.reports.worker("stopped")
            self.app.events.flush(1.0)
        if not finished and self.pool.on_caller:
            signals.abort_main(self._has_left)

    def _wait_for_slots(self, grace: float) -> bool:
        """Wait for running jobs; True when none is left, False when time is over or a signal said so."""
        end = _monotonic() + grace
        while self.buffer.busy:
            left = end - _monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(Empty):
                if self._commands.get(timeout=left) in ("stop now", "failed"):
                    return False
        return True

    def _hand_back(self) -> None:
        """Release what still runs, its delivery counted: it starts elsewhere at once."""
        for reservation in self.buffer.running():
            reservation.stopping = True
            self.pool.cancel(reservation, terminate=False)
        self._wait_for_slots(UNWIND)
        killed = [self.pool.cancel(r, terminate=True) for r in self.buffer.running()]
        if any(killed):
            self._wait_for_slots(KILLED)
        for reservation in self.buffer.running():
            reservation.given_up = True
            _log.warning(
                "job %s (%s) did not end in time; it is handed back",
                reservation.delivery.id,
                reservation.delivery.task,
            )
            self._slot.hand_back(reservation)

    # --- what the loops say ---

    def _command(self, command: Command) -> None:
        # A SimpleQueue may be used from a signal handler, whatever the interrupted code holds.
        self._commands.put(command)
        if self.pool.on_caller:
            self.buffer.poke()

    def _signalled(self, times: int) -> None:
        busy = self.buffer.busy
        if times == 1 and busy:
            _log.warning(
                "waiting for %d running job%s, up to %g s; again to stop at once",
                busy,
                "" if busy == 1 else "s",
                self._grace,
            )
        self._command("stop" if times == 1 else "stop now")

    def _cut_off(self) -> None:
        _log.warning("the supervisor is gone: this worker stops as on SIGTERM")
        self._command("stop")

    def _idle(self) -> None:
        if self._wants_idle:
            self._command("idle")

    def _slot_free(self) -> None:
        self._fetcher.nudge()
        if self._wants_slots:
            self._commands.put("slot free")
        elif self._wants_idle and not self.buffer.busy and not len(self.holdings):
            # While something is held, whoever lets go of it last says so.
            self._command("idle")

    def _exit_code(self) -> int:
        return 0 if self._crew.failure is None else 1

    def health(self) -> HealthReport:
        """Whether it lives, is ready and gets on; cheap, and never blocks."""
        return self._health.report()

    def _describe(self) -> WorkerInfo:
        return WorkerInfo(
            id=self.id,
            hostname=self.hostname,
            pid=os.getpid(),
            queues=tuple(share.name for share in self.shares),
            pool=self.pool.name,
            concurrency=self.pool.slots,
            in_flight=self.buffer.busy,
            started_at=self._started_at,
            version=_version(),
            heartbeat_interval=self._interval,
            state=self.state,
        )


def _version() -> str:
    try:
        return importlib.metadata.version("taskmq-worker")
    except importlib.metadata.PackageNotFoundError:
        return ""
