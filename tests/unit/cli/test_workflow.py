from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from support.flows import Flows
from taskmq.testing import worker_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.cli import Cli
    from taskmq import App
    from taskmq.workflow import WorkflowBuilder, WorkflowHandle


@pytest.fixture
def flows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flows]:
    """Workflows on a database that the command line is told of, without the app."""
    monkeypatch.setenv("TASKMQ_TRANSPORT", cli.url)
    monkeypatch.setenv("COLUMNS", "80")
    made = Flows(cli.url)

    @made.app.workflow("etl")
    def _etl(wf: WorkflowBuilder, source: str = "s3://b") -> Any:
        rows = wf.step("rows", made.give, args=([1, 2, 3],))
        parts = wf.map("parts", made.add, over=rows, arg="a")
        stats = wf.step("stats", made.give, deps={"value": rows}, default=70)
        return wf.join("report", made.collect, deps=[parts, stats])

    yield made
    made.close()


@pytest.fixture
def failed(flows: Flows) -> WorkflowHandle[Any]:
    """A run one of whose steps failed."""
    flows.fail["stats"] = 1
    return flows.run("etl")


def test_runs_are_listed_those_that_go_on_first(flows: Flows, cli: Cli) -> None:
    ended = flows.run("etl")
    going = flows.app.submit_workflow("etl")
    listed = cli.json("workflow", "list")["runs"]
    assert [(each["id"], each["state"]) for each in listed] == [
        (going.id, "RUNNING"),
        (ended.id, "SUCCEEDED"),
    ]
    assert (listed[0]["done"], listed[0]["steps"]) == (0, 4)
    text = cli("workflow", "list").stdout
    assert going.id in text
    assert "0/4" in text
    only = cli.json("workflow", "list", "--state", "succeeded")["runs"]
    assert [each["id"] for each in only] == [ended.id]
    assert cli("workflow", "list", "--state", "FAILED").stdout == "No runs.\n"


def test_a_list_is_cut_at_its_limit_and_the_newest_is_kept(flows: Flows, cli: Cli) -> None:
    submitted = [flows.app.submit_workflow("etl").id for _ in range(4)]
    listed = cli.json("workflow", "list", "--limit", "2")["runs"]
    assert [each["id"] for each in listed] == sorted(submitted, reverse=True)[:2]


def test_child_runs_are_not_listed(flows: Flows, cli: Cli) -> None:
    @flows.app.workflow("outer")
    def _outer(wf: WorkflowBuilder) -> Any:
        return wf.run("etl")

    run = flows.run("outer")
    assert [each["id"] for each in cli.json("workflow", "list")["runs"]] == [run.id]


def test_status_shows_each_step_and_why_one_failed(failed: WorkflowHandle[Any], cli: Cli) -> None:
    text = cli("workflow", "status", failed.id).stdout
    assert "step 'stats' ended FAILED" in text
    assert "stats: " in text
    assert "Boom: stats failed" in text
    assert "report: skipped: step 'stats' did not succeed" in text
    assert "3 SUCCEEDED" in text
    row = next(line for line in text.splitlines() if line.startswith("stats "))
    assert row.split()[1:4] == ["FAILED", "1", "rows"]
    document = cli.json("workflow", "status", failed.id)
    assert document["state"] == "FAILED"
    assert document["steps"]["stats"]["job_id"] == f"{failed.id}::stats"
    assert document["steps"]["report"]["depends_on"] == ["parts", "stats"]
    assert "history" not in document


def test_history_shows_every_attempt(failed: WorkflowHandle[Any], flows: Flows, cli: Cli) -> None:
    failed.retry_failed()
    flows.drain()
    document = cli.json("workflow", "status", failed.id, "--history")
    stats = [
        (each["series"], each["attempt"], each["outcome"])
        for each in document["history"]
        if each["step"] == "stats"
    ]
    assert stats == [(1, 1, "FAILED"), (2, 1, "SUCCEEDED")]
    text = cli("workflow", "status", failed.id, "--history").stdout
    lines = [line for line in text.splitlines() if " stats " in line and ":" in line.split()[1]]
    assert [line.split()[3] for line in lines] == ["1", "2.1"]
    assert "stats failed" in lines[0]


def test_a_failed_run_is_retried(failed: WorkflowHandle[Any], flows: Flows, cli: Cli) -> None:
    retried = cli.json("workflow", "retry", failed.id)["retried"]
    assert set(retried) == {"stats", "report"}
    flows.drain()
    assert failed.get(timeout=5) == [[2, 3, 4], [1, 2, 3]]
    again = cli("workflow", "retry", failed.id)
    assert (again.exit_code, again.stdout) == (0, "nothing has failed in it\n")


def test_a_failed_step_is_skipped(failed: WorkflowHandle[Any], flows: Flows, cli: Cli) -> None:
    assert cli("workflow", "skip", failed.id, "stats").stdout == "skipped: stats\n"
    flows.drain()
    assert failed.get(timeout=5) == [[2, 3, 4], 70]
    result = cli("workflow", "skip", failed.id, "rows")
    assert result.exit_code == 1
    assert "there is nothing to skip" in result.stderr


def test_a_step_runs_again_with_what_depends_on_it(flows: Flows, cli: Cli) -> None:
    run = flows.run("etl")
    assert set(cli.json("workflow", "rerun", run.id, "stats")["rerun"]) == {"stats", "report"}
    flows.drain()
    assert run.status().state == "SUCCEEDED"
    assert (flows.calls["stats"], flows.calls["report"], flows.calls["rows"]) == (2, 2, 1)


def test_a_run_is_cancelled_once(flows: Flows, cli: Cli) -> None:
    run = flows.app.submit_workflow("etl")
    assert cli("workflow", "cancel", run.id).stdout == f"{run.id} cancelled\n"
    assert run.status().state == "REVOKED"
    again = cli("workflow", "cancel", run.id)
    assert (again.exit_code, again.stdout) == (0, f"{run.id} had ended REVOKED\n")
    done = flows.run("etl")
    assert cli.json("workflow", "cancel", done.id, code=1)["state"] == "SUCCEEDED"


def test_resume_changes_nothing_in_a_run_that_is_well(flows: Flows, cli: Cli) -> None:
    run = flows.app.submit_workflow("etl")
    assert cli("workflow", "resume", run.id).stdout == "nothing was left undone\n"
    assert cli.json("workflow", "resume", run.id) == {"id": run.id, "resumed": 0}


def test_a_run_is_drawn_with_or_without_states(failed: WorkflowHandle[Any], cli: Cli) -> None:
    text = cli("workflow", "graph", failed.id).stdout
    assert text.startswith("flowchart TD\n")
    assert "FAILED" in text
    dot = cli("workflow", "graph", failed.id, "--format", "dot", "--no-states").stdout
    assert dot.startswith('digraph "etl" {')
    assert "FAILED" not in dot
    assert cli.json("workflow", "graph", failed.id)["graph"].rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize(
    "args",
    [
        ("status", "wf-nope"),
        ("resume", "wf-nope"),
        ("cancel", "wf-nope"),
        ("retry", "wf-nope"),
        ("rerun", "wf-nope", "a"),
        ("skip", "wf-nope", "a"),
        ("graph", "wf-nope"),
    ],
)
def test_an_unknown_run_is_a_failure(args: tuple[str, ...], flows: Flows, cli: Cli) -> None:
    flows.app.submit_workflow("etl")
    result = cli("workflow", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no run 'wf-nope'" in result.stderr
    assert "taskmq workflow list" in result.stderr


def test_a_job_that_is_no_run_is_told_apart(flows: Flows, cli: Cli) -> None:
    run = flows.app.submit_workflow("etl")
    result = cli("workflow", "status", f"{run.id}::rows")
    assert result.exit_code == 1
    assert "no run" in result.stderr


@pytest.mark.parametrize("command", ["rerun", "skip"])
def test_a_misspelt_step_is_told_with_what_was_meant(command: str, flows: Flows, cli: Cli) -> None:
    run = flows.app.submit_workflow("etl")
    result = cli("workflow", command, run.id, "stas")
    assert result.exit_code == 1
    assert "no step 'stas'; did you mean 'stats'?" in result.stderr


def test_status_of_the_backend_shows_runs_that_go_on(flows: Flows, cli: Cli) -> None:
    flows.run("etl")
    assert cli.json("status")["workflows"] == []
    going = [flows.app.submit_workflow("etl").id for _ in range(12)]
    shown = cli.json("status")["workflows"]
    assert [each["id"] for each in shown] == sorted(going)[:10]
    text = cli("status").stdout
    assert "Workflows" in text
    assert going[0] in text
    assert max(map(len, text.splitlines())) <= 80


MODULE = """
from taskmq import App, Config
app = App(Config(events="null"))

@app.task(name="double")
def double(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return 2 * number

@app.workflow("doubled")
def doubled(wf, count: int, first: int = 0):
    return wf.map("all", double, over=list(range(first, count)))
"""


@pytest.fixture
def app(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app with a workflow, named to the command line."""
    monkeypatch.setenv("TASKMQ_TRANSPORT", cli.url)
    name = cli.module(MODULE)
    monkeypatch.setenv("TASKMQ_APP", name)
    return name


@contextmanager
def worker(cli: Cli) -> Iterator[None]:
    """A worker for that app, in this process."""
    space: dict[str, Any] = {}
    exec(MODULE, space)
    app: App = space["app"]
    app.config = app.config.replace(transport=cli.url)
    with app, worker_for(app):
        yield


def test_a_run_is_submitted_and_its_id_printed(app: str, cli: Cli) -> None:
    run = cli("workflow", "submit", "doubled", "--params", '{"count": 3}').stdout.strip()
    status = cli.json("workflow", "status", run)
    assert (status["workflow"], list(status["steps"])) == ("doubled", ["all"])
    own = ("--params", '{"count": 1}', "--run-id", "wf-own")
    assert {cli.json("workflow", "submit", "doubled", *own)["id"] for _ in range(2)} == {"wf-own"}
    assert len(cli.json("workflow", "list")["runs"]) == 2


def test_the_end_of_a_submitted_run_is_waited_for(app: str, cli: Cli) -> None:
    with worker(cli):
        given = ("workflow", "submit", "doubled", "--wait", "--timeout", "20", "--params")
        done = cli(*given, '{"count": 3}')
        assert (done.exit_code, json.loads(done.stdout)) == (0, [0, 2, 4])
        assert done.stderr.startswith("run wf-")
        failed = cli(*given, '{"count": 1, "first": -1}')
        assert (failed.exit_code, failed.stdout) == (1, "")
        assert "step 'all' ended FAILED" in failed.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["doubledd"], 2, "no workflow 'doubledd' is registered here; did you mean 'doubled'?"),
        (["doubled"], 2, "wrong parameters for workflow doubled"),
        (["doubled", "--params", '{"count": 1, "odd": 2}'], 2, "odd"),
        (["doubled", "--params", '{"count": 1}', "--run-id", "mine"], 2, "begins with 'wf-'"),
        (["doubled", "--params", "[1]"], 2, "object"),
        (["doubled", "--timeout", "3"], 2, "give --wait too"),
        (
            ["doubled", "--params", '{"count": 1}', "--wait", "--timeout", "0.1"],
            1,
            "has not ended within 0.1 s; it goes on: look at it with `taskmq workflow status wf-",
        ),
    ],
)
def test_a_wrong_submit_says_what_is_wrong(
    app: str, cli: Cli, words: list[str], code: int, said: str
) -> None:
    result = cli("workflow", "submit", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_run_on_memory_is_refused_because_it_would_be_lost(
    app: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKMQ_TRANSPORT", "memory://")
    result = cli("workflow", "submit", "doubled", "--params", '{"count": 1}')
    assert result.exit_code == 2
    assert "memory:// ends with this process" in result.stderr
