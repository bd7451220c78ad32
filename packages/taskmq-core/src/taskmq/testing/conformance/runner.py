"""Runs the scenarios against a transport and says what passed, what was skipped and what failed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Protocol

import msgspec

from taskmq.testing.conformance.rig import Rig
from taskmq.testing.conformance.scenario import CAPABILITIES, Broken, Capability, Scenario
from taskmq.testing.conformance.themes import SCENARIOS
from taskmq.transport.contract import Transport

WATCHDOG = 30.0
"""Seconds after which a scenario counts as stuck."""

Factory = Callable[[], Transport]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one scenario; `reason` tells why it was skipped or how it failed."""

    number: str
    name: str
    requirement: str
    status: Literal["passed", "skipped", "failed"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.name}: {self.reason or self.status}"


class ConformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of every scenario, in the order of their numbers."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the scenarios that the transport passed."""
        return tuple(each.name for each in self.outcomes if each.status == "passed")

    @property
    def skipped(self) -> Mapping[str, str]:
        """Why each skipped scenario was skipped, by name."""
        return {each.name: each.reason for each in self.outcomes if each.status == "skipped"}

    @property
    def failed(self) -> Mapping[str, str]:
        """How each failed scenario failed, by name."""
        return {each.name: each.reason for each in self.outcomes if each.status == "failed"}


def transport_conformance(
    factory: Factory,
    supports: Mapping[str, bool] | None = None,
    *,
    report: Callable[[Outcome], None] | None = None,
) -> ConformanceReport:
    """Prove that a transport keeps the contract: every scenario, each on a fresh transport.

    Args:
        factory: Makes a transport on empty storage of its own each time it is called. Where its `clock` is
            a `FakeClock`, time is moved and not slept.
        supports: What the caller believes of its capabilities, by "leases", "workers", "job_listing" and
            "atomic_settle" and "rates"; it must agree with what the class declares.
        report: Called with each outcome as it comes.

    Returns:
        What passed, and what was skipped for which reason.

    Raises:
        AssertionError: Scenarios failed; it names all of them with their numbers and reasons.
    """
    outcomes: list[Outcome] = []
    for entry in (*_declarations(supports), *SCENARIOS):
        outcomes.append(run_scenario(entry, factory))
        if report is not None:
            report(outcomes[-1])
    result = ConformanceReport(outcomes=tuple(outcomes))
    failures = [each for each in outcomes if each.status == "failed"]
    if failures:
        raise NotConforming(result, failures)
    return result


class NotConforming(AssertionError):
    """A transport failed scenarios; `report` has the outcome of each."""

    def __init__(self, report: ConformanceReport, failures: list[Outcome]) -> None:
        self.report = report
        lines = "\n".join(f"  {failure}" for failure in failures)
        super().__init__(f"{len(failures)} of {len(report.outcomes)} scenarios failed:\n{lines}")


def conformance_params(
    factory: Factory,
    supports: Mapping[str, bool] | None = None,
    *,
    themes: Collection[str] | None = None,
) -> list[Any]:
    """One pytest parameter for each scenario (of these themes), to be called without arguments.

    Example:
        >>> @pytest.mark.parametrize("scenario", conformance_params(make_transport))
        ... def test_mine(scenario):
        ...     scenario()
    """
    import pytest

    def case(entry: Scenario) -> Callable[[], None]:
        def run() -> None:
            outcome = run_scenario(entry, factory)
            if outcome.status == "skipped":
                pytest.skip(outcome.reason)
            if outcome.status == "failed":
                raise AssertionError(f"{outcome}\nrequired: {entry.requirement}")

        return run

    return [
        pytest.param(case(entry), id=f"{entry.number}-{entry.name}")
        for entry in (*_declarations(supports), *SCENARIOS)
        if themes is None or entry.theme in themes
    ]


def run_scenario(entry: Scenario, factory: Factory) -> Outcome:
    """Run one scenario on a fresh transport, unless its class says that it can't hold."""
    try:
        transport = factory()
    # A factory is the caller's code: whatever it raises is a failure to be listed with the others.
    except Exception as error:  # noqa: BLE001
        return outcome_of(entry, "failed", f"the factory raised {brief(error)}")
    rig = Rig(transport, atomic=transport.supports_atomic_settle)
    reason = _why_skipped(entry, transport)
    if reason is not None:
        rig.close()
        return outcome_of(entry, "skipped", reason)
    failure = run_watched(entry, rig)
    return outcome_of(entry, "failed" if failure else "passed", failure)


class Closable(Protocol):
    """What a scenario works with."""

    def close(self) -> None:
        """Free what the scenario has used."""
        ...


def run_watched(entry: Scenario, rig: Closable) -> str:
    """Run a scenario; what it complains of, or nothing.

    On a thread of its own, so that a scenario that hangs is a failure and not a hung suite.
    """
    complaints: list[str] = []

    def run() -> None:
        try:
            entry.run(rig)
        except Broken as broken:
            complaints.append(str(broken))
        # The transport may raise anything: all of it is a failed scenario.
        except BaseException as error:  # noqa: BLE001
            complaints.append(f"raised {brief(error)}")

    thread = threading.Thread(target=run, name=f"scenario-{entry.name}", daemon=True)
    thread.start()
    thread.join(WATCHDOG)
    stuck = thread.is_alive()
    if stuck:
        complaints.append(f"had not ended after {WATCHDOG:g} s")
    try:
        rig.close()
    # As above: a transport that can't be closed has failed.
    except Exception as error:  # noqa: BLE001
        complaints.append(f"close raised {brief(error)}")
    if stuck:
        thread.join(1.0)
    return "; ".join(complaints)


def _why_skipped(entry: Scenario, transport: Transport) -> str | None:
    if entry.name in transport.limitations:
        return f"limitation: {transport.limitations[entry.name]}"
    missing = [need for need in entry.needs if not supports(transport, need)]
    if missing:
        return f"needs {', '.join(missing)}, which the transport declares it has not"
    return None


def supports(transport: Transport, capability: Capability) -> bool:
    """What the transport declares about a capability."""
    return bool(getattr(transport, f"supports_{capability}"))


def _declarations(believed: Mapping[str, bool] | None) -> tuple[Scenario, ...]:
    """The scenarios about what a transport says of itself; they can't be skipped."""

    def supports_as_believed(rig: Rig) -> None:
        for name, value in (believed or {}).items():
            if name not in CAPABILITIES:
                raise Broken(
                    f"supports names {name!r}; the capabilities are {', '.join(CAPABILITIES)}"
                )
            declared = supports(rig.transport, name)
            if declared != value:
                raise Broken(f"supports says {name}={value}, the class declares {declared}")

    def limitations_name_scenarios(rig: Rig) -> None:
        known = {entry.name for entry in SCENARIOS}
        unknown = sorted(set(rig.transport.limitations) - known)
        if unknown:
            raise Broken(f"limitations names {', '.join(unknown)}, which is no scenario's name")
        empty = sorted(name for name, why in rig.transport.limitations.items() if not why)
        if empty:
            raise Broken(f"limitations gives no reason for {', '.join(empty)}")

    return (
        Scenario(
            number="D0.1",
            name="supports_as_believed",
            requirement="What the caller believes of the capabilities agrees with what the class declares.",
            theme="declarations",
            needs=(),
            run=supports_as_believed,
        ),
        Scenario(
            number="D0.2",
            name="limitations_name_scenarios",
            requirement="Each limitation names a scenario and tells why it can't hold.",
            theme="declarations",
            needs=(),
            run=limitations_name_scenarios,
        ),
    )


def outcome_of(
    entry: Scenario, status: Literal["passed", "skipped", "failed"], reason: str
) -> Outcome:
    """What became of a scenario."""
    return Outcome(
        number=entry.number,
        name=entry.name,
        requirement=entry.requirement,
        status=status,
        reason=reason,
    )


def brief(error: BaseException) -> str:
    """An error in one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
