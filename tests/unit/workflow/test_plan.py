"""The plan as data, what is made of it, and its pictures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from taskmq import App, Config, ConfigError, JobState
from taskmq.errors import ProtocolError
from taskmq.protocol.envelope import decode_envelope
from taskmq.transport.types import HoldRule
from taskmq.workflow import Budget, WorkflowBuilder, WorkflowPlan
from taskmq.workflow.pictures import draw
from taskmq.workflow.plan import PlanEdge, PlanStep, decode_plan, encode_plan
from taskmq.workflow.planner import evaluate, nodes, soft_steps
from taskmq.workflow.types import fits


def step(name: str, *deps: str, **fields: Any) -> PlanStep:
    return PlanStep(name=name, edges=tuple(PlanEdge(source=each) for each in deps), **fields)


def plan(*steps: PlanStep) -> WorkflowPlan:
    return WorkflowPlan(workflow="w", steps=steps)


def test_a_plan_is_plain_data_and_comes_back_as_it_went() -> None:
    made = WorkflowPlan(
        workflow="w",
        steps=(step("a", conditions=(), task="t"), step("b", "a", kind="map", items=None)),
        budget=Budget(max_cost=1.5),
        deadline=3.0,
    )
    data = encode_plan(made)
    assert decode_plan(data) == made
    assert isinstance(msgspec.msgpack.decode(data), dict), "any language reads it"


def test_a_plan_of_another_version_is_refused() -> None:
    data = msgspec.msgpack.encode({"v": 2})
    with pytest.raises(ProtocolError, match="plan of version 2"):
        decode_plan(data)
    with pytest.raises(ProtocolError, match="undecodable plan"):
        decode_plan(b"\xff")


def test_the_stored_plan_has_no_arguments() -> None:
    app = App(Config(transport="memory://", events="null"))

    @app.task(name="t")
    def t(secret: str) -> None: ...

    @app.workflow("w")
    def _w(wf: WorkflowBuilder) -> None:
        wf.step("a", t, args=("hidden",))

    run = app.submit_workflow("w")
    record = app.transport.get_jobs([run.id], envelopes=True)[0]
    assert record is not None
    assert record.envelope is not None
    assert b"hidden" not in decode_envelope(record.envelope).body


def test_every_node_names_its_successors_and_what_it_waits_for() -> None:
    graph = nodes(plan(step("a"), step("b", "a"), step("c", "a", "b")), "wf-1")
    by_id = {node.id: node for node in graph.nodes}
    assert by_id["wf-1::a"].hold is None
    assert [edge.to for edge in by_id["wf-1::a"].successors] == ["wf-1::b", "wf-1::c", "wf-1"]
    hold = by_id["wf-1::c"].hold
    assert hold is not None
    assert (hold.arrivals, hold.rule) == (2, HoldRule.ALL_OK)
    assert (graph.hold.arrivals, graph.hold.tolerate, graph.hold.otherwise) == (
        3,
        0,
        JobState.FAILED,
    )


def test_only_steps_that_can_be_skipped_softly_have_a_twin() -> None:
    made = plan(
        step("a", on_failure="continue"),
        step("b", "a"),
        step("c", "b"),
        step("t", "a", on_failure="tolerate"),
        step("u", "t"),
        step("other"),
        step("alert", "other", rule="any_failed"),
        step("always", "alert", rule="all_done"),
    )
    assert soft_steps(made) == {"b", "c", "alert"}
    assert nodes(made, "wf-1").hold.tolerate == 3


def test_evaluate_says_what_should_follow() -> None:
    made = plan(step("a"), step("b", "a"), step("c", "b"), step("d", "a"), step("e"))
    done = evaluate(made, {"a": JobState.SUCCEEDED, "b": JobState.FAILED, "d": JobState.RUNNING})
    assert done.ready == ("e",)
    assert done.skipped == ("c",)
    assert done.causes == {"c": "b"}
    assert done.failed == ("b",)
    assert done.state is JobState.RUNNING


def test_a_cause_is_the_step_that_failed_first_in_the_chain() -> None:
    made = plan(step("a"), step("b", "a"), step("c", "b"))
    found = evaluate(made, dict.fromkeys("bc", JobState.SKIPPED) | {"a": JobState.EXPIRED})
    assert found.causes == {"b": "a", "c": "a"}
    assert found.state is JobState.FAILED


DRAWN = plan(
    step('with "quotes"', task="m.task"),
    PlanStep(
        name="map",
        kind="map",
        task="m.other",
        edges=(PlanEdge(source='with "quotes"', into="items", at=("over",)),),
    ),
    step("sleep", "map", kind="sleep", seconds=5),
    step("alert", "map", rule="any_failed", task="m.alert"),
)


def test_a_mermaid_picture() -> None:
    text = draw(DRAWN)
    assert text.splitlines() == [
        "flowchart TD",
        '    s0["with &quot;quotes&quot;<br/>task"]',
        '    s1[["map<br/>other"]]',
        '    s2(["sleep<br/>5 s"])',
        '    s3["alert<br/>alert"]',
        '    s0 -->|"each"| s1',
        "    s1 -.-> s2",
        '    s1 -.->|"failed"| s3',
    ]


def test_a_dot_picture() -> None:
    text = draw(DRAWN, "dot")
    assert text.startswith('digraph "w" {')
    assert '"with \\"quotes\\"" -> "map" [label="each"];' in text
    assert '"map" -> "alert" [label="failed", style=dashed];' in text
    with pytest.raises(ConfigError, match="must be one of 'mermaid', 'dot'"):
        draw(DRAWN, "svg")


@pytest.mark.parametrize(
    ("gives", "takes", "answer"),
    [
        (int, float, True),
        (str, int, True),
        (int, str, False),
        (list[int], str, False),
        (list[int], tuple[int, ...], True),
        (list[int], list[str], False),
        (list[str], list[int], True),
        (dict[str, int], dict[str, str], False),
        (dict[str, Any], list[int], False),
        (int | None, int, True),
        (int, int | list[str], True),
        (None, int, False),
        (Any, int, True),
        (bytes, str, False),
        (str, bytes, True),
    ],
)
def test_only_what_can_never_fit_is_no_fit(gives: Any, takes: Any, answer: bool) -> None:
    assert fits(gives, takes) is answer
