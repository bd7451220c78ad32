"""Random graphs, outcomes, retries, duplicates and losses: they end as a plain recursion says."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.flow_oracle import Spec, expect, graphs
from support.flow_simulator import Simulation

COMMON = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def check(specs: list[Spec], seed: int, faults: float) -> None:
    wanted = expect(specs)
    simulation = Simulation(seed, faults=faults)
    simulation.submit(specs)
    simulation.work()
    assert simulation.states() == wanted.states
    assert simulation.run_state().value == wanted.run
    assert simulation.early == []
    # A map gives its manifest to whoever can read it; everyone else gets values.
    assert {spec.name: simulation.value(spec.name) for spec in specs} == wanted.values
    attempts = Counter(name for name, _ in simulation.calls)
    if not faults:
        assert dict(attempts) == wanted.calls
        assert set(simulation.calls.values()) <= {1}, "no attempt runs twice when nothing is lost"
    else:
        # A lost delivery runs an attempt again; it never adds an attempt.
        assert dict(attempts) == wanted.calls


@COMMON
@given(specs=graphs(), seed=st.integers(0, 2**32))
def test_graphs_end_as_the_oracle_says(specs: list[Spec], seed: int) -> None:
    check(specs, seed, 0.0)


@COMMON
@given(specs=graphs(), seed=st.integers(0, 2**32))
def test_graphs_end_so_when_calls_are_lost_or_repeated(specs: list[Spec], seed: int) -> None:
    check(specs, seed, 0.15)


@pytest.mark.parametrize("faults", [0.0, 0.15])
def test_a_graph_of_hundreds_of_steps(faults: float, seed: int) -> None:
    import random

    rng = random.Random(seed)
    specs: list[Spec] = []
    for number in range(150):
        names = [spec.name for spec in specs[-20:]]
        deps = tuple(rng.sample(names, min(len(names), rng.randrange(4))))
        specs.append(
            Spec(
                f"s{number}",
                deps,
                fails=rng.choice([0] * 30 + [1, 2, -1]),
                on_failure=rng.choice(["fail", "continue", "tolerate"]),
            )
        )
    check(specs, seed, faults)
