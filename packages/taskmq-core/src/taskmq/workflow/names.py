"""The ids of a run's records: everything is deterministic, so that every call can be repeated."""

from __future__ import annotations

import re

from taskmq.errors import ConfigError
from taskmq.ids import new_id
from taskmq.names import check_name

RUN_TASK = "taskmq.workflow"
"""What the record of a run has as its task."""
NODE_TASK = "taskmq.workflow.node"
"""What records without a task have: collecting nodes, twins, the ledger."""
MAP_TASK = "taskmq.workflow.map"
CHILD_TASK = "taskmq.workflow.run"
SLEEP_TASK = "taskmq.workflow.sleep"
CLOSE_TASK = "taskmq.workflow.close"
SWEEP_TASK = "taskmq.workflow.sweep"

PREFIX = "wf-"
SEPARATOR = "::"
CONTROL_QUEUE = "taskmq:control"
"""Where operators' own messages go; no worker serves it."""

_RESERVED = re.compile(r"\[\d+\](~\d+)?\Z")


def new_run_id() -> str:
    """An id for a new run."""
    return PREFIX + new_id()


def step_id(run: str, step: str) -> str:
    """The job id of a step."""
    return f"{run}{SEPARATOR}{step}"


def item_id(step: str, index: int, generation: int = 1) -> str:
    """The job id of an item of the map whose own id is `step`."""
    return f"{step}[{index}]" if generation == 1 else f"{step}[{index}]~{generation}"


def child_id(step: str, generation: str = "1") -> str:
    """The id of the run that the step with this id starts."""
    return _generated(f"{step}{SEPARATOR}run", generation)


def closer_id(step: str, generation: str = "1") -> str:
    """The id of what completes the parked step with this id."""
    return _generated(f"{step}{SEPARATOR}close", generation)


def twin_id(step: str) -> str:
    """The id of the node with the opposite rule of the step with this id."""
    return f"{step}{SEPARATOR}unless"


def check_step_name(name: str) -> str:
    """Return the name if it can be part of job ids.

    Raises:
        ConfigError: It is empty, too long, or has what ids of records are made with.
    """
    check_name("step name", name, limit=120)
    if SEPARATOR in name or _RESERVED.search(name) or "+" in name:
        raise ConfigError(
            f"step name {name!r} must not contain '::' or '+', nor end like 'a[0]': "
            f"ids of items and helpers are made with these"
        )
    return name


def _generated(text: str, generation: str) -> str:
    return text if generation == "1" else f"{text}~{generation}"
