"""What every pool promises to tasks, whatever runs them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pool_app import APP, ERRORS, LIFE, RESULTS, UNENCODABLE
from support.pools import KINDS, Site, pool_site
from support.waiting import wait_until
from taskmq import JobState, RemoteError, current_task
from taskmq.errors import TaskmqError
from taskmq_worker import Worker

ENDS = ["before_start", "run"]


@pytest.fixture(params=KINDS)
def site(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Site]:
    with pool_site(request.param, monkeypatch, tmp_path) as each:
        yield each


@pytest.fixture(params=[kind for kind in KINDS if kind != "solo"])
def limited(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Site]:
    """A pool that does something at a hard timeout."""
    with pool_site(request.param, monkeypatch, tmp_path) as each:
        yield each


# --- hooks ---


@pytest.mark.parametrize(
    ("how", "attempts"),
    [
        ("well", [[*ENDS, "on_success", "after_return"]]),
        ("fail", [[*ENDS, "on_retry", "after_return"], [*ENDS, "on_failure", "after_return"]]),
        (
            "refuse",
            [
                ["before_start", "on_retry", "after_return"],
                ["before_start", "on_failure", "after_return"],
            ],
        ),
        ("hook raises", [[*ENDS, "on_success", "after_return"]]),
    ],
)
def test_hooks_run_in_order_on_the_thread_of_the_job(
    site: Site, how: str, attempts: list[list[str]]
) -> None:
    with site.worker():
        handle = site.task("hooks").delay(how)
        site.wait_for(handle, "after_return", len(attempts))
        handle.wait(timeout=10)
    # The next attempt may start elsewhere while hooks of this one, which follow its settlement, still run.
    steps = sorted(site.steps(handle), key=lambda step: step.attempt)
    assert [step.what for step in steps] == [name for each in attempts for name in each]
    assert {step.values["current"] for step in steps} == {handle.id}
    done = 0
    for names in attempts:
        of_attempt = steps[done : done + len(names)]
        done += len(names)
        # Each attempt stays on its thread; context variables and attributes go from step to step.
        assert len({step.place for step in of_attempt}) == 1
        after_run = "run" if "run" in names else "before"
        assert {step.values["mark"] for step in of_attempt[-2:]} == {after_run}
        assert {step.values["seen"] for step in of_attempt[-2:]} == {after_run}
        # Confirmed before they run: the transport says the same state.
        assert of_attempt[-1].values["state"] == of_attempt[-2].values["stored"]
    if how == "hook raises":
        assert handle.state is JobState.SUCCEEDED
        errors = handle.info.meta["hook_error"]
        assert [each["hook"] for each in errors] == ["on_success", "after_return"]


# --- what bodies raise and return ---


def test_exceptions_of_every_odd_kind_end_their_job_and_nothing_else(site: Site) -> None:
    with site.worker() as worker:
        handles = {kind: site.task("raises").delay(kind) for kind in ERRORS}
        ends: dict[str, tuple[str, str]] = {}
        for kind, handle in handles.items():
            with pytest.raises(RemoteError) as raised:
                handle.get(timeout=20)
            ends[kind] = (re.sub(r".*\.", "", raised.value.type), raised.value.reason)
            assert len(raised.value.message) < 10_000
        after = [site.task("add").delay(n, 1) for n in range(20)]
        assert [handle.get(timeout=20) for handle in after] == list(range(1, 21))
        assert worker.pool.health().blocked is None
    expected = dict(ERRORS)
    if site.kind == "asyncio":
        # The language itself says so of a coroutine.
        expected["stop"] = ("RuntimeError", "exception")
    assert ends == expected


def test_results_of_every_odd_kind_come_back_as_they_were(site: Site) -> None:
    with site.worker():
        handles = {kind: site.task("returns").delay(kind) for kind in RESULTS}
        assert {kind: handle.get(timeout=20) for kind, handle in handles.items()} == RESULTS


def test_a_result_that_can_not_travel_fails_the_job_once(site: Site) -> None:
    with site.worker():
        handles = {kind: site.task("returns").delay(kind) for kind in UNENCODABLE}
        for kind, handle in handles.items():
            with pytest.raises(RemoteError) as raised:
                handle.get(timeout=20)
            assert raised.value.reason == "result not serialisable", kind
            assert handle.info.attempt == handle.info.deliveries == 1
        assert site.task("add").delay(1, 1).get(timeout=20) == 2


# --- context ---


def test_a_hundred_jobs_see_their_own_context_and_nobody_else_s(site: Site) -> None:
    with site.worker(8):
        handles = [site.task("context").delay(n) for n in range(100)]
        seen = [handle.get(timeout=20) for handle in handles]
    assert [each["id"] for each in seen] == [handle.id for handle in handles]
    assert [each["number"] for each in seen] == list(range(100))
    assert [each["args"] for each in seen] == [[n] for n in range(100)]
    assert {each["mark"] for each in seen} == {"none"}
    with pytest.raises(Exception, match="no task runs here"):
        current_task()


# --- the worker's life ---


def test_start_and_stop_hooks_run_in_the_process_of_the_jobs_around_them(site: Site) -> None:
    with site.worker(1):
        handle = site.task("hooks").delay("well")
        assert handle.get(timeout=20) == "well"
    (place,) = {step.place for step in site.steps(handle)}
    effects = [effect for effect in site.effects.all() if effect.pid == place[0]]
    life = [effect for effect in effects if effect.job == LIFE]
    assert [effect.what for effect in life] == ["worker start", "worker stop"]
    assert effects[0] == life[0]
    assert effects[-1] == life[-1]
    if site.kind == "asyncio":
        assert {json.loads(effect.label)["thread"] for effect in life} == {place[1]}


def test_a_start_hook_that_fails_keeps_the_worker_from_starting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL_AT_START", "1")
    worker = Worker(site.app, concurrency=1, pool=site.pool, app_path=APP)
    with pytest.raises(TaskmqError, match="on_worker_start hook .* failed.*no route"):
        worker.start()
    worker.stop()


# --- time ---


def test_a_timeout_ends_a_body_that_can_hear_and_the_job_says_so(site: Site) -> None:
    with site.worker():
        handle = site.task("timed").delay()
        with pytest.raises(RemoteError) as raised:
            handle.get(timeout=20)
        assert raised.value.reason == "timed out"
        lines = len(site.names(handle))
        assert site.task("add").delay(1, 1).get(timeout=20) == 2
    assert len(site.names(handle)) == lines  # nothing is written after the end


def test_a_timeout_is_followed_by_another_attempt_as_the_policy_says(site: Site) -> None:
    with site.worker():
        handle = site.task("timed_retried").delay()
        with pytest.raises(RemoteError):
            handle.get(timeout=20)
    assert site.names(handle).count("start") == 2
    assert handle.info.attempt == 2


def test_a_timeout_error_of_the_task_s_own_stays_the_task_s(site: Site) -> None:
    with site.worker():
        handle = site.task("own_timed").delay()
        with pytest.raises(RemoteError) as raised:
            handle.get(timeout=20)
    assert raised.value.type.rpartition(".")[2] == "TimeoutError"
    assert raised.value.reason == "exception"


def test_past_its_hard_timeout_a_body_that_catches_everything_loses_its_slot_at_once(
    limited: Site,
) -> None:
    with limited.worker(1):
        handle = limited.task("deaf").delay(5.0)
        limited.wait_for(handle, "start")
        # The one slot is free again long before the body ends.
        assert limited.task("add").delay(1, 1).get(timeout=4) == 2
        with pytest.raises(RemoteError) as raised:
            handle.get(timeout=20)
        assert raised.value.reason == "timed out"
        assert "end" not in limited.names(handle)
        if limited.pool != "processes":
            limited.wait_for(handle, "end")
    assert handle.state is JobState.FAILED
    assert handle.info.deliveries == 1


def test_two_bodies_of_one_job_never_overlap_after_a_hard_timeout(limited: Site) -> None:
    with limited.worker(2) as worker:
        handle = limited.task("deaf_retried").delay(2.0)
        limited.wait_for(handle, "start", 2)
        names = [name for name in limited.names(handle) if name in ("start", "end")]
        if limited.pool == "processes":
            assert names == ["start", "start"]  # the first was killed
        else:
            assert names[:3] == ["start", "end", "start"]
        with pytest.raises(RemoteError) as raised:
            handle.get(timeout=20)
        assert raised.value.reason == "timed out"
        assert handle.info.attempt == 2
        wait_until(lambda: worker.pool.health().abandoned == 0)
        assert worker.pool.health().blocked is None


# --- cancelling ---


def test_a_running_job_that_is_revoked_ends_and_writes_no_more(site: Site) -> None:
    with site.worker():
        handle = site.task("polite").delay()
        site.wait_for(handle, "line", 2)
        assert handle.revoke()
        assert handle.wait(timeout=10)
        lines = len(site.names(handle))
        assert site.task("add").delay(1, 1).get(timeout=20) == 2
    assert handle.state is JobState.REVOKED
    assert len(site.names(handle)) == lines
    assert handle.revoke() is False


def test_revoking_at_any_moment_ends_each_job_once_and_never_the_next_one(site: Site) -> None:
    with site.worker(4):
        handles = [site.task("context").delay(n) for n in range(150)]
        for handle in handles[::2]:
            handle.revoke()
            handle.revoke()
        for number, handle in enumerate(handles):
            assert handle.wait(timeout=20)
            allowed = {JobState.SUCCEEDED} | ({JobState.REVOKED} if number % 2 == 0 else set())
            assert handle.state in allowed
        assert site.task("add").delay(1, 1).get(timeout=20) == 2


def test_what_runs_at_the_shutdown_timeout_is_handed_back_with_its_delivery_counted(
    site: Site,
) -> None:
    with site.worker(shutdown_timeout=0.2):
        handle = site.task("polite").delay()
        site.wait_for(handle, "line")
    assert handle.state is JobState.QUEUED
    lines = len(site.names(handle))
    with site.worker():
        site.wait_for(handle, "start", 2)
        handle.revoke()
        assert handle.wait(timeout=10)
    assert handle.info.deliveries == 2
    assert site.names(handle)[lines] == "start"  # the first wrote nothing more


def test_a_stop_lets_what_runs_end(site: Site) -> None:
    with site.worker():
        handle = site.task("polite").delay(1.0)
        site.wait_for(handle, "line")
    assert handle.get(timeout=1) == "not asked"


def test_nothing_of_the_pool_is_left_after_the_stop(site: Site) -> None:
    before = set(threading.enumerate())
    with site.worker():
        assert site.task("add").delay(1, 1).get(timeout=20) == 2

    def left() -> list[str]:
        return [t.name for t in set(threading.enumerate()) - before if "taskmq" in t.name]

    wait_until(lambda: [name for name in left() if name != "taskmq-events"] == [], timeout=5)
