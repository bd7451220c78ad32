"""Running one delivery: settlements, hooks, ack modes, and exceptions of every kind."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from taskmq import (
    App,
    Config,
    JobState,
    Reject,
    RemoteError,
    Retry,
    Task,
    TaskContext,
    current_task,
)
from taskmq.context import AttemptControl
from taskmq.errors import TransportUnavailable
from taskmq.events import CollectingSink
from taskmq.execution import Attempt, Outcome, Unrunnable, finish, prepare, run, run_async
from taskmq.protocol.envelope import VERSION, Envelope, encode_envelope
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import (
    Ack,
    Bury,
    Completion,
    Delivery,
    ErrorInfo,
    Park,
    QueueShare,
    Release,
    ReserveRequest,
    SettleResult,
)
from taskmq.transport.types import Retry as RetrySettlement

OK = SettleResult("ok")


@pytest.fixture
def app() -> App:
    return App(Config(transport=MemoryTransport(), events="null"))


def reserve(app: App) -> Delivery:
    shares = app.queue_shares()
    reply = app.transport.reserve(ReserveRequest(worker="w", queues=shares, limit=1))
    return reply.deliveries[0]


def attempt_of(app: App, delivery: Delivery | None = None) -> Attempt:
    made = prepare(app, delivery or reserve(app), worker="w", control=AttemptControl())
    assert isinstance(made, Attempt)
    return made


def run_one(app: App) -> Outcome:
    """Reserve, run and settle one job, as a worker does."""
    attempt = attempt_of(app)
    if attempt.receipt_ack is not None:
        app.transport.settle("w", [attempt.receipt_ack])
    outcome = run(attempt)
    result = app.transport.settle("w", [outcome.settlement]).results[0]
    finish(attempt, outcome, result)
    return outcome


def test_a_returned_value_is_acknowledged_with_its_encoding(app: App) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    handle = add.delay(2, 3)
    outcome = run_one(app)
    assert isinstance(outcome.settlement, Ack)
    assert outcome.state is JobState.SUCCEEDED
    assert handle.get(timeout=1) == 5


def test_arguments_are_converted_to_the_annotated_types(app: App) -> None:
    from decimal import Decimal

    @app.task
    def double(price: Decimal) -> str:
        return repr(price * 2)

    handle = double.delay(Decimal("1.10"))
    run_one(app)
    assert handle.get(timeout=1) == "Decimal('2.20')"


def test_a_wrong_argument_type_is_a_permanent_failure_with_its_path(app: App) -> None:
    @app.task(name="t", retry=Retry(max_attempts=5))
    def needs_ints(rows: list[int]) -> None: ...

    handle = app.send("t", ([1, "x"],))
    outcome = run_one(app)
    assert isinstance(outcome.settlement, Bury)
    assert outcome.error is not None
    assert outcome.error.reason == "invalid arguments"
    assert "rows[1]" in outcome.error.message
    assert handle.state is JobState.FAILED


def test_a_failure_is_retried_until_its_attempts_are_used_up(app: App) -> None:
    seen: list[int] = []

    @app.task(retry=Retry(max_attempts=2, base=0))
    def fail() -> None:
        seen.append(current_task().attempt)
        raise ValueError("no")

    handle = fail.delay()
    first = run_one(app)
    assert isinstance(first.settlement, RetrySettlement)
    assert (first.state, first.delay) == (JobState.RETRYING, 0)
    second = run_one(app)
    assert isinstance(second.settlement, Bury)
    assert seen == [1, 2]
    with pytest.raises(RemoteError, match="ValueError: no") as caught:
        handle.get(timeout=1)
    assert "raise ValueError" in caught.value.traceback
    assert "taskmq/execution.py" not in caught.value.traceback


def test_without_a_policy_a_job_is_tried_once(app: App) -> None:
    @app.task
    def fail() -> None:
        raise ValueError("no")

    fail.delay()
    assert isinstance(run_one(app).settlement, Bury)


def test_reject_goes_straight_to_the_dead_letters(app: App) -> None:
    @app.task(retry=Retry(max_attempts=9))
    def refuse() -> None:
        raise Reject("not ours")

    refuse.delay()
    outcome = run_one(app)
    assert outcome.error is not None
    assert (outcome.error.reason, outcome.error.message) == ("rejected", "not ours")


def test_an_explicit_retry_is_neither_jittered_nor_capped(app: App) -> None:
    @app.task(bind=True, retry=Retry(max_attempts=3, max_delay=1))
    def later(self: Task) -> None:
        raise self.retry(countdown=3000, reason="rate limited")

    later.delay()
    outcome = run_one(app)
    assert outcome.delay == 3000


def test_past_the_limit_a_retry_request_fails_with_its_exception(app: App) -> None:
    @app.task(bind=True)
    def later(self: Task) -> None:
        raise self.retry(delay=1, exc=KeyError("gone"), max_retries=0)

    handle = later.delay()
    run_one(app)
    with pytest.raises(RemoteError, match="KeyError"):
        handle.get(timeout=1)


def test_a_refused_result_counts_as_a_failed_attempt(app: App) -> None:
    @app.task(retry=Retry(max_attempts=2, base=0, retry_result=lambda value: value is None))
    def empty() -> None:
        return None

    empty.delay()
    assert run_one(app).state is JobState.RETRYING
    assert run_one(app).state is JobState.FAILED


@pytest.mark.parametrize(
    "make",
    [threading.Lock, lambda: iter([1]), lambda: "\ud800", object],
    ids=["lock", "generator", "surrogate", "object"],
)
def test_an_unencodable_result_fails_the_job_without_another_attempt(app: App, make: Any) -> None:
    runs: list[int] = []

    @app.task(retry=Retry(max_attempts=5, base=0))
    def bad() -> Any:
        runs.append(1)
        return make()

    handle = bad.delay()
    outcome = run_one(app)
    assert outcome.state is JobState.FAILED
    with pytest.raises(RemoteError) as caught:
        handle.get(timeout=1)
    assert caught.value.reason == "result not serialisable"
    assert runs == [1]


def test_a_self_referencing_result_fails_the_job(app: App) -> None:
    @app.task
    def loop() -> Any:
        rows: list[Any] = []
        rows.append(rows)
        return rows

    loop.delay()
    outcome = run_one(app)
    assert outcome.error is not None
    assert outcome.error.reason == "result not serialisable"


def test_a_result_over_the_limit_fails_the_job(app: App) -> None:
    @app.task(retry=Retry(max_attempts=5))
    def large() -> bytes:
        return b"x" * 300_000

    large.delay()
    outcome = run_one(app)
    assert outcome.error is not None
    assert outcome.error.reason == "result not serialisable"
    assert "262,144" in outcome.error.message


def test_results_are_not_kept_when_the_task_says_so(app: App) -> None:
    @app.task(store_result=False)
    def work() -> Any:
        return object()

    handle = work.delay()
    run_one(app)
    assert handle.get(timeout=1) is None


# --- exceptions that cannot be printed, rebuilt or stored (C041, C109) ---


class NeedsTwo(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _exceptions() -> list[BaseException]:
    class Local(Exception):
        pass

    holding = Exception("held")
    holding.lock = threading.Lock()  # type: ignore[attr-defined]
    return [
        NeedsTwo(1, 2),
        holding,
        Local("closure"),
        Unprintable(),
        ValueError("a\x00b"),
        ValueError("\ud800"),
        SystemExit(0),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        RecursionError("deep"),
    ]


@pytest.mark.parametrize("index", range(len(_exceptions())))
def test_any_exception_becomes_text_that_every_backend_can_store(app: App, index: int) -> None:
    exc = _exceptions()[index]

    @app.task
    def fail() -> None:
        raise exc

    handle = fail.delay()
    run_one(app)
    with pytest.raises(RemoteError) as caught:
        handle.get(timeout=1)
    error = caught.value
    assert type(exc).__name__ in error.type
    for text in (error.type, error.message, error.traceback):
        assert "\x00" not in text
        text.encode()
    assert "raise exc" in error.traceback


def test_long_texts_are_truncated(app: App) -> None:
    @app.task
    def fail() -> None:
        raise ValueError("x" * 1_000_000)

    fail.delay()
    error = run_one(app).error
    assert error is not None
    assert len(error.message) < 5_000
    assert len(error.traceback) < 17_000


class Payload:
    pass


def test_a_failed_attempt_keeps_no_argument_alive(app: App) -> None:
    kept: list[weakref.ref[Payload]] = []

    class Failing(Task):
        def on_failure(self, ctx: TaskContext, exc: BaseException) -> None:
            raise RuntimeError("hook") from exc

    def body() -> None:
        local = Payload()
        kept.append(weakref.ref(local))
        raise ValueError(kept)

    for name, base in (("plain", Task), ("hooks", Failing)):
        task = app.task(name=name, base=base)(body)
        task.delay()
        outcome = run_one(app)
        assert outcome.exc is not None
    gc.disable()
    try:
        assert [ref() for ref in kept] == [None, None]
    finally:
        gc.enable()


# --- what is not run ---


def test_garbage_is_buried_as_undecodable(app: App) -> None:
    delivery = Delivery(
        id="x", task="t", queue="q", priority=0, envelope=b"\xc1garbage", receipt="r", lease=1
    )
    made = prepare(app, delivery, worker="w", control=AttemptControl())
    assert isinstance(made, Unrunnable)
    assert isinstance(made.settlement, Bury)
    assert made.reason == made.settlement.error.reason == "undecodable"


def test_another_protocol_version_is_buried(app: App) -> None:
    data = encode_envelope(Envelope(v=VERSION + 1, id="x", task="t", queue="q"))
    delivery = Delivery(
        id="x", task="t", queue="q", priority=0, envelope=data, receipt="r", lease=1
    )
    made = prepare(app, delivery, worker="w", control=AttemptControl())
    assert isinstance(made, Unrunnable)
    assert made.reason == "undecodable"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"", "application/msgpack"), (b"[" * 100_000, "application/json"), (b"x", "text/strange")],
)
def test_an_undecodable_body_is_buried_without_another_attempt(
    app: App, body: bytes, content_type: str
) -> None:
    @app.task(name="t", retry=Retry(max_attempts=5))
    def work() -> None: ...

    envelope = Envelope(
        v=VERSION,
        id="x",
        task="t",
        queue="default",
        max_attempts=5,
        body=body,
        content_type=content_type,
    )
    delivery = Delivery(
        id="x",
        task="t",
        queue="q",
        priority=0,
        envelope=encode_envelope(envelope),
        receipt="r",
        lease=1,
    )
    outcome = run(attempt_of(app, delivery))
    assert isinstance(outcome.settlement, Bury)
    assert outcome.settlement.error.reason == "undecodable"


def test_an_unknown_task_is_told_apart(app: App) -> None:
    app.send("elsewhere.task", (1,))
    made = prepare(app, reserve(app), worker="w", control=AttemptControl())
    assert isinstance(made, Unrunnable)
    assert made.reason == "unknown task"


def test_a_revoked_job_is_not_run(app: App) -> None:
    runs: list[int] = []

    @app.task
    def work() -> None:
        runs.append(1)

    work.delay()
    attempt = attempt_of(app)
    attempt.control.cancelled = True
    outcome = run(attempt)
    finish(attempt, outcome, OK)
    assert outcome.state is JobState.REVOKED
    assert runs == []


@pytest.mark.parametrize(
    ("flag", "state"),
    [("cancelled", JobState.REVOKED), ("stopping", JobState.QUEUED), ("lost", JobState.QUEUED)],
)
def test_check_cancelled_ends_the_attempt_as_its_worker_wants(
    app: App, flag: str, state: JobState
) -> None:
    @app.task(bind=True, retry=Retry(max_attempts=5))
    def work(self: Task) -> None:
        setattr(attempt.control, flag, True)
        self.request.check_cancelled()

    work.delay()
    attempt = attempt_of(app)
    outcome = run(attempt)
    assert outcome.state is state
    if state is JobState.QUEUED:
        assert isinstance(outcome.settlement, Release)
        assert outcome.settlement.counted


def test_a_job_revoked_while_it_runs_ends_revoked(app: App) -> None:
    @app.task(retry=Retry(max_attempts=5))
    def work() -> None:
        attempt.control.cancelled = True
        raise ValueError("unrelated")

    work.delay()
    attempt = attempt_of(app)
    assert run(attempt).state is JobState.REVOKED


def test_a_timeout_is_a_failed_attempt(app: App) -> None:
    @app.task(bind=True, timeout=0.001, retry=Retry(max_attempts=2))
    def slow(self: Task) -> None:
        threading.Event().wait(0.005)
        assert self.request.remaining() == 0
        self.request.check_cancelled()

    slow.delay()
    outcome = run_one(app)
    assert outcome.state is JobState.RETRYING
    assert outcome.error is not None
    assert outcome.error.reason == "timed out"


def test_a_timeout_of_the_call_goes_before_the_tasks(app: App) -> None:
    @app.task(timeout=60)
    def work() -> float | None:
        return current_task().remaining()

    handle = work.apply_async(timeout=5)
    run_one(app)
    left = handle.get(timeout=1)
    assert left is not None
    assert 4 < left <= 5


# --- outcomes from outside ---


def _completed(app: App, completion: Completion) -> tuple[Attempt, Outcome]:
    import msgspec

    delivery = msgspec.structs.replace(reserve(app), outcome=completion)
    attempt = attempt_of(app, delivery)
    return attempt, run(attempt)


def test_a_completion_is_decided_without_running_the_body(app: App) -> None:
    runs: list[int] = []

    @app.task(retry=Retry(max_attempts=2, base=0))
    def work() -> None:
        runs.append(1)

    work.delay()
    failure = Completion(state="FAILED", error=ErrorInfo(reason="timed out"), retryable=True)
    _, outcome = _completed(app, failure)
    assert outcome.state is JobState.RETRYING
    assert runs == []


def test_a_final_failure_from_outside_is_not_retried(app: App) -> None:
    @app.task(retry=Retry(max_attempts=5))
    def work() -> None: ...

    work.delay()
    _, outcome = _completed(app, Completion(state="FAILED", error=ErrorInfo(message="no space")))
    assert outcome.state is JobState.FAILED
    assert outcome.error is not None
    assert outcome.error.message == "no space"


def test_a_parked_job_waits_and_keeps_no_return_value(app: App) -> None:
    @app.task(completion="external", completion_timeout=600)
    def declared() -> str:
        return "ignored"

    @app.task
    def by_hand() -> Any:
        return current_task().park(timeout=30)

    for task, timeout in ((declared, 600), (by_hand, 30)):
        handle = task.delay()
        outcome = run_one(app)
        assert isinstance(outcome.settlement, Park)
        assert outcome.settlement.timeout == timeout
        assert handle.state is JobState.WAITING


def test_complete_and_fail_end_a_parked_job(app: App) -> None:
    tokens: list[str] = []

    @app.task(completion="external")
    def start() -> None:
        tokens.append(current_task().completion_token)

    done, failed = start.delay(), start.delay()
    run_one(app)
    run_one(app)
    app.complete(tokens[0], {"url": "u"})
    app.fail(tokens[1], "no space")
    assert done.get(timeout=1) == {"url": "u"}
    with pytest.raises(RemoteError, match="no space"):
        failed.get(timeout=1)


# --- ack modes ---


def test_on_receipt_is_acknowledged_before_and_never_retried(app: App) -> None:
    @app.task(ack="on_receipt", retry=Retry(max_attempts=5))
    def work() -> None:
        raise ValueError("no")

    handle = work.delay()
    outcome = run_one(app)
    assert isinstance(outcome.settlement, Ack)
    assert handle.state is JobState.FAILED
    assert not handle.info.dead


def test_on_completion_is_never_retried_and_a_failure_is_a_dead_letter(app: App) -> None:
    @app.task(ack="on_completion", bind=True, retry=Retry(max_attempts=5))
    def work(self: Task) -> None:
        raise self.retry(delay=1)

    handle = work.delay()
    run_one(app)
    assert handle.info.dead


# --- hooks ---


class Hooked(Task):
    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.calls: list[Any] = []

    def before_start(self, ctx: TaskContext) -> None:
        self.calls.append(("before_start", ctx.args))

    def on_success(self, ctx: TaskContext, result: Any, runtime: float) -> None:
        self.calls.append(("on_success", result, runtime >= 0))

    def on_retry(self, ctx: TaskContext, exc: BaseException, delay: float) -> None:
        self.calls.append(("on_retry", str(exc), delay))

    def on_failure(self, ctx: TaskContext, exc: BaseException) -> None:
        self.calls.append(("on_failure", str(exc), exc.__traceback__ is not None))

    def after_return(
        self,
        ctx: TaskContext,
        state: JobState,
        result: Any = None,
        exc: BaseException | None = None,
    ) -> None:
        self.calls.append(("after_return", state, result))


class Sometimes(Hooked):
    retry_policy = Retry(max_attempts=2, base=0)

    def run(self, good: bool) -> str:
        self.calls.append("run")
        if not good:
            raise ValueError("bad")
        return "done"


def test_hooks_run_in_order_around_a_success(app: App) -> None:
    task = app.register(Sometimes)
    task.delay(True)
    run_one(app)
    assert task.calls == [
        ("before_start", (True,)),
        "run",
        ("on_success", "done", True),
        ("after_return", JobState.SUCCEEDED, "done"),
    ]


def test_hooks_follow_retry_and_failure(app: App) -> None:
    task = app.register(Sometimes)
    task.delay(False)
    run_one(app)
    run_one(app)
    assert [call for call in task.calls if call[0].startswith(("on_", "after"))] == [
        ("on_retry", "bad", 0),
        ("after_return", JobState.RETRYING, None),
        ("on_failure", "bad", True),
        ("after_return", JobState.FAILED, None),
    ]


def test_a_lost_settlement_runs_after_return_only(app: App) -> None:
    task = app.register(Sometimes)
    task.delay(True)
    attempt = attempt_of(app)
    outcome = run(attempt)
    finish(attempt, outcome, SettleResult("lost"))
    assert [call[0] for call in task.calls[2:]] == ["after_return"]


def test_inline_hooks_run_after_those_of_the_base(app: App) -> None:
    order: list[str] = []

    class Base(Task):
        def on_success(self, ctx: TaskContext, result: Any, runtime: float) -> None:
            order.append("base")

    @app.task(base=Base, on_success=lambda ctx, result, runtime: order.append(f"inline {result}"))
    def work() -> str:
        return "r"

    work.delay()
    run_one(app)
    assert order == ["base", "inline r"]


def test_what_before_start_raises_fails_the_attempt(app: App) -> None:
    def refuse(ctx: TaskContext) -> None:
        raise PermissionError("not now")

    @app.task(before_start=refuse, retry=Retry(max_attempts=2, base=0))
    def work() -> None: ...

    work.delay()
    assert run_one(app).state is JobState.RETRYING


def test_an_error_in_a_hook_changes_nothing_but_is_told(app: App) -> None:
    sink = CollectingSink()
    app.add_sink(sink)

    def broken(ctx: TaskContext, result: Any, runtime: float) -> None:
        raise OSError("mail server")

    @app.task(on_success=broken)
    def work() -> str:
        return "fine"

    handle = work.delay()
    run_one(app)
    assert handle.get(timeout=1) == "fine"
    (event,) = sink.of("task.hook_error")
    assert (event.job, event.data["hook"], event.data["message"]) == (
        handle.id,
        "on_success",
        "mail server",
    )


@pytest.mark.parametrize("hook", ["on_success", "after_return"])
def test_fatal_hook_errors_fail_the_attempt(hook: str) -> None:
    app = App(Config(transport=MemoryTransport(), events="null", hook_errors_fatal=True))
    seen: list[str] = []

    def broken(*args: Any) -> None:
        seen.append(hook)
        raise OSError("mail server")

    options: dict[str, Any] = {hook: broken, "on_failure": lambda ctx, exc: seen.append("failed")}

    def work() -> str:
        return "fine"

    declare: Any = app.task(**options)
    handle = declare(work).delay()
    run_one(app)
    info = handle.info
    assert info.state is JobState.FAILED
    assert info.error is not None
    assert info.error.message == "mail server"
    assert next(entry["hook"] for entry in info.meta["hook_error"]) == hook


def test_a_hook_may_not_be_async(app: App) -> None:
    async def hook(ctx: TaskContext, exc: BaseException) -> None: ...

    with pytest.raises(ValueError, match="on_failure"):
        app.task(on_failure=hook)(lambda: None)


# --- context and contextvars ---

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="clean")


def test_context_variables_don_t_bleed_into_the_next_job(app: App) -> None:
    @app.task(after_return=lambda ctx, state, result, exc: seen.append(VARIABLE.get()))
    def work() -> str:
        before = VARIABLE.get()
        VARIABLE.set("dirty")
        return before

    seen: list[str] = []
    handles = [work.delay(), work.delay()]
    run_one(app)
    run_one(app)
    assert [handle.get(timeout=1) for handle in handles] == ["clean", "clean"]
    assert seen == ["dirty", "dirty"]
    assert VARIABLE.get() == "clean"


class Proxy:
    """A stand-in that answers no question before it is bound, as frameworks have them."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("working outside of context")


class Posing(Exception):
    """Raises when `isinstance` asks it for its class."""

    # A lie on purpose: only a type checker would mind.
    __class__ = property(lambda self: 1 / 0)  # pyright: ignore[reportIncompatibleMethodOverride]


@pytest.mark.parametrize("raised", [True, False], ids=["raised", "returned"])
def test_what_raises_when_it_is_looked_at_fails_the_job_and_no_more(app: App, raised: bool) -> None:
    @app.task(retry=Retry(max_attempts=3))
    def odd() -> object:
        if raised:
            raise Posing
        return Proxy()

    handle = odd.delay()
    outcome = run_one(app)
    assert outcome.state is handle.state is JobState.FAILED
    assert outcome.error is not None
    assert ("ZeroDivisionError" if raised else "EncodeError") in outcome.error.type


def test_meta_that_can_travel_no_more_does_not_keep_a_job_from_its_end(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def report() -> None:
        steps: list[object] = ["one"]
        current_task().update_meta(steps=steps)
        steps.append(object())

    def away(receipt: str, meta: bytes) -> bool:
        raise TransportUnavailable("away")

    handle = report.delay()
    monkeypatch.setattr(app.transport, "update_meta", away)
    run_one(app)
    assert handle.state is JobState.SUCCEEDED


def test_what_is_published_goes_with_the_success(app: App) -> None:
    @app.task(name="child")
    def child(n: int) -> int:
        return n

    @app.task(bind=True, retry=Retry(max_attempts=2, base=0))
    def parent(self: Task) -> str:
        handle = self.request.publish(child, 7)
        if self.request.attempt == 1:
            raise ValueError("once")
        return handle.id

    handle = parent.apply_async(priority=4)
    run_one(app)
    run_one(app)
    child_handle = app.handle(handle.get(timeout=1))
    info = child_handle.info
    assert (info.state, info.priority) == (JobState.QUEUED, 4)
    assert sum(stats.pending for stats in app.transport.stats()) == 1


def test_meta_of_an_attempt_is_visible_while_it_runs_and_after(app: App) -> None:
    @app.task(bind=True)
    def work(self: Task) -> str:
        self.request.update_meta(stage="half")
        return str(app.handle(self.request.id).info.meta["stage"])

    handle = work.delay()
    run_one(app)
    assert handle.get(timeout=1) == "half"
    assert handle.info.meta == {"stage": "half"}


# --- async ---


def test_an_async_task_runs_on_a_loop_with_its_context(app: App) -> None:
    @app.task
    async def work(a: int) -> str:
        await asyncio.sleep(0)
        return f"{current_task().attempt}:{a}"

    handle = work.delay(3)
    attempt = attempt_of(app)
    outcome = asyncio.run(run_async(attempt))
    app.transport.settle("w", [outcome.settlement])
    assert handle.get(timeout=1) == "1:3"


def test_an_async_task_in_a_pool_that_can_t_run_it_fails_clearly(app: App) -> None:
    @app.task
    async def work() -> None: ...

    work.delay()
    outcome = run_one(app)
    assert outcome.error is not None
    assert "pool='asyncio'" in outcome.error.message


def test_a_cancelled_coroutine_ends_as_its_worker_wants(app: App) -> None:
    @app.task
    async def work() -> None:
        attempt.control.stopping = True
        raise asyncio.CancelledError

    work.delay()
    attempt = attempt_of(app)
    outcome = asyncio.run(run_async(attempt))
    assert isinstance(outcome.settlement, Release)


def test_middleware_wraps_hooks_and_body(app: App) -> None:
    order: list[str] = []

    def outer(ctx: TaskContext, call_next: Any) -> Any:
        order.append(f"outer {ctx.task.name}")
        try:
            return call_next()
        finally:
            order.append("outer end")

    app.add_middleware(outer)
    app.add_middleware(lambda ctx, call_next: [call_next()])

    @app.task(name="t", before_start=lambda ctx: order.append("before_start"))
    def work() -> str:
        order.append("run")
        return "r"

    handle = work.delay()
    run_one(app)
    assert order == ["outer t", "before_start", "run", "outer end"]
    result: Any = handle.get(timeout=1)
    assert result == ["r"]


def test_what_middleware_raises_is_retried_like_the_body(app: App) -> None:
    def broken(ctx: TaskContext, call_next: Any) -> Any:
        raise ValueError("middleware")

    app.add_middleware(broken)

    @app.task(retry=Retry(max_attempts=2, base=0))
    def work() -> None: ...

    work.delay()
    assert run_one(app).state is JobState.RETRYING
    assert run_one(app).state is JobState.FAILED


def test_the_order_of_queues_is_no_concern_of_an_attempt(app: App) -> None:
    @app.task(queue="q1")
    def work() -> str:
        return current_task().queue

    handle = work.apply_async(queue="q2")
    reply = app.transport.reserve(ReserveRequest(worker="w", queues=(QueueShare("q2"),), limit=1))
    outcome = run(attempt_of(app, reply.deliveries[0]))
    app.transport.settle("w", [outcome.settlement])
    assert handle.get(timeout=1) == "q2"


def test_an_error_in_a_hook_is_logged_in_one_line_and_its_traceback_at_debug(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "taskmq")

    def broken(ctx: TaskContext, result: Any, runtime: float) -> None:
        raise OSError("mail server\nsecond line")

    @app.task(on_success=broken)
    def work() -> None: ...

    handle = work.delay()
    run_one(app)
    told = [each for each in caplog.records if each.levelno == logging.WARNING]
    (line,) = [each.getMessage() for each in told]
    assert line == f"job {handle.id}: hook on_success raised OSError: mail server"
    (detail,) = [each for each in caplog.records if each.exc_info]
    assert detail.levelno == logging.DEBUG


@pytest.mark.parametrize("late", [True, False])
def test_a_body_that_ran_past_its_timeout_and_succeeded_is_logged(
    late: bool, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="slow", timeout=0.001 if late else 60)
    def slow() -> str:
        began = time.monotonic()
        while time.monotonic() - began < 0.002:
            pass
        return "done"

    handle = slow.delay()
    run_one(app)
    assert handle.get(timeout=1) == "done"
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(lines) == late
    assert all(f"job {handle.id} (slow) took" in each and "0.001 s" in each for each in lines)


def test_a_body_that_heeds_its_timeout_is_not_logged(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(bind=True, timeout=0.001)
    def heeds(self: Any) -> None:
        while True:
            self.request.check_cancelled()

    heeds.delay()
    assert run_one(app).state is JobState.FAILED
    assert not caplog.records
