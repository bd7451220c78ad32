"""Retry policies, and the one pure function that decides what follows a failed attempt."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

import msgspec

from taskmq._internal.checks import flag, number, one_of, whole
from taskmq._internal.guards import is_tuple, is_type
from taskmq.errors import ArgumentError, BudgetExceeded, ConfigError, Reject, TaskmqError

logger = logging.getLogger("taskmq.retry")

Backoff = Literal["exp", "linear", "fixed"]


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed attempt is followed by another, and after how long.

    The delay before attempt n+1 is `base·factor^(n-1)` ("exp"), `base·n` ("linear") or `base`
    ("fixed"), at most `max_delay`; with `jitter` it is a random part of that between a half and
    the whole, so that jobs that failed together don't come back together.
    """

    max_attempts: int = 3
    """How often the job is tried in all, the first attempt included."""
    backoff: Backoff | Callable[[int], float] = "exp"
    """How the delay grows, or a function of the failed attempt's number to seconds."""
    base: float = 1.0
    """The first delay, in seconds."""
    factor: float = 2.0
    """What each further delay is multiplied by ("exp" only)."""
    max_delay: float = 600.0
    """The longest delay, in seconds."""
    jitter: bool = True
    """Whether delays are shortened at random, by up to a half."""
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    """Exceptions that are worth another attempt."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """Exceptions that are not, though `retry_on` names them."""
    retry_if: Callable[[BaseException], bool] | None = None
    """Asked about an exception that `retry_on` allows; False gives up."""
    retry_result: Callable[[Any], bool] | None = None
    """Asked about a returned value; True counts it as a failed attempt."""

    def __post_init__(self) -> None:
        whole("Retry.max_attempts", self.max_attempts, 1)
        if not callable(self.backoff):
            one_of("Retry.backoff", self.backoff, ("exp", "linear", "fixed"))
        number("Retry.base", self.base)
        number("Retry.factor", self.factor, 1)
        number("Retry.max_delay", self.max_delay)
        flag("Retry.jitter", self.jitter)
        _check_types("Retry.retry_on", self.retry_on)
        _check_types("Retry.give_up_on", self.give_up_on)
        for name in ("retry_if", "retry_result"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise ConfigError(f"Retry.{name} must be a function or None, not {function!r:.80}")


class RetryRequest(TaskmqError):
    """Raised by a task that wants another attempt; made by `ctx.retry(…)`.

    Attributes:
        delay: Seconds until the next attempt, taken as they are; None for the policy's delay.
        exc: What the job fails with when no attempt is left; None for this request itself.
        reason: Why, for people.
        max_retries: Overrides the policy: at most this many attempts after the first.
        args_given: Other positional arguments for the next attempt; None keeps them.
        kwargs_given: Other keyword arguments, likewise.
    """

    def __init__(
        self,
        *,
        delay: float | None = None,
        exc: BaseException | None = None,
        reason: str = "",
        max_retries: int | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.args_given = None if args is None else tuple(args)
        self.kwargs_given = None if kwargs is None else dict(kwargs)
        self.delay = None if delay is None else number("retry delay", delay)
        self.exc = exc
        self.reason = reason
        self.max_retries = None if max_retries is None else whole("max_retries", max_retries, 0)
        super().__init__(reason or (f"retry after {exc!r:.200}" if exc else "retry requested"))


class UnwantedResult(TaskmqError):
    """The task returned a value that its `retry_result` counts as a failure."""


class RetryIn(msgspec.Struct, frozen=True):
    """Try again after `delay` seconds."""

    delay: float


class GiveUp(msgspec.Struct, frozen=True):
    """No further attempt. `reason` is an `ErrorInfo.reason`; the job fails with `exc`."""

    reason: str
    exc: BaseException


Decision = Union[RetryIn, GiveUp]


def decide(
    policy: Retry | None,
    exc: BaseException,
    attempt: int,
    *,
    max_attempts: int | None = None,
    rng: random.Random | None = None,
) -> Decision:
    """Decide what follows a failed attempt.

    Args:
        policy: The task's policy; None tries a job once.
        exc: What the attempt failed with.
        attempt: The number of the failed attempt, from 1.
        max_attempts: The message's own limit, which goes before the policy's.
        rng: The source of jitter.
    """
    if isinstance(exc, Reject):
        return GiveUp("rejected", exc)
    if isinstance(exc, ArgumentError):
        return GiveUp("invalid arguments", exc)
    if isinstance(exc, BudgetExceeded):
        return GiveUp("budget", exc)
    limit = max_attempts if max_attempts is not None else policy.max_attempts if policy else 1
    if isinstance(exc, RetryRequest):
        return _decide_request(policy, exc, attempt, limit, rng)
    if policy is None or attempt >= limit or not _worth_retrying(policy, exc):
        return GiveUp("exception", exc)
    return RetryIn(delay_after(policy, attempt, rng))


def delay_after(policy: Retry, attempt: int, rng: random.Random | None = None) -> float:
    """The delay after the failed attempt of this number, always within 0 and `max_delay`."""
    delay = _uncapped(policy, max(attempt, 1))
    # Also false for NaN: then, and for a negative delay, the base is taken.
    delay = min(delay, policy.max_delay) if delay >= 0 else min(policy.base, policy.max_delay)
    return delay * (rng or _random).uniform(0.5, 1.0) if policy.jitter else delay


def is_unwanted(policy: Retry | None, value: object) -> bool:
    """Whether `retry_result` counts this returned value as a failure."""
    if policy is None or policy.retry_result is None:
        return False
    try:
        return bool(policy.retry_result(value))
    # A broken predicate must not undo work that has succeeded.
    except BaseException:
        logger.exception("retry_result raised: the result is taken as it is")
        return False


def _decide_request(
    policy: Retry | None,
    request: RetryRequest,
    attempt: int,
    limit: int,
    rng: random.Random | None,
) -> Decision:
    if request.max_retries is not None:
        limit = request.max_retries + 1
    if attempt >= limit:
        return GiveUp("exception", request.exc or request)
    if request.delay is not None:
        return RetryIn(request.delay)
    return RetryIn(delay_after(policy or _DEFAULT, attempt, rng))


def _worth_retrying(policy: Retry, exc: BaseException) -> bool:
    if isinstance(exc, policy.give_up_on):
        return False
    if isinstance(exc, UnwantedResult):
        return True
    if not isinstance(exc, policy.retry_on):
        return False
    if policy.retry_if is None:
        return True
    try:
        return bool(policy.retry_if(exc))
    # A broken predicate must not cost the job: attempts are bounded anyway.
    except BaseException:
        logger.exception("retry_if raised: the attempt is retried")
        return True


def _uncapped(policy: Retry, attempt: int) -> float:
    """The delay before the cap; infinite where a float would overflow."""
    if callable(policy.backoff):
        return _ask_backoff(policy.backoff, attempt)
    if policy.backoff == "fixed" or not policy.base:
        return policy.base
    if policy.backoff == "linear":
        return policy.base * attempt
    if math.log(policy.factor) * (attempt - 1) > 600:
        return math.inf
    return policy.base * policy.factor ** (attempt - 1)


def _ask_backoff(backoff: Callable[[int], float], attempt: int) -> float:
    try:
        delay = float(backoff(attempt))
    # A broken function must not cost the job: the base delay is taken instead.
    except BaseException:
        logger.exception("the backoff function raised: the base delay is used")
        return math.nan
    if not delay >= 0:
        logger.error("the backoff function returned %r: the base delay is used", delay)
    return delay


def _check_types(name: str, types: object) -> None:
    if not is_tuple(types):
        raise ConfigError(f"{name} must be a tuple of exception types, not {types!r:.80}")
    for each in types:
        if not (is_type(each) and issubclass(each, BaseException)):
            raise ConfigError(f"{name} must hold exception types only, not {each!r:.80}")


_random = random.Random()
_DEFAULT = Retry()
