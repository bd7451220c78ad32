"""Graphs as text that draws: Mermaid and DOT, of a definition and of a run with its states. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq._internal.checks import one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskmq.workflow.plan import PlanStep, WorkflowPlan
    from taskmq.workflow.status import RunStatus, StepStatus

_MERMAID: Mapping[str, tuple[str, str]] = {
    "step": ("[", "]"),
    "map": ("[[", "]]"),
    "run": ("[/", "/]"),
    "sleep": ("([", "])"),
    "gather": ("((", "))"),
}
_SHAPES: Mapping[str, str] = {
    "step": "box",
    "map": "box3d",
    "run": "component",
    "sleep": "oval",
    "gather": "circle",
}
_COLOURS: Mapping[str, str] = {
    "SUCCEEDED": "#c8e6c9",
    "FAILED": "#ffcdd2",
    "REVOKED": "#d7ccc8",
    "EXPIRED": "#d7ccc8",
    "SKIPPED": "#eeeeee",
    "RUNNING": "#bbdefb",
    "WAITING": "#b3e5fc",
    "RETRYING": "#ffe0b2",
    "QUEUED": "#fff9c4",
    "PENDING": "#ffffff",
}


def draw(plan: WorkflowPlan, format: str = "mermaid", status: RunStatus | None = None) -> str:
    """The graph of a plan, with the states of a run if given.

    Raises:
        ConfigError: The format is neither "mermaid" nor "dot".
    """
    one_of("format", format, ("mermaid", "dot"))
    states = status.steps if status is not None else {}
    return _mermaid(plan, states) if format == "mermaid" else _dot(plan, states)


def _mermaid(plan: WorkflowPlan, states: Mapping[str, StepStatus]) -> str:
    numbers = {step.name: f"s{number}" for number, step in enumerate(plan.steps)}
    lines = ["flowchart TD"]
    used: dict[str, None] = {}
    for step in plan.steps:
        begin, end = _MERMAID[step.kind]
        label = "<br/>".join(map(_for_mermaid, _label(step, states.get(step.name))))
        state = states[step.name].state.value if step.name in states else ""
        suffix = f":::{state}" if state else ""
        if state:
            used[state] = None
        lines.append(f'    {numbers[step.name]}{begin}"{label}"{end}{suffix}')
    for source, target, text, dashed in _arrows(plan):
        arrow = "-.->" if dashed else "-->"
        label = f'|"{_for_mermaid(text)}"|' if text else ""
        lines.append(f"    {numbers[source]} {arrow}{label} {numbers[target]}")
    lines += [f"    classDef {state} fill:{_COLOURS[state]},stroke:#555" for state in used]
    return "\n".join(lines) + "\n"


def _dot(plan: WorkflowPlan, states: Mapping[str, StepStatus]) -> str:
    lines = [f"digraph {_quoted(plan.workflow or 'workflow')} {{", "    rankdir=TB;"]
    for step in plan.steps:
        status = states.get(step.name)
        label = "\\n".join(_for_dot(each) for each in _label(step, status))
        colour = _COLOURS[status.state.value] if status else "#ffffff"
        lines.append(
            f'    {_quoted(step.name)} [label="{label}", shape={_SHAPES[step.kind]}, style=filled, '
            f'fillcolor="{colour}"];'
        )
    for source, target, text, dashed in _arrows(plan):
        style = ", style=dashed" if dashed else ""
        lines.append(
            f'    {_quoted(source)} -> {_quoted(target)} [label="{_for_dot(text)}"{style}];'
        )
    return "\n".join([*lines, "}"]) + "\n"


def _label(step: PlanStep, status: StepStatus | None) -> list[str]:
    lines = [step.name]
    if status is not None:
        text = status.state.value
        if status.attempt > 1:
            text += f", attempt {status.attempt}"
        if status.items:
            text += f", {sum(status.items.values())} items"
        lines.append(text)
    elif step.kind == "sleep":
        lines.append(f"{step.seconds:g} s")
    elif step.task or step.workflow:
        lines.append((step.task or step.workflow).rpartition(".")[2])
    return lines


def _arrows(plan: WorkflowPlan) -> list[tuple[str, str, str, bool]]:
    """Source, target, label, dashed: one arrow between two steps, dashed where it carries no value."""
    found: dict[tuple[str, str], tuple[list[str], bool]] = {}

    def add(source: str, target: str, text: str, dashed: bool) -> None:
        texts, was = found.get((source, target), ([], True))
        found[source, target] = (
            [*texts, text] if text and text not in texts else texts,
            dashed and was,
        )

    for step in plan.steps:
        for edge in step.edges:
            names: list[Any] = [] if edge.into is None else [edge.into]
            text = ".".join(map(str, edge.path)) or ("" if not names else str(names[0]))
            if edge.at == ("over",):
                text = "each"
            if step.rule == "any_failed":
                text = "failed"
            add(
                edge.source,
                step.name,
                text if not isinstance(edge.into, int) else "",
                edge.into is None,
            )
        for condition in step.conditions:
            path = ".".join(map(str, condition.path))
            add(condition.source, step.name, ("not " if condition.negate else "if ") + path, True)
    return [(*pair, ", ".join(texts), dashed) for pair, (texts, dashed) in found.items()]


def _for_mermaid(text: str) -> str:
    for bad, good in (
        ("&", "&amp;"),
        ('"', "&quot;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("#", "&#35;"),
    ):
        text = text.replace(bad, good)
    return text


def _for_dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_for_dot(text)}"'
