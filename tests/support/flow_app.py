"""An app with a workflow that child processes can import."""

from __future__ import annotations

import os
from typing import Any

from taskmq import App, Config
from taskmq.workflow import WorkflowBuilder


def make_app(url: str) -> App:
    """The app, on this transport."""
    made = App(Config(transport=url, events="null"), name="flow_app")

    @made.task(name="numbers")
    def numbers(n: int) -> list[int]:
        return list(range(n))

    @made.task(name="square")
    def square(item: int) -> int:
        return item * item

    @made.workflow("squares")
    def _squares(wf: WorkflowBuilder, n: int) -> Any:
        found = wf.step("numbers", numbers, args=(n,))
        return wf.map("squares", square, over=found, max_concurrency=2)

    return made


app = make_app(os.environ.get("TASKMQ_TRANSPORT", "memory://"))
