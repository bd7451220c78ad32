"""The memory transport forgets finished jobs beyond a number, but not of the run that ended last."""

from __future__ import annotations

from typing import Any

from support.waiting import wait_until
from taskmq import App, Config
from taskmq.testing import run_until_idle, worker_for
from taskmq.workflow import WorkflowBuilder


def test_a_run_larger_than_the_limit_of_finished_jobs_can_be_read() -> None:
    app = App(Config(transport="memory://", max_finished_jobs=20, events="null"))

    @app.task(name="one")
    def one(item: int) -> int:
        return item

    @app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.map("items", one, over=list(range(60)))

    for _ in range(3):
        run = app.submit_workflow("w")
        run_until_idle(app, timeout=30)
        assert run.get(timeout=5) == list(range(60))
    one.map_async([(n,) for n in range(50)])
    with worker_for(app):
        # Earlier runs go, and so do the oldest plain jobs: by the next pass of maintenance.
        wait_until(lambda: len(app.transport.list_jobs(limit=1_000).jobs) <= 20 + 63)
    app.close()
