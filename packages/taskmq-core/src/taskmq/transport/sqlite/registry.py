"""Named leases, rates and the registry of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from taskmq.transport import rates
from taskmq.transport.sqlite.step import encode
from taskmq.transport.sqlite.store import Store
from taskmq.transport.types import HeartbeatReply, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import RateWish

_decode_info = msgspec.msgpack.Decoder(WorkerInfo).decode
_MISSED = 2
"""Heartbeat intervals until a worker counts as stale."""


class Leases(Store):
    """The role of named leases."""

    def acquire(self, name: str, owner: str, ttl: float) -> int | None:
        """See the contract."""
        with self._step() as step:
            row = step.con.execute(
                "SELECT owner, token FROM leases WHERE name = ? AND owner IS NOT NULL AND until > ?",
                (name, step.now),
            ).fetchone()
            if row is not None and row[0] != owner:
                return None
            if row is not None:
                token = int(row[1])
            else:
                # One counter for all names: it goes on rising when a lease's row is pruned.
                (token,) = step.con.execute(
                    "INSERT INTO facts (name, value) VALUES ('fencing', 1) "
                    "ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value"
                ).fetchone()
            step.con.execute(
                "INSERT OR REPLACE INTO leases (name, owner, token, until) VALUES (?, ?, ?, ?)",
                (name, owner, token, step.now + ttl),
            )
            return int(token)

    def renew(self, name: str, token: int, ttl: float) -> bool:
        """See the contract."""
        with self._step() as step:
            changed = step.con.execute(
                "UPDATE leases SET until = ?2 + ?4 WHERE name = ?1 AND token = ?3 "
                "AND owner IS NOT NULL AND until > ?2",
                (name, step.now, token, ttl),
            ).rowcount
            return changed > 0

    def release(self, name: str, token: int) -> bool:
        """See the contract."""
        with self._step() as step:
            changed = step.con.execute(
                "UPDATE leases SET owner = NULL, until = ?2 WHERE name = ?1 AND token = ?3 "
                "AND owner IS NOT NULL AND until > ?2",
                (name, step.now, token),
            ).rowcount
            return changed > 0


class Rates(Store):
    """The role of rates."""

    def take_tokens(self, wishes: Sequence[RateWish]) -> list[float]:
        """See the contract."""
        with self._step() as step:
            states: dict[str, rates.RateState] = {}
            answers: list[float] = []
            for wish in wishes:
                state = states.get(wish.name)
                if state is None:
                    row = step.con.execute(
                        "SELECT free_at, promised_until FROM rates WHERE name = ?", (wish.name,)
                    ).fetchone()
                    state = states[wish.name] = rates.RateState(*(row or ()))
                answers.append(rates.take(state, wish, step.now))
            step.con.executemany(
                "INSERT OR REPLACE INTO rates (name, free_at, promised_until) VALUES (?, ?, ?)",
                [(name, each.free_at, each.promised_until) for name, each in states.items()],
            )
            return answers


class Workers(Store):
    """The role of the worker registry."""

    def heartbeat(self, info: WorkerInfo) -> HeartbeatReply:
        """See the contract."""
        with self._step() as step:
            now = step.now
            step.con.execute(
                "INSERT OR REPLACE INTO workers (id, heartbeat_at, stale_at, info) "
                "VALUES (?, ?, ?, ?)",
                (info.id, now, now + _MISSED * info.heartbeat_interval, encode(info)),
            )
            row = step.con.execute(
                "SELECT f.value FROM facts f JOIN workers w ON w.id = f.value "
                "WHERE f.name = 'maintainer' AND w.stale_at > ?",
                (now,),
            ).fetchone()
            if row is None:
                step.con.execute(
                    "INSERT OR REPLACE INTO facts (name, value) VALUES ('maintainer', ?)",
                    (info.id,),
                )
            return HeartbeatReply(now=now, maintain=row is None or row[0] == info.id)

    def deregister(self, worker: str) -> None:
        """See the contract."""
        self._board.forget(worker)
        with self._step() as step:
            step.con.execute("DELETE FROM workers WHERE id = ?", (worker,))
            step.con.execute("DELETE FROM facts WHERE name = 'maintainer' AND value = ?", (worker,))

    def list_workers(self) -> list[WorkerInfo]:
        """See the contract."""
        rows = self._database.query("SELECT info, heartbeat_at, stale_at FROM workers ORDER BY id")
        now = self._clock.time()
        return [
            msgspec.structs.replace(
                _decode_info(info), heartbeat_at=heartbeat_at, stale=stale_at <= now
            )
            for info, heartbeat_at, stale_at in rows
        ]
