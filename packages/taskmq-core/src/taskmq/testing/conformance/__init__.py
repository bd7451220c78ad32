"""The conformance suites of transports and result stores, for built-in backends and everybody else's.

Each scenario is a plain function in one of the theme modules; its docstring is the promise it proves.
"""

from __future__ import annotations

from taskmq.testing.conformance.result_stores import (
    STORE_SCENARIOS,
    result_store_conformance,
    result_store_params,
    run_store_scenario,
)
from taskmq.testing.conformance.runner import (
    ConformanceReport,
    NotConforming,
    Outcome,
    conformance_params,
    run_scenario,
    transport_conformance,
)
from taskmq.testing.conformance.scenario import Scenario
from taskmq.testing.conformance.themes import SCENARIOS

__all__ = [
    "SCENARIOS",
    "STORE_SCENARIOS",
    "ConformanceReport",
    "NotConforming",
    "Outcome",
    "Scenario",
    "conformance_params",
    "result_store_conformance",
    "result_store_params",
    "run_scenario",
    "run_store_scenario",
    "transport_conformance",
]
