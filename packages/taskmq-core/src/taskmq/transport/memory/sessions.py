"""What the memory transport keeps of workers that reserve, of idempotency keys and of named leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskmq.transport.memory.records import Record
    from taskmq.transport.memory.views import View
    from taskmq.transport.types import KeyScope


class KeyHold:
    """An idempotency key and the job that it belongs to."""

    __slots__ = ("job_id", "scope", "until")

    def __init__(self, job_id: str, until: float, scope: KeyScope) -> None:
        self.job_id = job_id
        self.until = until
        self.scope = scope


class NamedLease:
    """A named lease as it was last taken or renewed."""

    __slots__ = ("owner", "token", "until")

    def __init__(self, owner: str, token: int, until: float) -> None:
        self.owner = owner
        self.token = token
        self.until = until


class Session:
    """What the transport knows of a worker that reserves: its view and what it holds."""

    __slots__ = (
        "cancelled",
        "held",
        "last_chances",
        "seen",
        "terminate",
        "used_at",
        "view",
        "wait_names",
        "wait_seen",
        "wait_view",
        "worker",
    )

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.view: View | None = None
        self.seen = 0
        """The version of the view at the worker's last look."""
        self.wait_names: tuple[str, ...] = ()
        self.wait_view: View | None = None
        """Of the queues it waits for, where these are others than it reserves from."""
        self.wait_seen = 0
        self.held: dict[str, Record] = {}
        self.last_chances = 0
        self.cancelled: set[str] = set()
        self.terminate: set[str] = set()
        """Those of them whose body is to be ended by force."""
        self.used_at = 0.0

    @property
    def may_take_last(self) -> bool:
        """Whether it may get a delivery at its last chance: it holds at most one."""
        return self.last_chances == 0

    def head(self) -> int | None:
        """The highest priority it could get something of."""
        return None if self.view is None else self.view.head(self.last_chances == 0)
