"""Destructive commands: asked for, counted, bounded, and harmless to repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskmq.states import JobState
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.backlog import Backlog
    from support.cli import Cli
    from taskmq.clock import FakeClock
    from taskmq.transport import Transport


def states(transport: Transport, ids: Sequence[str]) -> set[JobState | None]:
    return {each.state if each else None for each in transport.get_jobs(ids)}


def pending(transport: Transport, queue: str) -> int:
    return sum(each.pending for each in transport.stats([queue]))


def test_dead_letters_are_listed_with_reason_and_total(backlog: Backlog, cli: Cli) -> None:
    backlog.dead(2)
    backlog.dead(1, "reports")
    text = cli("dlq", "list", "-Q", "email").stdout
    assert "ValueError: no such user" in text
    assert "2 of 2 dead letters" in text
    assert max(map(len, text.splitlines())) <= 80
    document = cli.json("dlq", "list", "--limit", "1")
    assert (document["total"], len(document["letters"])) == (3, 1)
    assert document["letters"][0]["call"]["args"] == ["user0@b.com"]


def test_no_dead_letters_are_no_failure(transport: Transport, cli: Cli) -> None:
    assert cli("dlq", "list").stdout == "No dead letters.\n"
    assert cli("dlq", "replay", "--all").stdout == "replayed 0 of 0 dead letters\n"
    assert cli("dlq", "purge").stdout == "purged 0 of 0 dead letters\n"


def test_a_dead_letter_is_shown_with_call_and_traceback(backlog: Backlog, cli: Cli) -> None:
    (job,) = backlog.dead()
    text = cli("dlq", "show", job).stdout
    assert "Traceback" in text
    assert "user0@b.com" in text
    missing = cli("dlq", "show", "nope")
    assert missing.exit_code == 1
    assert "dlq list" in missing.stderr


def test_hostile_error_texts_reach_no_terminal(backlog: Backlog, cli: Cli) -> None:
    error = ErrorInfo(type="E", message="\x1b[2J[red]boom\x00", traceback="\x1b]0;title\x07")
    (job,) = backlog.dead(error=error)
    for args in (("dlq", "list"), ("dlq", "show", job), ("jobs", "show", job)):
        text = cli(*args).stdout
        assert "\x1b" not in text
        assert "[red]boom" in text


def test_all_are_replayed_with_a_fresh_budget(backlog: Backlog, cli: Cli) -> None:
    dead = [*backlog.dead(3), *backlog.dead(2, "reports")]
    assert cli("dlq", "replay", "--all").stdout == "replayed 5 of 5 dead letters\n"
    assert states(backlog.transport, dead) == {JobState.QUEUED}
    record = backlog.transport.get_jobs(dead)[0]
    assert record is not None
    assert (record.attempt, record.deliveries, record.series) == (1, 0, 2)


def test_replaying_again_replays_nothing(backlog: Backlog, cli: Cli) -> None:
    dead = backlog.dead(3)
    assert cli.json("dlq", "replay", "--all") == {"replayed": 3, "found": 3}
    assert cli.json("dlq", "replay", "--all") == {"replayed": 0, "found": 0}
    assert pending(backlog.transport, "email") == 3
    again = cli("dlq", "replay", dead[0])
    assert again.exit_code == 1
    assert "named no dead letter" in again.stderr


def test_two_replays_at_once_share_the_work(
    backlog: Backlog, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog.dead(10)
    replay = MemoryTransport.replay_dead
    counts: list[int] = []

    def with_a_rival(self: MemoryTransport, ids: Sequence[str], **options: object) -> int:
        counts.append(replay(self, ids[::2]))
        return replay(self, ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryTransport, "replay_dead", with_a_rival)
    assert cli.json("dlq", "replay", "--all") == {"replayed": 5, "found": 10}
    assert counts == [5]
    assert pending(backlog.transport, "email") == 10


def test_a_queue_is_replayed_alone_elsewhere_with_another_priority(
    backlog: Backlog, cli: Cli
) -> None:
    dead, others = backlog.dead(2), backlog.dead(1, "reports")
    result = cli("dlq", "replay", "-Q", "email", "--to", "slow", "--priority", "-5")
    assert result.stdout == "replayed 2 of 2 dead letters\n"
    records = [each for each in backlog.transport.get_jobs(dead) if each is not None]
    assert {(each.queue, each.priority) for each in records} == {("slow", -5)}
    assert states(backlog.transport, others) == {JobState.FAILED}


def test_named_ones_are_replayed_alone(backlog: Backlog, cli: Cli) -> None:
    first, second, third = backlog.dead(3)
    assert cli("dlq", "replay", first, third, first).stdout == "replayed 2 of 2 dead letters\n"
    assert states(backlog.transport, [second]) == {JobState.FAILED}


def test_a_dry_run_counts_and_changes_nothing(backlog: Backlog, cli: Cli) -> None:
    dead = backlog.dead(3)
    assert cli("dlq", "replay", "--all", "--dry-run").stdout == "would replay 3 of 3 dead letters\n"
    assert states(backlog.transport, dead) == {JobState.FAILED}


def test_many_are_replayed_in_bounded_batches(
    backlog: Backlog, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog.dead(1300)
    sizes: list[int] = []
    replay = MemoryTransport.replay_dead

    def spy(self: MemoryTransport, ids: Sequence[str], **options: object) -> int:
        sizes.append(len(ids))
        return replay(self, ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryTransport, "replay_dead", spy)
    assert cli.json("dlq", "replay", "--all") == {"replayed": 1300, "found": 1300}
    assert sizes == [500, 500, 300]


def test_an_interrupted_replay_is_completed_by_the_next(
    backlog: Backlog, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog.dead(1200)
    replay = MemoryTransport.replay_dead
    calls: list[int] = []

    def dies_in_the_second(self: MemoryTransport, ids: Sequence[str], **options: object) -> int:
        calls.append(len(ids))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replay(self, ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryTransport, "replay_dead", dies_in_the_second)
    interrupted = cli("dlq", "replay", "--all")
    assert interrupted.exit_code == 130
    assert "interrupted after 500 of 1,200 dead letters" in interrupted.stderr
    assert cli.json("dlq", "replay", "--all") == {"replayed": 700, "found": 700}
    assert pending(backlog.transport, "email") == 1200


def test_a_job_that_dies_again_meanwhile_is_not_replayed_twice(
    backlog: Backlog, cli: Cli, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog.dead(3)
    replay = MemoryTransport.replay_dead

    def and_die_again(self: MemoryTransport, ids: Sequence[str], **options: object) -> int:
        done = replay(self, ids, **options)  # type: ignore[arg-type]
        clock.advance(1)
        backlog.dead(2)
        return done

    monkeypatch.setattr(MemoryTransport, "replay_dead", and_die_again)
    clock.advance(1)
    assert cli.json("dlq", "replay", "--all") == {"replayed": 3, "found": 3}


def test_purging_dead_letters_asks_with_the_count(backlog: Backlog, cli: Cli) -> None:
    backlog.dead(3)
    refused = cli("dlq", "purge", input="n\n")
    assert refused.exit_code == 1
    assert "3 dead letters of all queues" in refused.stderr
    silent = cli("dlq", "purge", input="")
    assert silent.exit_code == 1
    assert cli.json("dlq", "list")["total"] == 3
    assert cli("dlq", "purge", input="y\n").stdout.endswith("purged 3 of 3 dead letters\n")
    assert cli.json("dlq", "list")["total"] == 0


def test_purging_drops_one_queue_or_named_letters_only(backlog: Backlog, cli: Cli) -> None:
    first, second = backlog.dead(2)
    backlog.dead(1, "reports")
    assert cli("dlq", "purge", "-Q", "reports", "--yes").stdout == "purged 1 of 1 dead letter\n"
    assert cli("dlq", "purge", first, "--yes").exit_code == 0
    left = cli.json("dlq", "list")["letters"]
    assert [each["id"] for each in left] == [second]
    assert cli("dlq", "purge", first, "-y").exit_code == 1
    assert cli("dlq", "purge", first, "-Q", "email", "-y").exit_code == 2


@pytest.mark.parametrize(
    "args",
    [
        ("purge", "-Q", "emial", "--yes"),
        ("dlq", "replay", "-Q", "emial"),
        ("dlq", "purge", "-Q", "emial", "-y"),
    ],
)
def test_a_misspelt_queue_is_not_found_and_the_right_one_named(
    args: tuple[str, ...], backlog: Backlog, cli: Cli
) -> None:
    backlog.queued(2)
    result = cli(*args)
    assert result.exit_code == 1
    assert "did you mean 'email'?" in result.stderr
    assert pending(backlog.transport, "email") == 2


def test_purging_a_queue_asks_with_the_count(backlog: Backlog, cli: Cli) -> None:
    ids = [*backlog.queued(3), *backlog.queued(2, delay=60.0)]
    refused = cli("purge", "-Q", "email", input="n\n")
    assert refused.exit_code == 1
    assert "Revoke 5 jobs of 'email'?" in refused.stderr
    assert states(backlog.transport, ids) == {JobState.QUEUED}
    done = cli("purge", "-Q", "email", input="y\n")
    assert "revoked 5 jobs of queue 'email'" in done.stdout
    assert states(backlog.transport, ids) == {JobState.REVOKED}


def test_purging_leaves_running_dead_and_other_jobs_alone(backlog: Backlog, cli: Cli) -> None:
    (held,) = backlog.held()
    dead = backlog.dead()
    others = backlog.queued(2, "reports")
    ids = backlog.queued(3)
    document = cli.json("purge", "-Q", "email", "--yes")
    assert document == {"queues": [{"queue": "email", "revoked": 3, "found": 3}]}
    assert states(backlog.transport, ids) == {JobState.REVOKED}
    assert states(backlog.transport, [held.id]) == {JobState.RUNNING}
    assert states(backlog.transport, dead) == {JobState.FAILED}
    assert states(backlog.transport, others) == {JobState.QUEUED}
    assert cli.json("purge", "-Q", "email", "--yes")["queues"][0]["revoked"] == 0


def test_purging_never_ends_more_than_was_confirmed(
    backlog: Backlog, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog.queued(1200)
    purge = MemoryTransport.purge
    limits: list[int] = []

    def with_a_busy_producer(self: MemoryTransport, queue: str, *, limit: int = 500) -> object:
        limits.append(limit)
        backlog.queued(300)
        return purge(self, queue, limit=limit)

    monkeypatch.setattr(MemoryTransport, "purge", with_a_busy_producer)
    assert cli.json("purge", "-Q", "email", "-y")["queues"][0]["revoked"] == 1200
    assert limits == [500, 500, 200]
    assert pending(backlog.transport, "email") == 900


def test_a_dry_purge_changes_nothing_and_several_queues_are_taken(
    backlog: Backlog, cli: Cli
) -> None:
    backlog.queued(2)
    backlog.queued(1, "reports")
    text = cli("purge", "-Q", "email,reports", "--dry-run").stdout
    assert text == "would revoke 2 jobs of queue 'email'\nwould revoke 1 job of queue 'reports'\n"
    assert pending(backlog.transport, "email") == 2
