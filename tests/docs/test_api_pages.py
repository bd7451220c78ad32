"""The pages about tasks, states and events name all that there is, with the defaults it has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from taskmq import JobState, Retry, TaskContext
from taskmq.errors import REASONS
from taskmq.event_types import EVENT_TYPES
from taskmq.policy import FIELDS
from taskmq.submit import OPTIONS
from taskmq.transport.types import ErrorInfo

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = [
    path
    for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
    if "testing" not in path.parts and path.name not in ("event_types.py", "sinks.py")
]


def rows(page: str) -> dict[str, list[str]]:
    """The cells after the names in the first column of all tables of a page."""
    found: dict[str, list[str]] = {}
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            first, *others = line.strip("|").split(" | ")
            for name in re.findall(r"`(\w+)[`(]", first):
                found[name] = [cell.strip() for cell in others]
    return found


def test_every_policy_field_is_explained() -> None:
    assert set(FIELDS) - rows("how-to/write-tasks.md").keys() == set()


def test_every_field_of_retry_is_explained_with_its_default() -> None:
    told, defaults = rows("how-to/write-tasks.md"), Retry()
    for name in Retry.__struct_fields__:
        cell = told[name][0].strip("`").replace("'", '"')
        value = getattr(defaults, name)
        if value is None:
            assert cell == "none", name
        elif name == "retry_on":
            assert cell == "(Exception,)"
        else:
            assert ast.literal_eval(cell) == value, name


def test_everything_public_of_the_context_is_explained() -> None:
    text = (DOCS / "how-to/write-tasks.md").read_text(encoding="utf-8")
    internal = {
        "add_hook_error",
        "holds_a_slot",
        "joined",
        "nested",
        "published",
        "receipt",
        "reserved_at",
        "start_timeout",
        "unsaved_meta",
    }
    public = {name for name in vars(TaskContext) if not name.startswith("_")} - internal
    assert {name for name in public if not re.search(rf"`(?:ctx\.)?{name}\b", text)} == set()


def test_every_option_of_a_call_is_explained() -> None:
    assert OPTIONS - rows("how-to/call-tasks.md").keys() == set()


@pytest.mark.parametrize("state", JobState)
def test_every_state_is_explained_and_drawn(state: JobState) -> None:
    assert rows("reference/states.md")[state.value][0] == ("yes" if state.is_final else "no")
    text = (DOCS / "reference/states.md").read_text(encoding="utf-8")
    assert re.search(rf"--> {state}:", text)


def test_every_reason_is_explained() -> None:
    named = set(re.findall(r'"([^"]+)"', " ".join((ErrorInfo.__doc__ or "").split())))
    # "max yields" answers a worker and ends no job; "not found" is said by handles alone.
    assert named - {"max yields"} == REASONS.keys() - {"not found"}


def test_the_declared_events_are_those_that_the_code_emits() -> None:
    emitted: set[str] = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                emitted |= set(
                    re.findall(r"\A(?:task|transport|beat|queue|workflow)\.[a-z_]+\Z", node.value)
                )
        emitted |= {f"worker.{name}" for name in re.findall(r'reports\.worker\(\s*"(\w+)"', text)}
    assert emitted == EVENT_TYPES.keys()
