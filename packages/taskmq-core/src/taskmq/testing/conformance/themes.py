"""All themes of the suite, imported so that their scenarios are in the catalogue."""

from __future__ import annotations

import importlib

from taskmq.testing.conformance.scenario import catalogue

THEMES = (
    "enqueue",
    "order",
    "leases",
    "settle",
    "fencing",
    "dead_letters",
    "keys",
    "expiry",
    "concurrency",
    "held",
    "revoke",
    "complete",
    "reopen",
    "waiting",
    "named_leases",
    "rates",
    "workers",
    "retention",
    "counts",
    "declared",
)

for _theme in THEMES:
    importlib.import_module(f"taskmq.testing.conformance.{_theme}")

SCENARIOS = catalogue()
