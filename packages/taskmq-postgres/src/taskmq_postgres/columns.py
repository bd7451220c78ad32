"""Settlements as columns of a batch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from taskmq.states import JobState
from taskmq.transport.types import Ack, Bury, Defer, Park, Release, Retry, Yield
from taskmq_postgres import arrays
from taskmq_postgres.store import encode, split_receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import Settlement

_FINAL_TEXT = {state: str(state.value) for state in JobState}
_KINDS: dict[type[Any], str] = {
    Bury: "bury",
    Defer: "defer",
    Park: "park",
    Release: "release",
    Retry: "retry",
    Yield: "yield",
}


def columns(settlements: Sequence[Settlement]) -> list[Any]:
    """The parameters of `settle_1` after the first two; what no settlement needs is None.

    Ends of jobs that the call names once have no kind, and where there is nothing else the call has none:
    all of them are settled by one statement.
    """
    receipts = [split_receipt(one.receipt) for one in settlements]
    numbers = [number for number, _ in receipts]
    agos = [one.started_ago for one in settlements]
    results = [one.result if type(one) is Ack else None for one in settlements]
    stored = [type(one) is Ack and one.result_stored for one in settlements]
    kinds = _kinds(numbers, settlements)
    plain = not any(kinds)
    return [
        arrays.bigints(numbers),
        arrays.texts([token for _, token in receipts]),
        arrays.some_texts(kinds),
        arrays.some_texts([_final(one) for one in settlements]),
        arrays.some_floats(agos),
        None if plain else arrays.some_floats([_delay(one) for one in settlements]),
        arrays.some_texts([None if r is None else r.content_type for r in results]),
        arrays.some_blobs([None if r is None else r.data for r in results]),
        arrays.some_blobs([_error(one) for one in settlements]),
        arrays.some_blobs([one.meta for one in settlements]),
        arrays.bools(stored) if any(stored) else None,
        None if plain else arrays.some_blobs([_envelope(one) for one in settlements]),
    ]


def _kinds(numbers: Sequence[int], settlements: Sequence[Settlement]) -> list[str | None]:
    if len(set(numbers)) == len(numbers):
        return [None if _is_end(one) else kind_of(one) for one in settlements]
    named = Counter(numbers)
    return [
        None if named[number] == 1 and _is_end(one) else kind_of(one)
        for number, one in zip(numbers, settlements, strict=True)
    ]


def kind_of(settlement: Settlement) -> str:
    """What `settle_one_1` calls it."""
    if isinstance(settlement, Ack):
        return "run" if settlement.state is JobState.RUNNING else "ack"
    if isinstance(settlement, Release) and settlement.counted:
        return "counted"
    return _KINDS[type(settlement)]


def _is_end(settlement: Settlement) -> bool:
    return type(settlement) is Ack and settlement.state is not JobState.RUNNING


def _final(settlement: Settlement) -> str | None:
    if isinstance(settlement, Ack):
        return None if settlement.state is JobState.SUCCEEDED else _FINAL_TEXT[settlement.state]
    return "FAILED" if isinstance(settlement, Bury) else None


def _delay(settlement: Settlement) -> float | None:
    if isinstance(settlement, (Retry, Defer, Yield)):
        return settlement.delay
    return settlement.timeout if isinstance(settlement, Park) else None


def _error(settlement: Settlement) -> bytes | None:
    if isinstance(settlement, (Ack, Retry, Bury)) and settlement.error is not None:
        return encode(settlement.error)
    return None


def _envelope(settlement: Settlement) -> bytes | None:
    return settlement.envelope if isinstance(settlement, Retry) else None
