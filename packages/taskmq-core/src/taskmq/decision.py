"""What follows an attempt: the settlement for a result, a failure or an outcome from outside. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from taskmq.context import Directive, Parked
from taskmq.errors import (
    ArgumentError,
    AttemptLost,
    Cancelled,
    EncodeError,
    MessageTooLarge,
    ProtocolError,
    RemoteError,
)
from taskmq.failures import describe, message_of
from taskmq.retry import GiveUp, RetryIn, RetryRequest, UnwantedResult, decide, is_unwanted
from taskmq.states import JobState
from taskmq.transport.types import (
    Ack,
    Bury,
    Completion,
    Delivery,
    ErrorInfo,
    Park,
    Payload,
    Release,
    Retry,
    Settlement,
)

if TYPE_CHECKING:
    from taskmq.execution import Attempt


class Outcome(msgspec.Struct, kw_only=True):
    """What became of an attempt, and what its worker has to say to the transport about it."""

    settlement: Settlement
    state: JobState
    """The state that the settlement leads to."""
    value: Any = None
    exc: BaseException | None = None
    delay: float | None = None
    """Seconds until the next attempt, for RETRYING."""
    error: ErrorInfo | None = None


def after_completion(attempt: Attempt, completion: Completion) -> Outcome:
    """Decide for a parked job whose outcome came from outside, or did not come in time."""
    receipt = attempt.delivery.receipt
    if completion.state == "SUCCEEDED":
        settlement = Ack(receipt=receipt, result=completion.result)
        return Outcome(settlement=settlement, state=JobState.SUCCEEDED)
    error = completion.error or ErrorInfo(reason="exception", message="failed from outside")
    exc = RemoteError(
        attempt.delivery.id,
        state="FAILED",
        type=error.type,
        message=error.message,
        reason=error.reason,
    )
    decision = _decide(attempt, exc) if completion.retryable else GiveUp(error.reason, exc)
    if isinstance(decision, RetryIn):
        return _retry(attempt, exc, decision.delay, error)
    return _fail(attempt, exc, error)


def after_defect(attempt: Attempt, error: BaseException) -> Outcome:
    """Fail the job whose exception or result could not even be looked at; another try would not help."""
    return _fail(attempt, error, describe(error))


def after_failure(attempt: Attempt, exc: BaseException) -> Outcome:
    """Decide for an attempt that raised."""
    control, delivery = attempt.control, attempt.delivery
    if isinstance(exc, Cancelled) and exc.reason in ("stopping", "lost") and not control.cancelled:
        return _hand_back(attempt, exc)
    if control.cancelled:
        return revoked(delivery)
    if isinstance(exc, ProtocolError):
        return _fail(attempt, exc, describe(exc, reason="undecodable"))
    decision = _decide(attempt, exc)
    if isinstance(decision, RetryIn):
        return _retry(
            attempt,
            exc,
            decision.delay,
            describe(exc, reason=_reason(exc, "exception")),
            changed_call(attempt, exc),
        )
    final = decision.exc
    return _fail(attempt, final, describe(final, reason=_reason(final, decision.reason)))


def after_return_value(attempt: Attempt, value: Any) -> Outcome:
    """Decide for an attempt whose body has returned."""
    if attempt.control.cancelled:
        return revoked(attempt.delivery)
    policy, receipt = attempt.task.policy, attempt.delivery.receipt
    if isinstance(value, Directive):
        return Outcome(settlement=value.settlement, state=value.state)
    if isinstance(value, Parked) or policy.completion == "external":
        timeout = value.timeout if isinstance(value, Parked) else policy.completion_timeout
        return Outcome(settlement=Park(receipt=receipt, timeout=timeout), state=JobState.WAITING)
    if policy.retry is not None and is_unwanted(policy.retry, value):
        return after_failure(attempt, UnwantedResult(f"retry_result refused {_shown(value)}"))
    payload: Payload | None = None
    # None needs no bytes: a record without a result reads as None.
    if value is not None and attempt.envelope.store_result:
        try:
            payload = encode_result(attempt, value)
        except (EncodeError, MessageTooLarge) as exc:
            # The work is done: another attempt would repeat its effects and fail again.
            return _fail(attempt, exc, describe(exc, reason="result not serialisable"))
    settlement = Ack(receipt=receipt, result=payload)
    return Outcome(settlement=settlement, state=JobState.SUCCEEDED, value=value)


def encode_result(attempt: Attempt, value: Any) -> Payload:
    """Encode what a task returned.

    Raises:
        EncodeError: It can't travel exactly.
        MessageTooLarge: It is over `Config.max_message_bytes`, and there is no separate store.
    """
    app, task = attempt.app, attempt.task
    try:
        payload = app.codecs.encode_value(value, task.policy.serializer, task.signature.returns)
    except (EncodeError, RecursionError):
        raise
    # Objects decide themselves what happens when they are looked at.
    except Exception as error:
        raise EncodeError(f"the result can't travel: {message_of(error)}") from error
    limit = app.config.max_message_bytes
    if app.config.result is None and len(payload.data) > limit:
        raise MessageTooLarge(len(payload.data), limit, what="result")
    return payload


def revoked(delivery: Delivery) -> Outcome:
    """The end of a job that was cancelled."""
    error = ErrorInfo(reason="revoked")
    settlement = Ack(receipt=delivery.receipt, state=JobState.REVOKED, error=error)
    return Outcome(settlement=settlement, state=JobState.REVOKED, error=error)


def _decide(attempt: Attempt, exc: BaseException) -> RetryIn | GiveUp:
    """Retry or give up; a job that is acknowledged in any case is never retried."""
    retry = attempt.task.policy.retry
    decision = decide(retry, exc, attempt.delivery.attempt, max_attempts=attempt.max_attempts)
    if attempt.ack == "on_success" or isinstance(decision, GiveUp):
        return decision
    final = getattr(exc, "exc", None)
    return GiveUp("exception", final if isinstance(final, BaseException) else exc)


def _fail(attempt: Attempt, exc: BaseException, error: ErrorInfo) -> Outcome:
    receipt = attempt.delivery.receipt
    # What was acknowledged on receipt is gone: there is no message to make a dead letter of.
    settlement: Settlement = (
        Ack(receipt=receipt, state=JobState.FAILED, error=error)
        if attempt.ack == "on_receipt"
        else Bury(receipt=receipt, error=error)
    )
    return Outcome(settlement=settlement, state=JobState.FAILED, exc=exc, error=error)


def _hand_back(attempt: Attempt, exc: Cancelled) -> Outcome:
    """Give a started job back, its delivery counted, so that another worker starts it at once."""
    if attempt.ack != "on_success":
        return _fail(attempt, exc, describe(exc, reason="worker lost"))
    settlement = Release(receipt=attempt.delivery.receipt, counted=True)
    return Outcome(settlement=settlement, state=JobState.QUEUED, exc=exc)


def _reason(exc: BaseException, otherwise: str) -> str:
    if isinstance(exc, AttemptLost):
        return exc.reason
    if isinstance(exc, Cancelled) and exc.reason == "timed out":
        return "timed out"
    return "invalid arguments" if isinstance(exc, ArgumentError) else otherwise


def changed_call(attempt: Attempt, exc: BaseException) -> bytes | None:
    """The envelope of the next attempt when the task wants other arguments; None keeps it.

    Raises:
        EncodeError: An argument can't travel.
        TypeError: They don't fit the task's signature.
        MessageTooLarge: They are over `Config.max_message_bytes`.
    """
    if not isinstance(exc, RetryRequest) or (exc.args_given is None and exc.kwargs_given is None):
        return None
    envelope, caller = attempt.envelope, attempt.task.caller
    codecs = attempt.app.codecs
    args, kwargs = codecs.decode_call(envelope.body, envelope.content_type)
    if exc.args_given is not None:
        args = exc.args_given
    if exc.kwargs_given is not None:
        kwargs = exc.kwargs_given
    filled = attempt.filled_names(len(args), kwargs)
    content_type, body = caller.encode_step(args, kwargs, filled)
    return caller.seal(msgspec.structs.replace(envelope, content_type=content_type, body=body))


def _retry(
    attempt: Attempt,
    exc: BaseException,
    delay: float,
    error: ErrorInfo,
    envelope: bytes | None = None,
) -> Outcome:
    settlement = Retry(
        receipt=attempt.delivery.receipt, delay=delay, error=error, envelope=envelope
    )
    return Outcome(
        settlement=settlement, state=JobState.RETRYING, exc=exc, delay=delay, error=error
    )


def _shown(value: object) -> str:
    try:
        return f"{value!r:.200}"
    # A user's __repr__ may raise anything.
    except Exception:  # noqa: BLE001
        return f"a {type(value).__name__}"
