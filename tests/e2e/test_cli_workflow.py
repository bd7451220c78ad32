"""A run from its start to its end with real processes: repaired, completed from outside, drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from support.cli import environment, run, started
from support.waiting import wait_until
from taskmq import App, Config

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from taskmq.workflow import WorkflowHandle

MODULE = """
from pathlib import Path
from taskmq import App, Config, Retry, current_task

app = App(Config(transport="sqlite:///jobs.db", events="null"))

@app.task(name="fetch", retry=Retry(max_attempts=1))
def fetch(source: str) -> list[int]:
    if not Path(source).exists():
        raise FileNotFoundError(source)
    return [1, 2, 3]

@app.task(name="square")
def square(x: int) -> int:
    return x * x

@app.task(name="approve", completion="external", completion_timeout=60)
def approve(values: list[int]) -> None:
    Path("token").write_text(current_task().completion_token)

@app.task(name="report")
def report(values: list[int], approved: str) -> str:
    return f"{sum(values)} by {approved}"

@app.workflow("etl")
def etl(wf, source: str):
    rows = wf.step("rows", fetch, args=(source,))
    squares = wf.map("squares", square, over=rows, arg="x")
    approved = wf.step("approved", approve, deps={"values": squares})
    return wf.step("report", report, deps={"values": squares, "approved": approved})

if __name__ == "__main__":
    print(app.submit_workflow("etl", {"source": "input"}).id)
"""


def told(folder: Path, *args: str) -> Any:
    done = run(folder, *args, "--json", TASKMQ_TRANSPORT="sqlite:///jobs.db")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def submitted(folder: Path) -> str:
    """Start a run from a process of its own; the run's id."""
    (folder / "flow.py").write_text(MODULE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "flow.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return done.stdout.strip()


def repair_and_finish(folder: Path, handle: WorkflowHandle[Any]) -> None:
    """Mend what made the run fail, let it go on, and finish the step that waits for the outside."""
    assert handle.wait(timeout=40)
    assert handle.status().state == "FAILED"
    (folder / "input").touch()
    retried = told(folder, "workflow", "retry", handle.id)["retried"]
    assert set(retried) == {"rows", "squares", "approved", "report"}
    wait_until(lambda: handle.status().steps["approved"].state == "WAITING", timeout=40)
    assert [each["id"] for each in told(folder, "status")["workflows"]] == [handle.id]
    token = (folder / "token").read_text()
    told(folder, "jobs", "complete", token, "--result", '"me"')
    assert handle.get(timeout=40) == "14 by me"


def test_a_run_is_repaired_and_finished_from_outside(tmp_path: Path) -> None:
    run_id = submitted(tmp_path)
    with (
        started(tmp_path, "worker", "--app", "flow:app"),
        App(Config(transport=f"sqlite:///{tmp_path}/jobs.db", events="null")) as app,
    ):
        repair_and_finish(tmp_path, app.handle_workflow(run_id))

    history = told(tmp_path, "workflow", "status", run_id, "--history")["history"]
    assert [each["outcome"] for each in history if each["step"] == "rows"] == [
        "FAILED",
        "SUCCEEDED",
    ]
    assert "SUCCEEDED" in told(tmp_path, "workflow", "graph", run_id, "--format", "dot")["graph"]
