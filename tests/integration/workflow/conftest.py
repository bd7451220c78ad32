from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.backends import ALL, Backends
from support.flows import BACKENDS, Flows

EVERYWHERE = {
    "test_faults",
    "test_a_graph_is_one_call",
    "test_a_join_gains_a_dependency_before_it_starts",
    "test_a_join_gets_a_list_in_declared_order",
    "test_a_parked_step_waits_and_its_result_goes_on",
    "test_a_step_that_fails_once_is_retried_and_the_run_goes_on",
    "test_cancel_ends_every_level",
    "test_deduplication_does_not_swallow_a_retried_step",
    "test_results_come_in_item_order",
    "test_retry_failed_of_a_map_runs_failed_items_only",
    "test_waiting_for_a_run_inside_a_task_is_refused",
}
"""Modules and tests that run on the backends with a server too: what the contract's suite can't show."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Say where each test of workflows runs."""
    if "flows" in metafunc.fixturenames:
        names = {metafunc.definition.path.stem, metafunc.function.__name__}
        everywhere = not EVERYWHERE.isdisjoint(names)
        metafunc.parametrize("flows", ALL if everywhere else BACKENDS, indirect=True)


@pytest.fixture
def flows(request: pytest.FixtureRequest, backends: Backends, tmp_path: Path) -> Iterator[Flows]:
    """An app with tasks for workflows, on each backend."""
    made = Flows(backends.url(request.param, tmp_path))
    yield made
    made.close()
