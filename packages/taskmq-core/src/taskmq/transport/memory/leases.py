"""Named leases and rates of the memory transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.transport import rates
from taskmq.transport.contract import LeaseRole, RateRole
from taskmq.transport.memory.sessions import NamedLease

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.memory.store import Store
    from taskmq.transport.types import RateWish


class MemoryLeases(LeaseRole):
    """The lease role. Tokens come from one counter, so they rise even after a lease is forgotten."""

    _store: Store

    def acquire(self, name: str, owner: str, ttl: float) -> int | None:
        """Take a free named lease."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            lease = store.named_leases.get(name)
            if lease is not None and lease.until > now:
                if lease.owner != owner:
                    return None
                lease.until = now + ttl
                return lease.token
            token = next(store.counter)
            store.named_leases[name] = NamedLease(owner, token, now + ttl)
            return token

    def renew(self, name: str, token: int, ttl: float) -> bool:
        """Prolong a held one."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            lease = store.named_leases.get(name)
            if lease is None or lease.token != token or lease.until <= now:
                return False
            lease.until = now + ttl
            return True

    def release(self, name: str, token: int) -> bool:
        """Give it up."""
        store = self._store
        with store.lock:
            lease = store.named_leases.get(name)
            if lease is None or lease.token != token:
                return False
            del store.named_leases[name]
            return lease.until > store.clock.time()


class MemoryRates(RateRole):
    """The role of rates."""

    _store: Store

    def take_tokens(self, wishes: Sequence[RateWish]) -> list[float]:
        """Count starts."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            return [
                rates.take(store.rates.setdefault(wish.name, rates.RateState()), wish, now)
                for wish in wishes
            ]
