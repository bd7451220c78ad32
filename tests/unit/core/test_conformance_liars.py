import threading
from collections.abc import Callable

import pytest

from support import liars
from support.liars import Honest
from taskmq.errors import TransportError
from taskmq.testing.conformance import (
    SCENARIOS,
    NotConforming,
    Scenario,
    conformance_params,
    run_scenario,
    runner,
    transport_conformance,
)
from taskmq.testing.conformance.rig import Rig

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}

FOUND_BY = {
    liars.DeliversTwice: ["held_is_invisible", "one_holder"],
    liars.IgnoresReceipts: ["stale_receipt_changes_nothing"],
    liars.PublishesWhenLost: ["stale_receipt_changes_nothing"],
    liars.HandsOutBackwards: ["fifo_in_a_band", "global_priority", "all_nineteen_levels"],
    liars.IgnoresPriority: ["global_priority", "head_tells_the_best_left"],
    liars.IgnoresWeights: ["weighted_round_robin"],
    liars.ForgetsLostDeliveries: ["lost_lease_comes_back"],
    liars.ForgetsCountedReleases: ["counted_release_keeps_the_count"],
    liars.CountsReleases: ["release_costs_nothing"],
    liars.NeverTakesBack: ["lost_lease_comes_back", "buried_after_max_deliveries"],
    liars.TakesBackEarly: ["nothing_comes_back_early"],
    liars.IgnoresMessageLease: ["message_lease_overrides_worker"],
    liars.ForgetsExtensions: ["extend_prolongs", "extend_tells_lost", "extend_records_start"],
    liars.LosesArrivals: ["held_message_is_invisible", "siblings_release_once"],
    liars.CountsArrivalsTwice: ["held_message_is_invisible", "arrival_counts_once"],
    liars.PublishesLater: ["no_moment_between_end_and_successor"],
    liars.NeverSaysAlready: ["repeated_settlement_is_already", "settlers_at_once_apply_once"],
    liars.AlwaysSaysOk: ["stale_receipt_changes_nothing", "yields_are_limited"],
    liars.LetsOneRefusalBlockAll: ["refused_item_blocks_no_other"],
    liars.NeverFreesKeys: ["bad_end_frees_the_key", "key_holds_for_its_window"],
    liars.IgnoresKeys: ["key_admits_one", "key_among_producers_at_once"],
    liars.IgnoresKeyScopes: ["key_until_start", "key_until_end"],
    liars.IgnoresConcurrencyKeys: ["key_limits_holders", "limit_holds_among_workers_at_once"],
    liars.IgnoresConcurrencyLimits: ["key_limits_holders", "waiting_line_is_shown"],
    liars.IgnoresDelays: ["delay_holds_a_message_back", "eta_is_absolute"],
    liars.RunsTheExpired: ["expired_is_never_delivered", "reap_ends_what_nobody_reads"],
    liars.NeverPrunes: ["finished_jobs_are_pruned", "ends_without_a_worker_are_pruned"],
    liars.IgnoresRetention: ["old_dead_letters_are_dropped", "dead_workers_are_pruned"],
    liars.LosesDeadLetters: ["bury_makes_a_dead_letter", "dead_letters_come_oldest_first"],
    liars.ReplaysWithoutEnd: ["each_is_replayed_once"],
    liars.ForgetsAttempts: ["retry_starts_the_next_attempt"],
    liars.RetriesAtOnce: ["retry_starts_the_next_attempt"],
    liars.LosesMeta: ["meta_is_kept_unless_replaced"],
    liars.DecodesEnvelopes: ["envelope_is_opaque"],
    liars.EnqueuesOneByOne: ["batch_appears_whole"],
    liars.IgnoresFences: ["outdated_fence_stores_nothing"],
    liars.HidesCancellation: ["holder_hears_of_it"],
    liars.CompletesAnything: ["completing_nothing_is_refused", "completion_may_come_first"],
    liars.ReopensWithoutComparing: ["reopen_compares_the_series"],
    liars.ElectsEverybody: ["one_worker_maintains", "election_at_once"],
    liars.GivesLeasesToAll: ["lease_has_one_owner", "lease_tokens_rise"],
    liars.HasNoJobListing: ["jobs_are_listed_by_prefix", "missing_capabilities_refuse"],
    liars.DeniesItsWorkers: ["missing_capabilities_refuse"],
    liars.DropsOldRecordsFromAnswers: ["get_jobs_answers_in_order"],
}


@pytest.mark.parametrize(
    ("liar", "name"), [(liar, name) for liar, names in FOUND_BY.items() for name in names]
)
def test_a_lie_fails_the_scenario_it_breaks(liar: type[Honest], name: str) -> None:
    assert run_scenario(BY_NAME[name], Honest).status == "passed"
    outcome = run_scenario(BY_NAME[name], liar)
    assert outcome.status == "failed", f"{name} did not find {liar.__name__}"
    assert outcome.reason


def test_one_error_names_all_that_failed_with_number_and_reason() -> None:
    with pytest.raises(NotConforming) as caught:
        transport_conformance(liars.LosesMeta)
    text = str(caught.value)
    assert "scenarios failed" in text
    assert "R4.2 meta_is_kept_unless_replaced: meta of the next delivery: expected" in text
    assert "I13.7 any_bytes_round_trip: meta: expected" in text
    assert "global_priority" in caught.value.report.passed
    assert "global_priority" not in text


def test_an_honest_transport_passes_and_is_reported() -> None:
    seen: list[str] = []
    report = transport_conformance(
        Honest, {"leases": True, "workers": True}, report=lambda outcome: seen.append(outcome.name)
    )
    assert not report.failed
    assert not report.skipped
    assert len(seen) == len(report.passed) == len(SCENARIOS) + 2


@pytest.mark.parametrize(
    ("supports", "complaint"),
    [
        ({"leases": False}, "supports says leases=False, the class declares True"),
        ({"lease": True}, "supports names 'lease'"),
    ],
)
def test_a_belief_that_disagrees_with_the_class_fails(
    supports: dict[str, bool], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        transport_conformance(Honest, supports)


def test_a_limitation_that_names_no_scenario_fails() -> None:
    with pytest.raises(AssertionError, match="limitations names everything, which is no scenario"):
        transport_conformance(liars.CannotHoldEverything)


def test_a_limitation_skips_exactly_its_scenario() -> None:
    class PerQueueOnly(liars.IgnoresPriority):
        limitations = {"global_priority": "per queue only"}

    with pytest.raises(NotConforming) as caught:
        transport_conformance(PerQueueOnly)
    report = caught.value.report
    assert report.skipped == {"global_priority": "limitation: per queue only"}
    assert "all_nineteen_levels" in report.failed


def test_a_capability_honestly_missing_skips_what_needs_it() -> None:
    class WithoutLeases(Honest):
        supports_leases = False

        def acquire(self, name: str, owner: str, ttl: float) -> int | None:
            raise _missing()

        def renew(self, name: str, token: int, ttl: float) -> bool:
            raise _missing()

        def release(self, name: str, token: int) -> bool:
            raise _missing()

    report = transport_conformance(WithoutLeases, {"leases": False})
    assert set(report.skipped) == {s.name for s in SCENARIOS if "leases" in s.needs}
    assert "needs leases" in report.skipped["lease_release"]


def test_a_scenario_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(runner, "WATCHDOG", 0.1)

    def hang(rig: Rig) -> None:
        release.wait(20)

    outcome = run_scenario(_scenario(hang), Honest)
    release.set()
    assert (outcome.status, outcome.reason) == ("failed", "had not ended after 0.1 s")


def test_a_factory_that_raises_is_a_failure() -> None:
    def broken() -> Honest:
        raise OSError("no disk")

    outcome = run_scenario(_scenario(lambda rig: None), broken)
    assert outcome.status == "failed"
    assert "the factory raised OSError: no disk" in outcome.reason


def test_params_are_one_test_a_scenario_that_skips_and_fails_like_the_suite() -> None:
    class Limited(Honest):
        limitations = {"global_priority": "per queue only"}

    params = {param.id: param.values[0] for param in conformance_params(Limited)}
    assert len(params) == len(SCENARIOS) + 2
    params["I4.3-fifo_in_a_band"]()
    with pytest.raises(pytest.skip.Exception, match="per queue only"):
        params["I4.1-global_priority"]()
    lying = {param.id: param.values[0] for param in conformance_params(liars.LosesMeta)}
    with pytest.raises(AssertionError, match=r"R4.2 meta_is_kept_unless_replaced(.|\n)*required:"):
        lying["R4.2-meta_is_kept_unless_replaced"]()


def test_each_invariant_has_a_scenario_and_each_scenario_says_what_it_requires() -> None:
    groups = {scenario.number.partition(".")[0] for scenario in SCENARIOS}
    assert {f"I{number}" for number in range(1, 14)} <= groups
    assert all(len(scenario.requirement) > 20 for scenario in SCENARIOS)


def test_scenarios_ask_for_capabilities_and_never_for_a_backend() -> None:
    for scenario in SCENARIOS:
        names = scenario.run.__code__.co_names + scenario.run.__code__.co_consts
        words = " ".join(str(name).lower() for name in names)
        assert not any(backend in words for backend in ("sqlite", "memorytransport", "redis"))


def _missing() -> Exception:
    return TransportError("declared missing")


def _scenario(run: Callable[[Rig], None]) -> Scenario:
    return Scenario(number="X1.1", name="x", requirement="x", theme="x", needs=(), run=run)
