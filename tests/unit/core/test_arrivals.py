import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmq.states import JobState
from taskmq.transport.arrivals import Tally, cause_of, decide, is_closed, verdict_of
from taskmq.transport.types import Edge, Hold, HoldRule


@pytest.mark.parametrize(
    ("rule", "arrived", "failed", "expected"),
    [
        (HoldRule.ALL_OK, 2, 0, "wait"),
        (HoldRule.ALL_OK, 3, 0, "release"),
        (HoldRule.ALL_OK, 1, 1, "give_up"),
        (HoldRule.ALL_DONE, 2, 2, "wait"),
        (HoldRule.ALL_DONE, 3, 3, "release"),
        (HoldRule.ANY_FAILED, 1, 1, "release"),
        (HoldRule.ANY_FAILED, 2, 0, "wait"),
        (HoldRule.ANY_FAILED, 3, 0, "give_up"),
        (HoldRule.TOLERATE, 2, 2, "wait"),
        (HoldRule.TOLERATE, 3, 1, "release"),
        (HoldRule.TOLERATE, 3, 2, "give_up"),
    ],
)
def test_each_rule_decides_as_documented(
    rule: HoldRule, arrived: int, failed: int, expected: str
) -> None:
    hold = Hold(arrivals=3, rule=rule, tolerate=1)
    assert decide(hold, Tally(need=3, arrived=arrived, failed=failed)) == expected


@pytest.mark.parametrize("rule", HoldRule)
def test_a_hold_without_arrivals_is_released_whatever_its_rule(rule: HoldRule) -> None:
    assert decide(Hold(arrivals=0, rule=rule), Tally(need=0)) == "release"


@given(
    rule=st.sampled_from(HoldRule),
    verdicts=st.lists(st.booleans(), min_size=1, max_size=12),
    tolerate=st.integers(0, 12),
)
def test_every_hold_is_decided_when_all_have_arrived_and_then_for_good(
    rule: HoldRule, verdicts: list[bool], tolerate: int
) -> None:
    hold = Hold(arrivals=len(verdicts), rule=rule, tolerate=tolerate)
    decisions = [
        decide(hold, Tally(need=len(verdicts), arrived=n, failed=sum(verdicts[:n])))
        for n in range(1, len(verdicts) + 1)
    ]
    decided = [decision for decision in decisions if decision != "wait"]
    assert decided
    assert len(set(decided)) == 1
    assert decisions == ["wait"] * (len(decisions) - len(decided)) + decided


def test_only_success_or_a_tolerant_edge_arrives_as_ok() -> None:
    plain, tolerant = Edge("join"), Edge("join", tolerate=True)
    assert verdict_of(JobState.SUCCEEDED, plain) == "ok"
    assert verdict_of(JobState.SKIPPED, plain) == "skipped"
    for state in (JobState.FAILED, JobState.REVOKED, JobState.EXPIRED):
        assert verdict_of(state, plain) == "failed"
        assert verdict_of(state, tolerant) == "ok"
    assert verdict_of(JobState.SKIPPED, tolerant) == "ok"


def test_the_cause_names_the_job_that_decided() -> None:
    assert "job a arrived failed" in cause_of(Hold(arrivals=1), "a", "failed").message
    none_failed = cause_of(Hold(arrivals=1, rule=HoldRule.ANY_FAILED), "a", "ok")
    assert "none of the jobs" in none_failed.message
    assert none_failed.reason == "skipped"


def test_a_guard_closes_when_its_record_ends_or_is_being_cancelled() -> None:
    assert not is_closed(None)
    assert not is_closed(JobState.PENDING)
    assert is_closed(JobState.PENDING, cancel_requested=True)
    assert is_closed(JobState.FAILED)
