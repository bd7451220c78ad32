from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.flows import Flows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.cli import Cli
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
