from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskmq.states import JobState

if TYPE_CHECKING:
    from support.backlog import Backlog
    from support.cli import Cli
    from taskmq.transport import Transport


def test_jobs_are_listed_newest_first_and_filtered(backlog: Backlog, cli: Cli) -> None:
    queued = backlog.queued(3)
    dead = backlog.dead(2, "reports")
    ids = [each["id"] for each in cli.json("jobs", "list")["jobs"]]
    assert ids == sorted([*queued, *dead], reverse=True)
    failed = cli.json("jobs", "list", "--state", "failed")["jobs"]
    assert {each["id"] for each in failed} == set(dead)
    both = cli.json("jobs", "list", "--state", "FAILED", "--state", "QUEUED", "-Q", "email")["jobs"]
    assert {each["id"] for each in both} == set(queued)
    assert cli.json("jobs", "list", "--task", "other")["jobs"] == []
    oldest = cli.json("jobs", "list", "--oldest-first", "-n", "1")["jobs"]
    assert [each["id"] for each in oldest] == [min([*queued, *dead])]


def test_a_list_is_cut_at_its_limit_over_several_pages(backlog: Backlog, cli: Cli) -> None:
    backlog.queued(1200)
    assert len(cli.json("jobs", "list", "--limit", "1100")["jobs"]) == 1100
    assert "(the first 50; more with --limit)" in cli("jobs", "list").stdout


def test_a_listed_id_is_whole_in_80_columns(backlog: Backlog, cli: Cli) -> None:
    (job,) = backlog.queued(1)
    text = cli("jobs", "list").stdout
    assert job in text
    assert max(map(len, text.splitlines())) <= 80
    assert cli("jobs", "list", "--state", "FAILED").stdout == "No jobs.\n"


def test_a_job_is_shown_with_call_result_and_times(backlog: Backlog, cli: Cli) -> None:
    job = backlog.succeeded({"sent": 3})
    text = cli("jobs", "show", job).stdout
    assert '["user0@b.com"]' in text
    assert '"sent": 3' in text
    assert "SUCCEEDED" in text
    document = cli.json("jobs", "show", job)
    assert document["result"] == {"sent": 3}
    assert document["call"]["kwargs"] == {"subject": "hi"}
    assert "receipt" not in document


def test_a_failed_job_is_shown_with_its_traceback_and_the_way_to_replay(
    backlog: Backlog, cli: Cli
) -> None:
    (job,) = backlog.dead()
    text = cli("jobs", "show", job).stdout
    assert "ValueError: no such user" in text
    assert "Traceback" in text
    assert f"taskmq dlq replay {job}" in text


def test_an_unknown_job_is_a_failure(transport: Transport, cli: Cli) -> None:
    result = cli("jobs", "show", "nope")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no job 'nope'" in result.stderr


def test_revoking_tells_what_became_of_each_job(backlog: Backlog, cli: Cli) -> None:
    (queued,) = backlog.queued(1, "a")
    (held,) = backlog.held(1, "b")
    done = backlog.succeeded(1, "c")
    result = cli("jobs", "revoke", queued, held.id)
    assert result.exit_code == 0
    assert f"{queued} revoked" in result.stdout
    assert "held by a worker" in result.stdout
    record = backlog.transport.get_jobs([queued])[0]
    assert record is not None
    assert record.state is JobState.REVOKED
    again = cli("jobs", "revoke", queued)
    assert again.exit_code == 0
    document = cli.json("jobs", "revoke", done, "nope", code=1)
    assert [each["status"] for each in document["jobs"]] == ["final", "unknown"]
    assert "had ended SUCCEEDED" in cli("jobs", "revoke", done).stdout


def test_a_waiting_job_is_completed_once(backlog: Backlog, cli: Cli) -> None:
    job, token = backlog.parked()
    assert cli("jobs", "complete", token, "--result", '{"url": "s3://b/1"}').stdout == "done\n"
    assert cli.json("jobs", "show", job)["result"] == {"url": "s3://b/1"}
    assert (
        cli.json("jobs", "complete", token, "--result", '{"url": "s3://b/1"}')["status"]
        == "already"
    )
    other = cli("jobs", "complete", token, "--result", "2")
    assert other.exit_code == 1
    assert "refused" in other.stderr


def test_a_waiting_job_is_failed_with_a_reason(backlog: Backlog, cli: Cli) -> None:
    job, token = backlog.parked()
    result = cli("jobs", "complete", token, "--fail", "no space")
    assert result.exit_code == 0
    document = cli.json("jobs", "show", job)
    assert document["state"] == "FAILED"
    assert document["error"]["message"] == "no space"


def test_a_retryable_failure_is_handed_to_a_worker(backlog: Backlog, cli: Cli) -> None:
    _, token = backlog.parked()
    result = cli("jobs", "complete", token, "--fail", "busy", "--retryable")
    assert "handed to a worker" in result.stdout


@pytest.mark.parametrize("token", ["", "nonsense", "tmq1.x", "tmq1.x.unknown-job"])
def test_a_wrong_token_is_refused(token: str, transport: Transport, cli: Cli) -> None:
    result = cli("jobs", "complete", token)
    assert result.exit_code == 1
    assert "Error: " in result.stderr


def test_undecodable_envelopes_are_shown_as_bytes(backlog: Backlog, cli: Cli) -> None:
    (job,) = backlog.queued(1, envelope=b"\xff\x00garbage")
    document = cli.json("jobs", "show", job)
    assert "undecodable" in document["call"]
    assert document["call"]["raw"].startswith("ff00")
    assert cli("jobs", "show", job).exit_code == 0
