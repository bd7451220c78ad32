"""The conformance suite of result stores (`Config(result=…)`): the same style, for four methods."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from taskmq.testing.conformance.rig import JOIN_TIMEOUT, MovableClock
from taskmq.testing.conformance.runner import (
    ConformanceReport,
    NotConforming,
    Outcome,
    brief,
    outcome_of,
    run_watched,
)
from taskmq.testing.conformance.scenario import Scenario, check, equal
from taskmq.transport.contract import ResultStore
from taskmq.transport.types import Payload

StoreFactory = Callable[[], ResultStore]

ODD_IDS = (
    "dots.in.it",
    "run::step",
    "with space",
    "quote'\"`$%",
    "{braces}*?[",
    "ünï-🚀",
    "x" * 255,
    "-",
    "a" * 26 + "\\",
)


class StoreRig:
    """A store under test and a way to let time pass."""

    def __init__(self, store: ResultStore) -> None:
        self.store = store
        clock = getattr(store, "clock", None)
        self._clock = clock if isinstance(clock, MovableClock) else None
        self.moment = 10.0 if self._clock else 0.3
        self.long = 3_000.0

    def elapse(self, seconds: float) -> None:
        """Let the store's time pass."""
        if self._clock is not None:
            self._clock.advance(seconds)
        else:
            time.sleep(seconds + 0.05)

    def put(self, job: str, receipt: str, text: str, ttl: float | None = None) -> None:
        """Put one short result."""
        self.store.put([(job, receipt, payload(text))], self.long if ttl is None else ttl)

    def text(self, job: str, receipt: str) -> str | None:
        """What is stored of one result, as text."""
        return self.texts([(job, receipt)])[0]

    def texts(self, keys: Sequence[tuple[str, str]]) -> list[str | None]:
        """What is stored of several."""
        found = self.store.get(keys)
        equal(len(found), len(keys), "how many answers")
        return [None if each is None else bytes(each.data).decode() for each in found]

    def close(self) -> None:
        """Close the store."""
        self.store.close()


_scenarios: list[Scenario] = []


def _scenario(number: str) -> Callable[[Callable[[StoreRig], None]], Callable[[StoreRig], None]]:
    def enter(function: Callable[[StoreRig], None]) -> Callable[[StoreRig], None]:
        _scenarios.append(
            Scenario(
                number=number,
                name=function.__name__,
                requirement=" ".join((function.__doc__ or "").split()),
                theme="result_stores",
                needs=(),
                run=function,
            )
        )
        return function

    return enter


def payload(text: str) -> Payload:
    """A result with this text."""
    return Payload("application/x-msgpack", text.encode())


@_scenario("S1.1")
def what_is_put_comes_back(rig: StoreRig) -> None:
    """`get` answers with the bytes and the content type that were put, whatever they are."""
    results = [
        Payload("application/x-msgpack", bytes(range(256))),
        Payload("application/json", b"{}"),
        Payload("", b""),
        Payload("text/plain; charset=utf-8", b"\x00\x00\xff"),
    ]
    rows = [(f"job-{number}", "r", result) for number, result in enumerate(results)]
    rig.store.put(rows, rig.long)
    found = rig.store.get([(job, receipt) for job, receipt, _ in rows])
    equal([_plain(each) for each in found], [_plain(each) for each in results], "the results")


@_scenario("S1.2")
def unknown_results_are_none_in_their_place(rig: StoreRig) -> None:
    """`get` answers in the order it was asked, None for what is unknown, repetitions included."""
    rig.put("a", "1", "first")
    rig.put("b", "1", "second")
    keys = [("b", "1"), ("nobody", "1"), ("a", "1"), ("a", "2"), ("b", "1")]
    equal(rig.texts(keys), ["second", None, "first", None, "second"], "the answers")


@_scenario("S1.3")
def a_result_belongs_to_its_job_and_receipt(rig: StoreRig) -> None:
    """Another receipt of the job, or that receipt of another job, is another result."""
    rig.put("a", "1", "one")
    rig.put("a", "2", "two")
    rig.put("b", "1", "three")
    equal(rig.texts([("a", "1"), ("a", "2"), ("b", "1")]), ["one", "two", "three"], "the results")
    equal(rig.text("b", "2"), None, "a pair that was never put")


@_scenario("S1.4")
def ids_of_any_text_stay_apart(rig: StoreRig) -> None:
    """Ids with dots, colons, quotes, patterns, unicode or 255 characters neither fail nor collide."""
    keys = [(job, f"t-{number}") for number, job in enumerate(ODD_IDS)]
    keys += [("t-0", "dots"), ("a:b", "c"), ("a", "b:c"), ("a.b", "c"), ("a", "c"), ("A", "c")]
    rig.store.put([(*key, payload(str(number))) for number, key in enumerate(keys)], rig.long)
    equal(rig.texts(keys), [str(number) for number in range(len(keys))], "the results")


@_scenario("S1.5")
def put_may_be_repeated(rig: StoreRig) -> None:
    """The same batch twice is as good as once; the last of several results for one pair counts."""
    rows = [("a", "1", payload("one")), ("b", "1", payload("two"))]
    rig.store.put(rows, rig.long)
    rig.store.put(rows, rig.long)
    equal(rig.texts([("a", "1"), ("b", "1")]), ["one", "two"], "after a repetition")
    rig.store.put([("c", "1", payload("first")), ("c", "1", payload("last"))], rig.long)
    equal(rig.text("c", "1"), "last", "a pair that is twice in a batch")
    rig.put("c", "1", "later")
    equal(rig.text("c", "1"), "later", "a pair that was put again")


@_scenario("S1.6")
def empty_calls_do_nothing(rig: StoreRig) -> None:
    """Nothing to put, get or delete is no error."""
    rig.store.put([], rig.long)
    equal(list(rig.store.get([])), [], "the answer to nothing")
    rig.store.delete([])


@_scenario("S1.7")
def delete_drops_what_it_names_only(rig: StoreRig) -> None:
    """`delete` removes these results, leaves the others, ignores unknown ones, and may be repeated."""
    rows = [("a", "1", payload("one")), ("a", "2", payload("two")), ("b", "1", payload("three"))]
    rig.store.put(rows, rig.long)
    for _ in range(2):
        rig.store.delete([("a", "1"), ("nobody", "1")])
    equal(rig.texts([("a", "1"), ("a", "2"), ("b", "1")]), [None, "two", "three"], "what is left")
    rig.put("a", "1", "again")
    equal(rig.text("a", "1"), "again", "what was put after its deletion")


@_scenario("S2.1")
def results_end_with_their_time(rig: StoreRig) -> None:
    """A result is gone after its `ttl`, counted from its put; others stay."""
    rig.put("short", "1", "x", ttl=rig.moment)
    rig.put("long", "1", "y")
    equal(rig.texts([("short", "1"), ("long", "1")]), ["x", "y"], "before the time is over")
    rig.elapse(2 * rig.moment)
    equal(rig.texts([("short", "1"), ("long", "1")]), [None, "y"], "after it")


@_scenario("S2.2")
def a_repeated_put_counts_its_time_anew(rig: StoreRig) -> None:
    """Putting a result again gives it the time of the last put."""
    rig.put("a", "1", "x", ttl=2 * rig.moment)
    rig.elapse(rig.moment)
    rig.put("a", "1", "x")
    rig.elapse(2 * rig.moment)
    equal(rig.text("a", "1"), "x", "after the time of the first put")


@_scenario("S2.3")
def any_time_to_live_is_taken(rig: StoreRig) -> None:
    """Fractions of a second and years are kept as they are."""
    rig.put("years", "1", "x", ttl=20 * 365 * 86_400.0)
    rig.put("fraction", "1", "y", ttl=rig.long + 0.123456789)
    equal(rig.texts([("years", "1"), ("fraction", "1")]), ["x", "y"], "the results")


@_scenario("S3.1")
def large_batches_are_taken(rig: StoreRig) -> None:
    """A batch of 500, as a worker gathers them, and 2,000 asked for at once."""
    keys = [(f"job-{number}", f"r-{number}") for number in range(2_000)]
    for at in range(0, len(keys), 500):
        batch = keys[at : at + 500]
        rig.store.put([(*key, payload(key[0])) for key in batch], rig.long)
    equal(rig.texts(keys), [job for job, _ in keys], "the results")
    rig.store.delete(keys)
    equal(rig.texts(keys[:3]), [None] * 3, "after the deletion of all")


@_scenario("S3.2")
def large_results_are_taken(rig: StoreRig) -> None:
    """A store is where results go that are too large for a job record."""
    data = bytes(range(256)) * (4 << 12)
    rig.store.put([("large", "1", Payload("x", data))], rig.long)
    (found,) = rig.store.get([("large", "1")])
    check(found is not None and bytes(found.data) == data, "4 MiB did not come back as they were")


@_scenario("S3.3")
def threads_share_a_store(rig: StoreRig) -> None:
    """Any number of threads may put, get and delete at once."""
    complaints: list[str] = []

    def work(name: str) -> None:
        try:
            for number in range(20):
                rig.put(name, str(number), f"{name}-{number}")
                if rig.text(name, str(number)) != f"{name}-{number}":
                    complaints.append(f"{name} did not find its result {number}")
                rig.store.delete([(name, str(number - 1))])
        # Whatever a store raises here is a failure of the scenario.
        except Exception as error:  # noqa: BLE001
            complaints.append(brief(error))

    threads = [threading.Thread(target=work, args=(f"job-{n}",), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_TIMEOUT)
    check(not any(thread.is_alive() for thread in threads), "threads did not come to an end")
    check(not complaints, "; ".join(complaints[:3]))


@_scenario("S3.4")
def closing_again_is_no_error(rig: StoreRig) -> None:
    """`close` may be repeated."""
    rig.put("a", "1", "x")
    rig.store.close()
    rig.store.close()


STORE_SCENARIOS = tuple(_scenarios)


def result_store_conformance(
    factory: StoreFactory, *, report: Callable[[Outcome], None] | None = None
) -> ConformanceReport:
    """Prove that a result store keeps its contract: every scenario, each on a fresh store.

    Args:
        factory: Makes a store on empty storage of its own each time it is called. Where its `clock` is a
            `FakeClock`, time is moved and not slept.
        report: Called with each outcome as it comes.

    Raises:
        AssertionError: Scenarios failed; it names all of them with their numbers and reasons.
    """
    outcomes: list[Outcome] = []
    for entry in STORE_SCENARIOS:
        outcomes.append(run_store_scenario(entry, factory))
        if report is not None:
            report(outcomes[-1])
    result = ConformanceReport(outcomes=tuple(outcomes))
    failures = [each for each in outcomes if each.status == "failed"]
    if failures:
        raise NotConforming(result, failures)
    return result


def result_store_params(factory: StoreFactory) -> list[Any]:
    """One pytest parameter for each scenario, to be called without arguments."""
    import pytest

    def case(entry: Scenario) -> Callable[[], None]:
        def run() -> None:
            outcome = run_store_scenario(entry, factory)
            if outcome.status == "failed":
                raise AssertionError(f"{outcome}\nrequired: {entry.requirement}")

        return run

    return [
        pytest.param(case(entry), id=f"{entry.number}-{entry.name}") for entry in STORE_SCENARIOS
    ]


def run_store_scenario(entry: Scenario, factory: StoreFactory) -> Outcome:
    """Run one scenario on a fresh store."""
    try:
        store = factory()
    # A factory is the caller's code: whatever it raises is a failure to be listed with the others.
    except Exception as error:  # noqa: BLE001
        return outcome_of(entry, "failed", f"the factory raised {brief(error)}")
    failure = run_watched(entry, StoreRig(store))
    return outcome_of(entry, "failed" if failure else "passed", failure)


def _plain(result: Payload | None) -> tuple[str, bytes] | None:
    return None if result is None else (result.content_type, bytes(result.data))
