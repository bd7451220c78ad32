"""What a pool is: something that takes reservations from the buffer and runs them on its slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from taskmq_worker import lifespan

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq import App
    from taskmq.config import Config
    from taskmq_worker.buffer import Buffer
    from taskmq_worker.keeper import Keeper
    from taskmq_worker.reports import Reports
    from taskmq_worker.reservation import Holdings, Reservation
    from taskmq_worker.settler import Settler
    from taskmq_worker.slot import Slot


class Surroundings(NamedTuple):
    """The parts of the worker that a pool may need beyond buffer and slot."""

    app: App
    config: Config
    """The worker's configuration: the app's, with the options given to the worker."""
    worker: str
    app_path: str | None
    slot: Slot
    settler: Settler
    keeper: Keeper
    holdings: Holdings
    reports: Reports


class PoolHealth(NamedTuple):
    """How a pool is.

    Attributes:
        alive: How many slots can take jobs.
        abandoned: How many threads are stuck in bodies whose time was over.
        blocked: What keeps the pool from working, in words; None when nothing does.
    """

    alive: int
    abandoned: int = 0
    blocked: str | None = None


class Pool(ABC):
    """Slots of one kind. A pool pulls: it calls `buffer.take`, `work`, `buffer.done`, over and over.

    Register it under the entry point `taskmq.pools`. It is made with the number of slots.
    """

    name: ClassVar[str]
    runs_async: ClassVar[bool] = False
    """Whether `async def` tasks can run here."""
    enforces_hard_timeout: ClassVar[bool] = False
    """Whether `hard_timeout` ends a body that does not end by itself."""
    at_hard_timeout: ClassVar[str] = "there it does nothing"
    """What happens otherwise, for the warning at the start."""
    on_caller: ClassVar[bool] = False
    """Whether jobs run on the thread that called `run`, which then calls `serve`."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.buffer: Buffer
        self.work: Callable[[Reservation], None]
        self.closing = False
        self.around: Surroundings

    def configure(self, around: Surroundings) -> None:
        """Get to know the worker; called once, before anything starts.

        Raises:
            ConfigError: The pool can't work with this configuration.
        """
        self.around = around

    def open(self) -> None:
        """Make ready what jobs need, before any thread of the worker starts; call the start hooks.

        Raises:
            ConfigError: It can't be made ready.
            TaskmqError: A start hook failed.
        """
        lifespan.start(self.around.app)

    @abstractmethod
    def start(
        self,
        buffer: Buffer,
        work: Callable[[Reservation], None],
        spawn: Callable[[str, Callable[[], None]], None],
    ) -> None:
        """Begin to take reservations. `spawn(name, target)` starts a watched daemon thread."""

    def serve(self, timeout: float | None) -> None:
        """Run at most one job on the caller's thread; only for pools with `on_caller`."""
        raise NotImplementedError

    def cancel(self, reservation: Reservation, *, terminate: bool) -> bool:
        """Tell a running job that its reservation's flags (`cancelled`, `lost`, `stopping`) have changed.

        Args:
            reservation: What runs.
            terminate: End the body now, if this pool can.

        Returns:
            Whether the body is being ended without its cooperation.
        """
        return False

    def health(self) -> PoolHealth:
        """How the pool is."""
        return PoolHealth(alive=self.slots)

    def drain(self) -> None:
        """The worker stops: give back what was taken from the buffer and has not started."""

    def end(self) -> None:
        """Free everything, by force if need be, and call the stop hooks; the last settlements are sent."""
        lifespan.stop(self.around.app)

    def close(self) -> None:
        """Take nothing more; what runs goes on."""
        self.closing = True
        self.buffer.poke(self.slots)
