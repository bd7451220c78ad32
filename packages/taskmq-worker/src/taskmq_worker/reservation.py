"""What a worker holds: one object for each delivery, from `reserve` to its confirmed settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.context import AttemptControl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskmq.transport.types import Delivery, Message
    from taskmq_worker.keeper import Keeper

CONFIRM_AFTER = 1.0
"""A delivery in the buffer for longer than this is extended before it starts, seconds."""


class Reservation(AttemptControl):
    """One delivery in this worker's hands, and what the keeper tells its attempt.

    Attributes:
        confirmed_at: When the request left whose answer last confirmed the lease (monotonic).
        given_up: The worker has settled it otherwise; a late outcome is dropped.
        terminate: It was revoked with the wish that its body be ended by force.
        granted_at: When a limit across the cluster allowed its start; None without such a limit.
        keep: The transport refused to take it back (`max yields`), so it stays in the buffer.
    """

    def __init__(self, delivery: Delivery, keeper: Keeper, reserved_at: float) -> None:
        self.delivery = delivery
        self.keeper = keeper
        self.received_at = reserved_at
        self.confirmed_at = reserved_at
        self.started_at: float | None = None
        self.duration: float | None = None
        self.buffered = False
        self.place = 0
        self.expired = False
        self.ack = "on_success"
        self.given_up = False
        self.keep = False
        self.cancelled = delivery.cancel_requested
        self.terminate = False
        self.granted_at: float | None = None

    def needs_confirmation(self, now: float) -> bool:
        """Whether its lease must be confirmed before it may start."""
        age = now - self.confirmed_at
        return age > CONFIRM_AFTER or age * 3 > self.delivery.lease * 2

    def started_ago(self, now: float) -> float | None:
        """Seconds since the body started, None while it has not."""
        return None if self.started_at is None else max(0.0, now - self.started_at)

    def heartbeat(self) -> None:
        """Extend the lease now, for a body that knows it will be out of reach for a while."""
        self.keeper.extend_now(self)

    def publish_now(self, messages: Sequence[Message]) -> None:
        """Enqueue at once; refused when the delivery is lost."""
        self.keeper.publish(self, messages)


class Holdings:
    """Every delivery the worker holds, by receipt.

    The fetcher adds, the settler removes, the keeper extends, and `reclaim` keeps what stands here.
    Single operations on the dict are atomic, so there is no lock.
    """

    def __init__(self) -> None:
        self._by_receipt: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._by_receipt)

    def add(self, reservations: Iterable[Reservation]) -> None:
        """Take these into the worker's hands."""
        for reservation in reservations:
            self._by_receipt[reservation.delivery.receipt] = reservation

    def get(self, receipt: str) -> Reservation | None:
        """The reservation under this receipt, None when it is no longer held."""
        return self._by_receipt.get(receipt)

    def all(self) -> list[Reservation]:
        """Everything held at this moment."""
        return list(self._by_receipt.values())

    def receipts(self) -> list[str]:
        """The receipts of everything held at this moment."""
        return list(self._by_receipt)

    def remove(self, receipt: str) -> None:
        """It is settled, or lost."""
        self._by_receipt.pop(receipt, None)
