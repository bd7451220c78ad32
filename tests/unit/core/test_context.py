"""The context of an attempt: what it tells, its logger, its meta."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from taskmq import App, Config, ConfigError, RetryRequest, Task, TaskError, TransportUnavailable
from taskmq.context import TaskContext, current_task
from taskmq.errors import EncodeError
from taskmq.meta import add_hook_error, decode_meta, encode_meta
from taskmq.testing import eager_app
from taskmq.transport.memory import MemoryTransport


def in_task(body: Any, **options: Any) -> Any:
    """What `body(ctx)` returns inside a run."""
    found: list[Any] = []
    with eager_app() as app:
        app.task(name="t", queue="q", bind=True)(
            lambda self, a, b=0: found.append(body(self.request))
        ).apply_async((1,), {"b": 2}, priority=3, headers={"tenant": "t1"}, **options)
    return found[0]


def test_it_tells_what_is_known_of_the_job() -> None:
    def look(ctx: TaskContext) -> Any:
        assert current_task() is ctx
        assert ctx.hostname
        assert ctx.worker == "eager"
        assert repr(ctx).startswith("<TaskContext t ")
        return (
            ctx.attempt,
            ctx.retries,
            ctx.deliveries,
            ctx.queue,
            ctx.priority,
            ctx.args,
            ctx.kwargs,
            dict(ctx.headers),
            ctx.deadline,
            ctx.remaining(),
        )

    expected = (1, 0, 1, "q", 3, (1,), {"b": 2}, {"tenant": "t1"}, None, None)
    assert in_task(look) == expected


def test_attributes_of_one_s_own_may_be_set() -> None:
    def look(ctx: Any) -> Any:
        ctx.tenant = "t1"
        return ctx.tenant

    assert in_task(look) == "t1"


def test_deadline_and_remaining_follow_the_timeout() -> None:
    def look(ctx: TaskContext) -> bool:
        left = ctx.remaining()
        ctx.check_cancelled()
        return left is not None and 0 < left <= 50 and ctx.deadline is not None

    assert in_task(look, timeout=50)


def test_retry_takes_delay_or_countdown() -> None:
    def look(ctx: TaskContext) -> RetryRequest:
        with pytest.raises(TaskError, match="not both"):
            ctx.retry(delay=1, countdown=1)
        with pytest.raises(ConfigError):
            ctx.retry(delay=-1)
        return ctx.retry(countdown=5, reason="busy", max_retries=2)

    request = in_task(look)
    assert (request.delay, request.reason, request.max_retries) == (5, "busy", 2)


def test_park_checks_its_timeout() -> None:
    def look(ctx: TaskContext) -> None:
        with pytest.raises(ConfigError, match="park timeout"):
            ctx.park(timeout=0)

    in_task(look)


def test_the_logger_adds_job_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="taskmq.task")

    def look(ctx: TaskContext) -> str:
        ctx.log.info("sending %s", "mail", to="100%s")
        for level in ("debug", "warning", "error", "critical"):
            getattr(ctx.log, level)(level)
        try:
            raise ValueError("x")
        except ValueError:
            ctx.log.exception("failed")
        return ctx.id

    job = in_task(look)
    first, *_, last = caplog.records
    assert first.getMessage().startswith("sending mail to='100%s'")
    assert first.taskmq == {"job": job, "task": "t", "attempt": 1, "to": "100%s"}  # type: ignore[attr-defined]
    assert first.funcName == "look"
    assert last.exc_info is not None
    assert [record.levelname for record in caplog.records] == [
        "INFO",
        "DEBUG",
        "WARNING",
        "ERROR",
        "CRITICAL",
        "ERROR",
    ]


def test_meta_that_can_t_be_stored_is_refused_and_changes_nothing() -> None:
    def look(ctx: TaskContext) -> Any:
        ctx.update_meta(stage="a")
        with pytest.raises(EncodeError, match="meta"):
            ctx.update_meta(bad=object())
        return dict(ctx.meta)

    assert in_task(look) == {"stage": "a"}


def test_meta_waits_for_the_settlement_while_the_backend_is_away() -> None:
    class Away(MemoryTransport):
        def update_meta(self, receipt: str, meta: bytes) -> bool:
            raise TransportUnavailable("away")

    with eager_app() as app:
        app.eager.transport = Away(clock=app.eager.clock)

        @app.task(bind=True)
        def work(self: Task) -> None:
            self.request.update_meta(stage="a")

        assert work.delay().info.meta == {"stage": "a"}


def test_publish_now_does_not_wait_for_the_outcome() -> None:
    with eager_app() as app:
        ran: list[str] = []
        app.task(name="child")(lambda: ran.append("child"))

        @app.task(bind=True)
        def parent(self: Task) -> None:
            self.request.publish("child", now=True)
            ran.append("parent")
            raise ValueError("no")

        parent.delay()
        assert ran == ["child", "parent"]


def test_request_works_during_its_own_run_only() -> None:
    app = App(Config(events="null"))
    work = app.task(name="t", bind=True)(lambda self: self.request)
    with pytest.raises(TaskError, match="does not run here"):
        _ = work.request
    with pytest.raises(TaskError):
        work.retry()


def test_meta_survives_garbage() -> None:
    assert decode_meta(None) == decode_meta(b"\xc1") == decode_meta(encode_meta({})) == {}


def test_hook_errors_are_kept_in_order_and_bounded() -> None:
    meta: dict[str, Any] = {"hook_error": "not a list"}
    for number in range(15):
        add_hook_error(meta, hook=f"h{number}", type="E", message="m")
    assert [entry["hook"] for entry in meta["hook_error"]] == [f"h{n}" for n in range(5, 15)]
