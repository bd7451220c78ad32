"""Random graphs, and what they must come to: computed by recursion, without anything of the planner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Spec:
    """One step of a random graph. `fails` is how many attempts fail, -1 for all."""

    name: str
    deps: tuple[str, ...] = ()
    rule: str = "all_ok"
    on_failure: str = "fail"
    fails: int = 0
    kind: str = "step"
    when: str = ""
    flag: bool = True
    items: tuple[int, ...] = ()
    """Of a map: how many attempts of each item fail."""
    tolerate: int = 0


ATTEMPTS = 3
"""How often a step is tried."""
DEFAULT = "default"


@dataclass
class Expected:
    """What must come of a graph."""

    states: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    run: str = "SUCCEEDED"


def expect(specs: list[Spec]) -> Expected:
    """The plain oracle."""
    by_name = {spec.name: spec for spec in specs}
    found = Expected()
    skipped_softly: set[str] = set()

    def passes(source: str, spec: Spec) -> bool:
        end(by_name[source])
        if found.states[source] == "SUCCEEDED" or source in skipped_softly:
            return True
        return by_name[source].on_failure == "tolerate" and spec.rule == "all_ok"

    def end(spec: Spec) -> None:
        if spec.name in found.states:
            return
        sources: dict[str, None] = dict.fromkeys(
            [*spec.deps, spec.when] if spec.when else spec.deps
        )
        passed = [passes(source, spec) for source in sources]
        if (spec.rule == "all_ok" and not all(passed)) or (
            spec.rule == "any_failed" and all(passed)
        ):
            found.states[spec.name] = "SKIPPED"
        elif spec.when and not value(spec.when):
            found.states[spec.name] = "SKIPPED"
            skipped_softly.add(spec.name)
        elif spec.kind == "map":
            run_map(spec)
        elif spec.kind == "gather":
            found.states[spec.name] = "SUCCEEDED"
        else:
            run_step(spec)
        found.values[spec.name] = value_of(spec)

    def run_step(spec: Spec) -> None:
        good = 0 <= spec.fails < ATTEMPTS
        found.calls[spec.name] = spec.fails + 1 if good else ATTEMPTS
        found.states[spec.name] = "SUCCEEDED" if good else "FAILED"

    def run_map(spec: Spec) -> None:
        bad = 0
        for index, fails in enumerate(spec.items):
            good = 0 <= fails < ATTEMPTS
            bad += not good
            found.calls[f"{spec.name}[{index}]"] = fails + 1 if good else ATTEMPTS
        found.states[spec.name] = "FAILED" if bad > spec.tolerate else "SUCCEEDED"

    def value(name: str) -> Any:
        end(by_name[name])
        return found.values[name]

    def value_of(spec: Spec) -> Any:
        if found.states[spec.name] != "SUCCEEDED":
            return DEFAULT
        if spec.kind == "gather":
            return [value(each) for each in spec.deps]
        if spec.kind == "map":
            return [
                f"{spec.name}[{index}]" if 0 <= fails < ATTEMPTS else DEFAULT
                for index, fails in enumerate(spec.items)
            ]
        # What runs at the first failure may run before the others have given their values.
        deps = () if spec.rule == "any_failed" else spec.deps
        return [spec.name, *(value(each) for each in deps)] if spec.flag else []

    for spec in specs:
        end(spec)
    for spec in specs:
        if found.states[spec.name] == "FAILED" and spec.on_failure == "fail":
            found.run = "FAILED"
    return found


@st.composite
def graphs(draw: st.DrawFn, size: int = 8) -> list[Spec]:
    """A random graph whose steps stand after what they depend on."""
    count = draw(st.integers(1, size))
    specs: list[Spec] = []
    fails = st.sampled_from([0, 0, 0, 0, 1, 2, -1])
    for number in range(count):
        names = [spec.name for spec in specs]
        deps = tuple(
            draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else ()
        )
        kind = (
            draw(st.sampled_from(["step", "step", "step", "map", "gather"]))
            if deps
            else (draw(st.sampled_from(["step", "step", "map"])))
        )
        rules = ["all_ok", "all_ok", "all_ok", "all_done", "any_failed"]
        rule = draw(st.sampled_from(rules)) if deps and kind == "step" else "all_ok"
        whens = [spec.name for spec in specs if spec.kind == "step"]
        when = ""
        if rule == "all_ok" and kind == "step" and whens:
            when = draw(st.sampled_from(["", "", *whens]))
        specs.append(
            Spec(
                name=f"s{number}",
                deps=deps,
                rule=rule,
                on_failure="fail"
                if kind == "gather"
                else draw(st.sampled_from(["fail", "fail", "continue", "tolerate"])),
                fails=draw(fails) if kind == "step" else 0,
                kind=kind,
                when=when,
                flag=draw(st.booleans()),
                items=tuple(draw(st.lists(fails, max_size=4))) if kind == "map" else (),
                tolerate=draw(st.integers(0, 2)) if kind == "map" else 0,
            )
        )
    return specs
