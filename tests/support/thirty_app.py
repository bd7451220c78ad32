"""The app of the crash tests of workflows: a graph of 30 steps with maps, whose result is known.

Every task writes to the effect log, under its job's id. `RESULT` is what a run gives however often its
workers die.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from support.effects import record
from taskmq import App, Config, Retry, current_task

if TYPE_CHECKING:
    from taskmq.workflow import WorkflowBuilder

WIDTH = 8
CHAIN = 10
RETRY = Retry(max_attempts=3, base=0.01, jitter=False)

app = App(Config())


def _note(what: str) -> None:
    context = current_task()
    record(what, context.id, context.id, context.attempt, context.deliveries)


def _done(value: Any) -> Any:
    _note("start")
    # The moment of a kill is to find jobs in every state.
    time.sleep(random.uniform(0.0, 0.02))
    _note("end")
    return value


@app.task(name="thirty.numbers")
def numbers(count: int) -> list[int]:
    """The numbers below `count`."""
    found: list[int] = _done(list(range(count)))
    return found


@app.task(name="thirty.square")
def square(x: int) -> int:
    """An item of the first map."""
    return int(_done(x * x))


@app.task(name="thirty.add")
def add(x: int, y: int = 1) -> int:
    """A link of the chain, and an item of the second map."""
    return int(_done(x + y))


@app.task(name="thirty.total")
def total(values: list[int]) -> int:
    """What a join comes to."""
    return int(_done(sum(values)))


@app.task(name="thirty.flaky", retry=RETRY)
def flaky(x: int) -> int:
    """Fails on its first attempt."""
    if current_task().attempt == 1:
        raise ValueError("the first attempt fails")
    return int(_done(x))


@app.task(name="thirty.broken", retry=RETRY)
def broken(x: int) -> int:
    """Fails for good."""
    raise ArithmeticError(f"{x} is not welcome")


@app.task(name="thirty.listed")
def listed(values: list[Any]) -> list[Any]:
    """The sink: what came in, in order."""
    found: list[Any] = _done(values)
    return found


@app.workflow("inner")
def inner(wf: WorkflowBuilder, count: int) -> Any:
    """A child run with a map of its own."""
    first = wf.step("numbers", numbers, args=(count,))
    return wf.step("total", total, deps=[wf.map("squares", square, over=first)])


@app.workflow("thirty")
def thirty(wf: WorkflowBuilder) -> Any:
    """30 steps: maps over maps, a chain, layers with joins, a retry, a tolerated failure, a child run."""
    source = wf.step("source", numbers, args=(WIDTH,))
    squares = wf.map("squares", square, over=source)
    added = wf.map("added", add, over=squares, arg="x", max_concurrency=3)
    link = wf.step("link-0", total, deps=[source])
    for number in range(1, CHAIN):
        link = wf.step(f"link-{number}", add, deps={"x": link})
    layer = [wf.step(f"first-{n}", add, args=(n,), deps={"y": link}) for n in range(5)]
    joined = wf.join("joined", total, layer)
    retried = wf.step("retried", flaky, deps=[joined])
    spoilt = wf.step("spoilt", broken, deps=[joined], on_failure="tolerate", default=-1)
    child = wf.run("inner", {"count": 5}, after=retried)
    layer = [wf.step(f"second-{n}", add, args=(n,), deps={"y": spoilt}) for n in range(5)]
    last = wf.join("last", total, layer)
    every = wf.gather("every", [added, last, child, retried])
    return wf.step("sink", listed, deps=[every])


STEPS = 30
_ENDED = sum(range(WIDTH)) + CHAIN - 1
_JOINED = sum(n + _ENDED for n in range(5))
RESULT = [
    [n * n + 1 for n in range(WIDTH)],
    sum(n - 1 for n in range(5)),
    sum(n * n for n in range(5)),
    _JOINED,
]
"""What every run of `thirty` gives."""
