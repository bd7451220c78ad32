"""What type checkers must accept, with the types they must infer. Checked, never run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from typing_extensions import assert_type

from taskmq import (
    App,
    Config,
    JobState,
    Retry,
    RetryRequest,
    Task,
    TaskContext,
    TaskHandle,
    current_task,
)
from taskmq.workflow import Step, WorkflowBuilder

app = App(Config(transport="memory://"))


def alert(ctx: TaskContext, exc: BaseException) -> None: ...


@app.task
def bare(to: str, count: int = 1) -> str:
    return to * count


@app.task(queue="email", retry=Retry(max_attempts=5), priority=5)
def configured(to: str, *, subject: str) -> list[int]:
    return [len(to), len(subject)]


@app.task(bind=True, retry="default", on_failure=alert)
def bound(self: Task, to: str) -> bytes:
    if self.request.attempt < 3:
        raise self.retry(countdown=30, reason="rate limited")
    assert_type(self.retry(delay=1), RetryRequest)
    assert_type(self.request, TaskContext)
    return to.encode()


@app.task
async def coroutine(n: int) -> float:
    return n / 2


class Tenant(Task):
    queue = "tenant"
    retry_policy = Retry(max_attempts=5, backoff="exp")

    def before_start(self, ctx: TaskContext) -> None: ...

    def on_success(self, ctx: TaskContext, result: Any, runtime: float) -> None: ...

    def on_failure(self, ctx: TaskContext, exc: BaseException) -> None: ...

    def after_return(
        self,
        ctx: TaskContext,
        state: JobState,
        result: Any = None,
        exc: BaseException | None = None,
    ) -> None: ...


class EmailTask(Tenant):
    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.sent = 0

    def run(self, to: str, subject: str = "hi") -> tuple[str, int]:
        self.request.update_meta(stage="sending")
        return to, self.sent


class AsyncTask(Task):
    async def run(self, to: str) -> int:
        return len(to)


class Explicit(Task[[int], str]):
    def run(self, n: int) -> str:
        return str(n)


@app.task(bind=True, base=Tenant)
def based(self: Tenant, n: int) -> int:
    return n


email = app.register(EmailTask)
async_email = app.register(AsyncTask)
explicit = app.register(Explicit)

assert_type(bare.delay("a"), TaskHandle[str])
assert_type(bare.delay("a", count=2).get(timeout=1), str)
assert_type(bare("a"), str)
assert_type(configured.delay("a", subject="b").get(), list[int])
assert_type(bound.delay("a").get(), bytes)
assert_type(bound("a"), bytes)
assert_type(coroutine.delay(1), TaskHandle[float])
assert_type(coroutine.delay(1).get(), float)
assert_type(email.delay("a", "b").get(), tuple[str, int])
assert_type(email("a"), tuple[str, int])
assert_type(email.sent, int)
assert_type(async_email.delay("a").get(), int)
assert_type(explicit.delay(1).get(), str)
assert_type(based.delay(1).get(), int)
assert_type(
    bare.apply_async(
        ("a",),
        {"count": 2},
        queue="q",
        priority=5,
        delay=timedelta(seconds=5),
        expires=60,
        key="k",
        key_scope="until_end",
        timeout=3,
        headers={"tenant": 1},
        job_id="x",
    ).get(),
    str,
)
assert_type(
    coroutine.apply_async((1,), eta=datetime(2030, 1, 1, tzinfo=timezone.utc)), TaskHandle[float]
)
assert_type(bare.submit("a", count=2, priority=5).get(), str)
assert_type(bare.map_async([("a", 1), ("b", 2)], priority=1), list[TaskHandle[str]])
assert_type(coroutine.map_async([(1,)]), list[TaskHandle[float]])
assert_type(app.send("name", args=(1,), kwargs={"a": 1}).get(), Any)
assert_type(bare.delay("a").state, JobState)
assert_type(bare.delay("a").wait(1), bool)
assert_type(current_task().id, str)


async def in_a_coroutine() -> None:
    assert_type(await bare.adelay("a", 2), TaskHandle[str])
    assert_type(await coroutine.adelay(1), TaskHandle[float])
    assert_type(await (await bare.aapply_async(("a",), priority=2)).aget(timeout=1), str)
    assert_type(await coroutine(1), float)


def takes_any(handle: TaskHandle[object]) -> None: ...


def takes_task(task: Task[[str], int]) -> None:
    assert_type(task.delay("a").get(), int)


# A handle of a str is a handle of an object.
takes_any(bare.delay("a"))


def timing(ctx: TaskContext, call_next: Any) -> Any:
    return call_next()


class Audited:
    def __call__(self, ctx: TaskContext, call_next: Callable[[], Any]) -> Any:
        ctx.tenant = ctx.headers.get("tenant")
        return call_next()


async def timing_async(ctx: TaskContext, call_next: Callable[[], Any]) -> Any:
    return await call_next()


app.add_middleware(timing)
app.add_middleware(Audited())
app.add_middleware(timing_async)


@app.workflow("typed")
def typed(wf: WorkflowBuilder, to: str, times: int = 1) -> Step[str]:
    return wf.step("bare", bare, args=(to, times))


assert_type(typed.submit("a", times=2).get(timeout=1), str)


@app.workflow("leaves")
def leaves(wf: WorkflowBuilder) -> None:
    wf.step("bare", bare, args=("a", 1))


assert_type(leaves.submit().get(timeout=1), dict[str, Any])


@app.workflow("listed")
def listed(wf: WorkflowBuilder, to: str) -> list[Step[str]]:
    return [wf.step(str(number), bare, args=(to, number)) for number in range(3)]


assert_type(listed.submit("a").get(timeout=1), list[str])


@app.workflow("unannotated")
def unannotated(wf: WorkflowBuilder, to: Any) -> Any:
    return wf.step("bare", bare, args=(to, 1))


unannotated.submit("a").get(timeout=1)
