"""The retry decision: one pure function, finite for every attempt."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmq.errors import ArgumentError, ConfigError, Reject
from taskmq.retry import (
    Backoff,
    GiveUp,
    Retry,
    RetryIn,
    RetryRequest,
    UnwantedResult,
    decide,
    delay_after,
    is_unwanted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BACKOFFS: list[Backoff] = ["exp", "linear", "fixed"]
seconds = st.floats(0, 3_000_000_000.0)


def _delays(policy: Retry, attempts: int = 4) -> list[float]:
    return [delay_after(policy, attempt) for attempt in range(1, attempts + 1)]


def test_each_backoff_grows_as_it_says() -> None:
    assert _delays(Retry(backoff="exp", base=2, factor=3, jitter=False)) == [2, 6, 18, 54]
    assert _delays(Retry(backoff="linear", base=2, jitter=False)) == [2, 4, 6, 8]
    assert _delays(Retry(backoff="fixed", base=2, jitter=False)) == [2, 2, 2, 2]
    assert _delays(Retry(backoff=lambda attempt: attempt * 10, jitter=False)) == [10, 20, 30, 40]


@pytest.mark.parametrize("backoff", BACKOFFS)
@pytest.mark.parametrize("jitter", [False, True])
def test_delay_stays_between_zero_and_the_cap_for_ten_thousand_attempts(
    backoff: Backoff, jitter: bool
) -> None:
    policy = Retry(backoff=backoff, base=0.5, factor=5, max_delay=3600, jitter=jitter)
    rng = random.Random(7)

    delays = [delay_after(policy, attempt, rng) for attempt in range(10_001)]

    assert all(0 <= delay <= 3600 for delay in delays)
    assert all(delay >= 1800 for delay in delays[1000:] if backoff == "exp")


@settings(deadline=None)
@given(
    st.sampled_from(BACKOFFS),
    seconds,
    st.floats(1, 3_000_000_000.0),
    seconds,
    st.integers(-5, 10**12),
    st.integers(),
)
def test_delay_is_finite_and_capped_whatever_the_policy(
    backoff: Backoff, base: float, factor: float, cap: float, attempt: int, seed: int
) -> None:
    policy = Retry(backoff=backoff, base=base, factor=factor, max_delay=cap)

    delay = delay_after(policy, attempt, random.Random(seed))

    assert math.isfinite(delay)
    assert 0 <= delay <= cap


def _raises(attempt: int) -> float:
    raise RuntimeError(f"no delay for {attempt}")


@pytest.mark.parametrize(
    "broken",
    [_raises, lambda _: None, lambda _: -1, lambda _: math.nan, lambda _: "soon"],
)
def test_a_broken_backoff_function_means_the_base_delay_and_a_log_line(
    broken: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    policy = Retry(backoff=broken, base=3, jitter=False)

    assert decide(policy, ValueError(), 1) == RetryIn(3)
    assert "backoff function" in caplog.text


@pytest.mark.parametrize("huge", [1e300, math.inf])
def test_a_huge_delay_of_a_backoff_function_is_capped(huge: float) -> None:
    assert delay_after(Retry(backoff=lambda _: huge, jitter=False), 1) == 600


def test_jitter_takes_off_up_to_a_half() -> None:
    policy = Retry(backoff="fixed", base=10)
    rng = random.Random(1)

    delays = [delay_after(policy, 1, rng) for _ in range(500)]

    assert all(5 <= delay <= 10 for delay in delays)
    assert max(delays) - min(delays) > 4


def test_without_a_policy_a_job_is_tried_once() -> None:
    exc = ValueError()

    assert decide(None, exc, 1) == GiveUp("exception", exc)


def test_attempts_end_at_the_limit() -> None:
    policy = Retry(max_attempts=3)

    assert isinstance(decide(policy, ValueError(), 2), RetryIn)
    assert isinstance(decide(policy, ValueError(), 3), GiveUp)
    assert isinstance(decide(policy, ValueError(), 4), GiveUp)


def test_the_limit_of_the_message_goes_before_the_policy() -> None:
    assert isinstance(decide(Retry(max_attempts=3), ValueError(), 4, max_attempts=9), RetryIn)
    assert isinstance(decide(Retry(max_attempts=9), ValueError(), 2, max_attempts=2), GiveUp)


@pytest.mark.parametrize(
    ("exc", "reason"),
    [(Reject("bad"), "rejected"), (ArgumentError("no int", path="x"), "invalid arguments")],
)
def test_what_cannot_get_better_is_never_retried(exc: Exception, reason: str) -> None:
    policy = Retry(max_attempts=9, retry_on=(BaseException,), retry_if=lambda _: True)

    assert decide(policy, exc, 1) == GiveUp(reason, exc)


def test_exceptions_are_sorted_by_the_policy() -> None:
    policy = Retry(retry_on=(OSError, KeyError), give_up_on=(FileNotFoundError,))

    assert isinstance(decide(policy, ConnectionError(), 1), RetryIn)
    assert isinstance(decide(policy, KeyError(), 1), RetryIn)
    assert isinstance(decide(policy, FileNotFoundError(), 1), GiveUp)
    assert isinstance(decide(policy, ValueError(), 1), GiveUp)


def test_system_exit_is_retried_only_when_named() -> None:
    assert isinstance(decide(Retry(), SystemExit(), 1), GiveUp)
    assert isinstance(decide(Retry(retry_on=(SystemExit,)), SystemExit(), 1), RetryIn)


def test_retry_if_narrows_what_retry_on_allows() -> None:
    policy = Retry(retry_on=(OSError,), retry_if=lambda exc: "again" in str(exc))

    assert isinstance(decide(policy, OSError("again"), 1), RetryIn)
    assert isinstance(decide(policy, OSError("never"), 1), GiveUp)
    assert isinstance(decide(policy, ValueError("again"), 1), GiveUp)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_broken_retry_if_costs_no_job(
    caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    def broken(exc: BaseException) -> bool:
        raise error("broken")

    policy = Retry(retry_if=broken, max_attempts=2)

    assert isinstance(decide(policy, ValueError(), 1), RetryIn)
    assert isinstance(decide(policy, ValueError(), 2), GiveUp)
    assert "retry_if raised" in caplog.text


def test_explicit_delays_are_neither_jittered_nor_capped() -> None:
    policy = Retry(max_delay=10, base=1)

    assert decide(policy, RetryRequest(delay=86_400), 1) == RetryIn(86_400)
    assert decide(policy, RetryRequest(delay=0), 1) == RetryIn(0)


def test_a_request_counts_as_an_attempt_and_fails_with_its_exception() -> None:
    cause = OSError("down")
    request = RetryRequest(delay=5, exc=cause)

    assert decide(Retry(max_attempts=3), request, 3) == GiveUp("exception", cause)
    bare = RetryRequest(delay=5)
    assert decide(None, bare, 1) == GiveUp("exception", bare)


def test_max_retries_of_a_request_overrides_every_other_limit() -> None:
    request = RetryRequest(delay=1, max_retries=4)

    assert decide(Retry(max_attempts=2), request, 4, max_attempts=2) == RetryIn(1)
    assert isinstance(decide(Retry(max_attempts=9), request, 5), GiveUp)


def test_a_request_without_delay_takes_the_policys() -> None:
    policy = Retry(base=7, jitter=False, retry_on=())

    assert decide(policy, RetryRequest(), 1) == RetryIn(7)
    assert isinstance(decide(None, RetryRequest(max_retries=1), 1), RetryIn)


def test_an_unwanted_result_is_retried_though_no_exception_is_named() -> None:
    policy = Retry(retry_on=(), retry_result=lambda value: value is None)

    assert is_unwanted(policy, None)
    assert not is_unwanted(policy, 0)
    assert isinstance(decide(policy, UnwantedResult(), 1), RetryIn)
    assert isinstance(decide(policy, UnwantedResult(), 3), GiveUp)


def test_a_broken_retry_result_takes_the_value_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def broken(value: object) -> bool:
        raise RuntimeError("broken")

    assert not is_unwanted(Retry(retry_result=broken), None)
    assert not is_unwanted(None, None)
    assert "retry_result raised" in caplog.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_attempts": 0}, "Retry.max_attempts must be at least 1, not 0"),
        ({"max_attempts": True}, "whole number"),
        ({"max_attempts": 2.5}, "whole number"),
        ({"backoff": "expo"}, "Retry.backoff must be one of 'exp', 'linear', 'fixed'"),
        ({"base": -1}, "Retry.base"),
        ({"base": math.nan}, "Retry.base"),
        ({"base": 10**400}, "Retry.base"),
        ({"factor": 0.5}, "Retry.factor must be at least 1"),
        ({"max_delay": math.inf}, "Retry.max_delay"),
        ({"jitter": 1}, "Retry.jitter must be True or False"),
        ({"retry_on": ValueError}, "tuple of exception types"),
        ({"retry_on": ("ValueError",)}, "exception types only"),
        ({"give_up_on": (int,)}, "exception types only"),
        ({"retry_if": "always"}, "Retry.retry_if must be a function"),
        ({"retry_result": 3}, "Retry.retry_result must be a function"),
    ],
)
def test_a_wrong_policy_is_refused_when_built(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Retry(**fields)

    assert message in str(caught.value)


def test_a_timedelta_is_refused_with_a_hint() -> None:
    from datetime import timedelta

    with pytest.raises(ConfigError, match="give seconds as a number"):
        Retry(base=timedelta(seconds=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, "soon", 1e300])
def test_a_request_with_an_impossible_delay_is_refused(delay: Any) -> None:
    with pytest.raises(ConfigError, match="retry delay"):
        RetryRequest(delay=delay)
