"""Named leases: cluster-wide mutexes with fencing tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.testing.conformance.scenario import check, equal, scenario

if TYPE_CHECKING:
    from taskmq.testing.conformance.rig import Rig


def acquire(rig: Rig, name: str, owner: str, ttl: float | None = None) -> int:
    """Acquire a lease that must be free."""
    token = rig.transport.acquire(name, owner, rig.long if ttl is None else ttl)
    check(token is not None, f"lease {name!r} was not given to {owner} though it is free")
    return token or 0


@scenario("R9.1", "leases")
def lease_has_one_owner(rig: Rig) -> None:
    """A held lease is given to no other owner, through any handle; other names are not touched."""
    acquire(rig, "beat", "a")
    equal(rig.transport.acquire("beat", "b", rig.long), None, "a held lease")
    equal(rig.duplicate().acquire("beat", "b", rig.long), None, "a held lease, by another handle")
    acquire(rig, "other", "b")


@scenario("R9.2", "leases")
def lease_tokens_rise(rig: Rig) -> None:
    """Each new holding has a greater token than any before, also after release and expiry."""
    tokens: list[int] = []
    for turn in range(3):
        token = acquire(rig, "beat", f"a{turn}")
        tokens.append(token)
        check(rig.transport.release("beat", token), "release of a held lease")
        tokens.append(acquire(rig, "beat", f"b{turn}", rig.moment))
        rig.elapse(rig.moment * 1.5)
        rig.reap()
    equal(tokens, sorted(set(tokens)), "tokens in order of holding")


@scenario("R9.3", "leases")
def lease_owner_asks_again(rig: Rig) -> None:
    """The holder asking again gets its own token and the full time anew."""
    token = acquire(rig, "beat", "a", rig.moment * 2)
    rig.elapse(rig.moment)
    equal(rig.transport.acquire("beat", "a", rig.moment * 4), token, "token of the holder")
    rig.elapse(rig.moment * 2)
    equal(rig.transport.acquire("beat", "b", rig.long), None, "given to another before its time")


@scenario("R9.4", "leases")
def lease_renewal(rig: Rig) -> None:
    """A renewal prolongs a lease still held under this token; a stale token renews and releases nothing."""
    old = acquire(rig, "beat", "a", rig.moment * 2)
    rig.elapse(rig.moment)
    equal(rig.transport.renew("beat", old, rig.moment * 3), True, "renewal of a held lease")
    rig.elapse(rig.moment * 2)
    equal(rig.transport.acquire("beat", "b", rig.long), None, "given away though renewed")
    rig.elapse(rig.moment * 2)
    new = acquire(rig, "beat", "b", rig.moment * 4)
    equal(rig.transport.renew("beat", old, rig.long), False, "renewal under a stale token")
    equal(rig.transport.release("beat", old), False, "release under a stale token")
    equal(rig.transport.renew("beat", new, rig.moment), True, "renewal by the holder")
    equal(rig.transport.renew("nobody-has-it", 1, rig.moment), False, "renewal of a free lease")


@scenario("R9.5", "leases")
def lease_that_is_over_is_lost(rig: Rig) -> None:
    """A lease that is over is not renewed: it is no longer held."""
    token = acquire(rig, "beat", "a", rig.moment)
    rig.elapse(rig.moment * 1.5)
    equal(rig.transport.renew("beat", token, rig.long), False, "renewal of a lease that is over")
    acquire(rig, "beat", "b")


@scenario("R9.6", "leases")
def lease_release(rig: Rig) -> None:
    """A released lease is free at once; a second release answers False."""
    token = acquire(rig, "beat", "a")
    equal(rig.transport.release("beat", token), True, "release")
    equal(rig.transport.release("beat", token), False, "repeated release")
    check(acquire(rig, "beat", "b") > token, "the next token is not greater")


@scenario("R9.7", "leases")
def lease_among_owners_at_once(rig: Rig) -> None:
    """Of many owners that ask at the same instant one gets the lease."""
    for turn in range(6):
        handles = [rig.duplicate() for _ in range(4)]
        answers = rig.together(
            *(
                (lambda h=h, n=n: h.acquire(f"race-{turn}", f"owner-{n}", rig.long))
                for n, h in enumerate(handles)
            )
        )
        equal(sum(token is not None for token in answers), 1, "owners")
