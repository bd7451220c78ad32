"""Lists: one line an entry, ids whole, long names cut, in 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskmq.transport.types import ErrorInfo
from taskmq_cli import output

if TYPE_CHECKING:
    from support.backlog import Backlog
    from support.cli import Cli
    from taskmq.clock import FakeClock

LONG = "warehouse.replenishment.suppliers.tasks.recalculate_all_of_the_forecasts"


def test_a_row_is_one_line_with_the_id_whole_and_long_names_cut(
    backlog: Backlog, cli: Cli, clock: FakeClock
) -> None:
    (job,) = backlog.queued(1, "queue-" + "q" * 60, task=LONG)
    clock.advance(300)
    head, row = cli("jobs", "list").stdout.splitlines()
    assert head.split() == ["id", "state", "task", "queue", "try", "age"]
    assert row.startswith(job)
    assert row.endswith("5 min")
    assert "forecasts  queue-q" in row
    assert row.count("…") == 2
    assert len(row) <= 80


def test_an_id_is_never_cut_however_narrow_the_screen_is(
    backlog: Backlog, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    (job,) = backlog.dead()
    for command in (("jobs", "list"), ("dlq", "list")):
        lines = cli(*command).stdout.splitlines()
        assert lines[1].startswith(job)


def test_our_own_errors_are_told_without_their_module(
    backlog: Backlog, cli: Cli, clock: FakeClock
) -> None:
    error = ErrorInfo(type="taskmq.errors.TimedOut", message="after 3 s")
    (job,) = backlog.dead(error=error)
    clock.advance(7200)
    text = cli("dlq", "list").stdout
    assert "TimedOut: after 3 s" in text
    assert "2 h" in text
    assert job in text
    for command in (("dlq", "list"), ("dlq", "show", job), ("jobs", "show", job)):
        assert "taskmq.errors" not in cli(*command).stdout
    assert cli.json("dlq", "show", job)["error"]["type"] == "taskmq.errors.TimedOut"


def test_no_line_ends_in_blanks_when_nobody_looks(backlog: Backlog, cli: Cli) -> None:
    backlog.queued(2)
    backlog.dead()
    for command in ("status", "doctor", "plugins", "version"):
        lines = cli(command).stdout.splitlines()
        assert lines
        assert [line for line in lines if line != line.rstrip()] == []


def test_wide_characters_take_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    text = output.listing(("id", "<task"), [("1", "雪" * 12), ("22", "a")])
    assert text.splitlines()[1:] == ["1   …" + "雪" * 7, "22  a"]


def test_jobs_of_several_queues_are_merged_the_newest_first(backlog: Backlog, cli: Cli) -> None:
    ids = [job for _ in range(3) for queue in ("a", "b", "c") for job in backlog.queued(1, queue)]
    wanted = [job for index, job in enumerate(ids) if index % 3 < 2]
    for spelling in (("-Q", "a,b"), ("-Q", "a", "-Q", "b")):
        listed = [each["id"] for each in cli.json("jobs", "list", *spelling)["jobs"]]
        assert listed == wanted[::-1]
    oldest = cli.json("jobs", "list", "-Q", "a,b", "--oldest-first", "-n", "3")["jobs"]
    assert [each["id"] for each in oldest] == wanted[:3]
    assert "(the first 3; more" in cli("jobs", "list", "-Q", "a,b", "-n", "3").stdout


def test_a_queue_of_the_whole_name_goes_before_a_list(backlog: Backlog, cli: Cli) -> None:
    (both,) = backlog.queued(1, "a,b")
    (spaced,) = backlog.queued(1, "my queue ")
    backlog.queued(1, "a")

    def listed(queue: str) -> list[str]:
        return [each["id"] for each in cli.json("jobs", "list", "-Q", queue)["jobs"]]

    assert listed("a,b") == [both]
    assert listed("my queue ") == [spaced]
    assert len(listed("a, my queue ")) == 2
    assert cli.json("purge", "-Q", "a,b", "--yes")["queues"] == [
        {"queue": "a,b", "revoked": 1, "found": 1}
    ]
    assert [
        each["queue"] for each in cli.json("purge", "-Q", "a, my queue ", "--yes")["queues"]
    ] == [
        "a",
        "my queue ",
    ]
