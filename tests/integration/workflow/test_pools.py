"""Steps in every pool, and in an eager app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskmq import App, Config, current_task
from taskmq.testing import run_until_idle, worker_for
from taskmq.workflow import WorkflowBuilder


def declare(app: App) -> None:
    @app.task(name="load")
    async def load(n: int) -> list[int]:
        return list(range(n))

    @app.task(name="double")
    async def double(item: int) -> int:
        return item * 2

    @app.task(name="total")
    def total(items: list[int], branch: bool = True) -> int:
        return sum(items)

    @app.task(name="turns")
    async def turns(n: int) -> Any:
        return current_task().become("w", {"n": n})

    @app.workflow("w")
    def _w(wf: WorkflowBuilder, n: int) -> Any:
        loaded = wf.step("loaded", load, args=(n,))
        doubled = wf.map("doubled", double, over=loaded)
        return wf.step("total", total, deps={"items": doubled}, when=wf.when(loaded))


@pytest.mark.parametrize("where", ["asyncio", "eager"])
def test_async_steps(where: str) -> None:
    if where == "eager":
        app = App(Config(eager=True, events="null"))
    else:
        app = App(Config(transport="memory://", pool="asyncio", events="null"))
    declare(app)
    run = app.submit_workflow("w", {"n": 5})
    job = app.tasks["turns"].delay(3)
    run_until_idle(app, timeout=20)
    assert run.get(timeout=5) == 20
    assert job.get(timeout=5) == 6
    app.close()


@pytest.mark.parametrize("transport", ["memory", "sqlite"])
def test_steps_in_child_processes(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.flow_app import make_app

    url = "memory://" if transport == "memory" else f"sqlite:///{tmp_path}/q.db"
    monkeypatch.setenv("TASKMQ_TRANSPORT", url)
    app = make_app(url)
    run = app.submit_workflow("squares", {"n": 4})
    with worker_for(
        app, pool="processes", concurrency=2, app_path="support.flow_app:app"
    ) as worker:
        worker.run_until_idle(timeout=40)
    assert run.get(timeout=5) == [0, 1, 4, 9]
    assert run.status().steps["squares"].items == {"SUCCEEDED": 4}
    app.close()
