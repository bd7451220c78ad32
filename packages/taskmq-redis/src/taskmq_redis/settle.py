"""Settling and extending: what workers say of their deliveries, a batch in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskmq.states import JobState
from taskmq.transport.contract import MessageRole
from taskmq.transport.types import (
    Ack,
    Defer,
    ExtendReply,
    Park,
    Release,
    Retry,
    SettleReply,
    SettleResult,
    Yield,
)
from taskmq_redis.messages import words
from taskmq_redis.reserve import cancellations, priority
from taskmq_redis.store import (
    Store,
    error_words,
    micros,
    result_bytes,
    seconds,
    shown_receipt,
    split_receipt,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import Extension, FollowUps, Settlement

_OK: Final = SettleResult("ok")
_KINDS: dict[bytes, SettleResult] = {
    b"ok": _OK,
    b"already": SettleResult("already"),
    b"lost": SettleResult("lost"),
}


class Settling(Store, MessageRole):
    """The part of the message role that holders use."""

    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        """See the contract."""
        items: list[list[Any]] = []
        unstorable: dict[int, SettleResult] = {}
        for position, settlement in enumerate(settlements):
            try:
                items.append(_item(settlement))
            except UnicodeEncodeError as error:
                # One text that is no Unicode must not block the others.
                unstorable[position] = SettleResult("refused", f"not storable: {error.reason}")
        results, news = self._call("settle", worker, self._served(worker), items)
        cancelled, terminate = cancellations(news[2])
        if isinstance(results, int):
            found = [_OK] * results
        else:
            found = [_KINDS.get(text) or _refused(text) for text in results]
        for position, refusal in unstorable.items():
            found.insert(position, refusal)
        return SettleReply(
            results=found,
            now=seconds(news[0]),
            head=priority(news[1]),
            cancelled=cancelled,
            terminate=terminate,
        )

    def extend(self, worker: str, extensions: Sequence[Extension]) -> ExtendReply:
        """See the contract."""
        items: list[list[Any]] = []
        for extension in extensions:
            job_id, token = split_receipt(extension.receipt)
            ago = extension.started_ago
            items.append([job_id, token, micros(extension.lease), _or_false(ago)])
        lost, cancelled, expired, news = self._call("extend", worker, self._served(worker), items)
        _, terminate = cancellations(news[2])
        revoked = frozenset(map(shown_receipt, cancelled))
        return ExtendReply(
            now=seconds(news[0]),
            lost=frozenset(map(shown_receipt, lost)),
            cancelled=revoked,
            terminate=revoked & terminate,
            expired=frozenset(map(shown_receipt, expired)),
            head=priority(news[1]),
        )


def _or_false(value: float | None) -> int | bool:
    return False if value is None else micros(value)


def _refused(text: bytes) -> SettleResult:
    return SettleResult("refused", text.decode().partition(" ")[2])


def _item(settlement: Settlement) -> list[Any]:
    """A settlement as settle_plain.lua or settle.lua takes it; False for what is not given."""
    job_id, token = split_receipt(settlement.receipt)
    ago, meta, ups = settlement.started_ago, settlement.meta, settlement.follow_ups
    if (
        isinstance(settlement, Ack)
        and settlement.state is JobState.SUCCEEDED
        and meta is None
        and ups is None
        and settlement.error is None
    ):
        plain: list[Any] = [job_id, token, result_bytes(settlement.result), _or_false(ago)]
        if settlement.result_stored:
            plain.append(True)
        return plain
    head: list[Any] = [
        job_id,
        token,
        "",
        _or_false(ago),
        False if meta is None else meta,
        False if ups is None else _follow_ups(ups),
    ]
    if isinstance(settlement, Ack):
        head[2] = "ack"
        head += [
            settlement.state,
            result_bytes(settlement.result),
            error_words(settlement.error),
            settlement.result_stored,
        ]
    elif isinstance(settlement, Retry):
        head[2] = "retry"
        changed = settlement.envelope
        head += [
            micros(settlement.delay),
            error_words(settlement.error),
            False if changed is None else changed,
        ]
    elif isinstance(settlement, Defer):
        head[2] = "defer"
        head += [micros(settlement.delay), settlement.reason]
    elif isinstance(settlement, Yield):
        head[2] = "yield"
        head.append(micros(settlement.delay))
    elif isinstance(settlement, Release):
        head[2] = "release"
        head.append(settlement.counted)
    elif isinstance(settlement, Park):
        head[2] = "park"
        head.append(False if settlement.timeout is None else micros(settlement.timeout))
    else:
        head[2] = "bury"
        head.append(error_words(settlement.error))
    return head


def _follow_ups(ups: FollowUps) -> list[Any]:
    return [
        [words(message) for message in ups.enqueue] or False,
        [[more.to, more.more] for more in ups.expect] or False,
        [[a.to, a.source, a.verdict, a.series] for a in ups.arrive] or False,
        [[f.id, f.state, result_bytes(f.result), error_words(f.error)] for f in ups.finish]
        or False,
    ]
