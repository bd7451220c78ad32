"""The conformance suite of result stores passes an honest one and finds every liar."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taskmq.clock import FakeClock
from taskmq.errors import TransportError
from taskmq.testing import result_store_conformance, result_store_params
from taskmq.testing.conformance import STORE_SCENARIOS, NotConforming, run_store_scenario
from taskmq.transport.contract import ResultStore
from taskmq.transport.types import Payload

BY_NAME = {scenario.name: scenario for scenario in STORE_SCENARIOS}
Key = tuple[str, str]


class Honest(ResultStore):
    """Keeps results in a dictionary; the liars change one thing each."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.kept: dict[object, tuple[float, Payload]] = {}

    def key(self, job: str, receipt: str) -> object:
        return job, receipt

    def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
        for job, receipt, payload in batch:
            self.kept[self.key(job, receipt)] = (self.clock.time() + ttl, payload)

    def get(self, ids: Sequence[Key]) -> list[Payload | None]:
        return [self.find(self.key(*pair)) for pair in ids]

    def find(self, key: object) -> Payload | None:
        until, payload = self.kept.get(key, (0.0, None))
        return payload if until > self.clock.time() else None

    def delete(self, ids: Sequence[Key]) -> None:
        for pair in ids:
            self.kept.pop(self.key(*pair), None)

    def close(self) -> None:
        pass


class ForgetsTheReceipt(Honest):
    def key(self, job: str, receipt: str) -> object:
        return job


class ForgetsTheJob(Honest):
    def key(self, job: str, receipt: str) -> object:
        return receipt


class GluesKeys(Honest):
    def key(self, job: str, receipt: str) -> object:
        return f"{job}:{receipt}"


class IgnoresCase(Honest):
    def key(self, job: str, receipt: str) -> object:
        return job.lower(), receipt


class KeepsForEver(Honest):
    def find(self, key: object) -> Payload | None:
        return self.kept[key][1] if key in self.kept else None


class KeepsTheFirst(Honest):
    def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
        super().put([row for row in batch if self.find(self.key(*row[:2])) is None], ttl)


class LeavesOutTheUnknown(Honest):
    def get(self, ids: Sequence[Key]) -> list[Payload | None]:
        return [payload for payload in super().get(ids) if payload is not None]


class SortsAnswers(Honest):
    def get(self, ids: Sequence[Key]) -> list[Payload | None]:
        return super().get(sorted(ids))


class LosesTheContentType(Honest):
    def get(self, ids: Sequence[Key]) -> list[Payload | None]:
        return [each and Payload("application/x-msgpack", each.data) for each in super().get(ids)]


class DeletesTheJob(Honest):
    def delete(self, ids: Sequence[Key]) -> None:
        jobs = {job for job, _ in ids}
        self.kept = {key: row for key, row in self.kept.items() if str(key)[2:3] not in jobs}


class NeverDeletes(Honest):
    def delete(self, ids: Sequence[Key]) -> None:
        pass


class RefusesTheUnknown(Honest):
    def delete(self, ids: Sequence[Key]) -> None:
        for pair in ids:
            if self.kept.pop(self.key(*pair), None) is None:
                raise TransportError("unknown")


class RefusesLargeResults(Honest):
    def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
        if any(len(payload.data) > 1 << 20 for _, _, payload in batch):
            raise TransportError("too large")
        super().put(batch, ttl)


class IsClosedOnce(Honest):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise TransportError("closed")
        self.closed = True


FOUND_BY: dict[type[Honest], str] = {
    ForgetsTheReceipt: "a_result_belongs_to_its_job_and_receipt",
    ForgetsTheJob: "a_result_belongs_to_its_job_and_receipt",
    GluesKeys: "ids_of_any_text_stay_apart",
    IgnoresCase: "ids_of_any_text_stay_apart",
    KeepsForEver: "results_end_with_their_time",
    KeepsTheFirst: "put_may_be_repeated",
    LeavesOutTheUnknown: "unknown_results_are_none_in_their_place",
    SortsAnswers: "unknown_results_are_none_in_their_place",
    LosesTheContentType: "what_is_put_comes_back",
    DeletesTheJob: "delete_drops_what_it_names_only",
    NeverDeletes: "delete_drops_what_it_names_only",
    RefusesTheUnknown: "delete_drops_what_it_names_only",
    RefusesLargeResults: "large_results_are_taken",
    IsClosedOnce: "closing_again_is_no_error",
}


@pytest.mark.parametrize("scenario", result_store_params(Honest))
def test_an_honest_store_passes(scenario: object) -> None:
    assert callable(scenario)
    scenario()


@pytest.mark.parametrize(("liar", "name"), FOUND_BY.items())
def test_a_lie_fails_the_scenario_it_breaks(liar: type[Honest], name: str) -> None:
    outcome = run_store_scenario(BY_NAME[name], liar)
    assert outcome.status == "failed"
    assert outcome.reason


def test_one_error_names_all_that_failed() -> None:
    names: list[str] = []
    with pytest.raises(NotConforming) as caught:
        result_store_conformance(ForgetsTheReceipt, report=lambda each: names.append(each.name))
    assert names == list(BY_NAME)
    assert "S1.3 a_result_belongs_to_its_job_and_receipt: the results: expected" in str(
        caught.value
    )
    assert result_store_conformance(Honest).passed == tuple(BY_NAME)


def test_a_factory_that_fails_is_a_failure_of_each_scenario() -> None:
    def factory() -> ResultStore:
        raise TransportError("no server")

    with pytest.raises(NotConforming, match="the factory raised TransportError: no server"):
        result_store_conformance(factory)
