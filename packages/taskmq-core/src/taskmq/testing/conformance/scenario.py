"""What a scenario is, and how one says that a backend broke its promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

if TYPE_CHECKING:
    from taskmq.testing.conformance.rig import Rig

Capability = Literal["leases", "workers", "job_listing", "atomic_settle", "rates"]
"""The optional abilities of a transport, each declared by its class attribute `supports_…`."""

CAPABILITIES: tuple[Capability, ...] = (
    "leases",
    "workers",
    "job_listing",
    "atomic_settle",
    "rates",
)

T = TypeVar("T")


class Broken(AssertionError):
    """A transport did not keep what the contract promises."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of the transport contract and the function that proves it.

    `number` names the invariant it belongs to (I1 to I13) or the rule of the contract (R1 to R12), and
    `name` is what a transport's `limitations` refer to.
    """

    number: str
    name: str
    requirement: str
    theme: str
    needs: tuple[Capability, ...]
    run: Callable[[Any], None]


_catalogue: dict[str, Scenario] = {}


def scenario(
    number: str, *needs: Capability
) -> Callable[[Callable[[Rig], None]], Callable[[Rig], None]]:
    """Enter a function in the catalogue; its name is the scenario's, its docstring the requirement."""

    def enter(function: Callable[[Rig], None]) -> Callable[[Rig], None]:
        name = function.__name__
        taken = {entry.number for entry in _catalogue.values()}
        if name in _catalogue or number in taken:
            raise ValueError(f"scenario {number} {name} is in the catalogue already")
        _catalogue[name] = Scenario(
            number=number,
            name=name,
            requirement=" ".join((function.__doc__ or "").split()),
            theme=function.__module__.rpartition(".")[2],
            needs=needs,
            run=function,
        )
        return function

    return enter


def catalogue() -> tuple[Scenario, ...]:
    """Every scenario entered so far, in the order of its number."""
    return tuple(sorted(_catalogue.values(), key=_by_number))


def _by_number(entry: Scenario) -> tuple[str, int, int]:
    group, _, rest = entry.number[1:].partition(".")
    return entry.number[0], int(group), int(rest)


def check(condition: object, complaint: str) -> None:
    """Fail the scenario with this complaint unless the condition holds."""
    if not condition:
        raise Broken(complaint)


def equal(actual: T, expected: T, what: str) -> None:
    """Fail the scenario unless both values are equal."""
    if actual != expected:
        raise Broken(f"{what}: expected {_brief(expected)}, got {_brief(actual)}")


def near(actual: float | None, expected: float, what: str, *, within: float) -> None:
    """Fail the scenario unless the instant or duration is close to what it must be."""
    if actual is None or abs(actual - expected) > within:
        raise Broken(f"{what}: expected about {expected:.3f}, got {actual}")


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 240 else f"{text[:237]}..."
