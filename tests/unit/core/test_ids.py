"""Job ids sort by creation, and are never made twice."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskmq import ids
from taskmq.clock import FakeClock
from taskmq.ids import new_id, new_token

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")


def _time_of(ulid: str) -> int:
    number = 0
    for letter in ulid[:10]:
        number = number * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter)
    return number


def test_ids_are_ulids() -> None:
    assert all(ULID.match(new_id()) for _ in range(1000))


def test_ids_rise_strictly_within_a_process() -> None:
    made = [new_id() for _ in range(20_000)]

    assert made == sorted(set(made))


def test_ids_rise_while_the_clock_stands_still_or_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(1_700_000_000.5)
    monkeypatch.setattr(ids, "SYSTEM_CLOCK", clock)
    generator = ids._Generator()

    made = [generator() for _ in range(100)]
    clock.set_time(1_600_000_000.0)
    made += [generator() for _ in range(100)]
    clock.set_time(1_700_000_001.0)
    made.append(generator())

    assert made == sorted(set(made))
    assert _time_of(made[0]) == 1_700_000_000_500
    assert _time_of(made[-1]) == 1_700_000_001_000


def test_threads_never_get_the_same_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [new_id() for _ in range(2000)], range(8)))

    assert len({each for batch in batches for each in batch}) == 16_000
    assert all(batch == sorted(batch) for batch in batches)


def test_tokens_are_url_safe_free_of_dots_and_differ() -> None:
    tokens = {new_token() for _ in range(1000)}

    assert len(tokens) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", token) for token in tokens)
