"""What is refused at submit, and what the message says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from taskmq import App, Config, ConfigError, MessageTooLarge
from taskmq.errors import EncodeError
from taskmq.workflow import Budget, WorkflowBuilder

Build = Callable[[Any], Any]
"""Takes the builder; untyped, since type checkers would refuse most of these graphs."""


@dataclasses.dataclass
class Film:
    name: str


@pytest.fixture
def app() -> App:
    made = App(Config(transport="memory://", events="null"))

    @made.task(name="text")
    def text() -> str:
        return ""

    @made.task(name="numbers")
    def numbers() -> list[int]:
        return []

    @made.task(name="film")
    def film() -> Film:
        return Film("")

    @made.task(name="anything")
    def anything(value: Any = None, other: Any = None) -> Any: ...

    @made.task(name="number")
    def number(n: int) -> int:
        return n

    @made.task(name="names")
    def names(names: list[str]) -> None: ...

    @made.task(name="when")
    def when(at: datetime) -> None: ...

    @made.task(name="takes film")
    def takes_film(film: Film) -> None: ...

    return made


def submit(app: App, build: Build, **options: Any) -> None:
    app.workflows.pop("w", None)

    @app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return build(wf)

    app.submit_workflow("w", {}, **options)


def refused(app: App, build: Build, match: str, error: type[Exception] = ConfigError) -> None:
    with pytest.raises(error, match=match):
        submit(app, build)
    assert not app.transport.list_jobs(limit=10).jobs, "nothing was submitted"


FAULTS: dict[str, tuple[Build, str]] = {
    "empty": (lambda wf: None, "'w' has no steps"),
    "duplicate": (
        lambda wf: (wf.step("a", "anything"), wf.step("a", "anything")),
        "two steps have the name 'a'",
    ),
    "unknown": (
        lambda wf: (wf.step("a", "anything", deps={"value": "clena"}), wf.step("clean", "text"))[0],
        "step 'a' depends on 'clena', which is no step of this graph",
    ),
    "self": (lambda wf: wf.step("a", "anything", deps={"value": "a"}), "'a' depends on itself"),
    "cycle": (
        lambda wf: (
            wf.step("a", "anything", deps={"value": "c"}),
            wf.step("b", "anything", deps={"value": "a"}),
            wf.step("c", "anything", deps={"value": "b"}),
        ),
        "in a circle: a -> b -> c -> a",
    ),
    "clash": (
        lambda wf: wf.step("a", "anything", kwargs={"value": 1}, deps={"value": "b"}),
        "step 'a': 'value' is given both as an argument and by a dependency",
    ),
    "positional clash": (
        lambda wf: wf.step("a", "anything", args=(1,), deps={"value": "b"}),
        "step 'a': .*multiple values|step 'a': ",
    ),
    "parameter": (
        lambda wf: wf.step("a", "number", deps={"m": "b"}),
        "step 'a': .*number.*unknown argument 'm'",
    ),
    "missing": (lambda wf: wf.step("a", "number"), "step 'a': .*missing a required argument: 'n'"),
    "no step": (lambda wf: wf.step("a", "anything", deps={"value": 5}), "5, which is no step"),
    "condition as dep": (
        lambda wf: wf.step("b", "anything", deps={"value": wf.when(wf.step("a", "text"))}),
        "step 'b' depends on a condition: pass it as when=",
    ),
    "sink": (lambda wf: (wf.step("a", "text"), 5)[1], "'w' returns 5: return a step"),
    "field as sink": (lambda wf: wf.step("a", "film")["name"], "returns a field of step 'a'"),
    "option": (lambda wf: wf.step("a", "text", prio=3), "has no option 'prio'.*priority"),
    "mode": (lambda wf: wf.step("a", "text", on_failure="stop"), "on_failure of step 'a' must be"),
    "rule": (lambda wf: wf.step("a", "text", rule="any"), "rule of step 'a' must be one of"),
    "rule alone": (
        lambda wf: wf.step("a", "text", rule="any_failed"),
        "'a' has the rule 'any_failed' and depends on nothing",
    ),
    "name": (lambda wf: wf.step("a::b", "text"), "must not contain '::'"),
    "item name": (lambda wf: wf.step("a[0]", "text"), r"end like 'a\[0\]'"),
    "priority": (lambda wf: wf.step("a", "text", priority=10), "priority of step 'a'"),
    "map of both": (lambda wf: wf.map("m", "text", workflow="w", over=[]), "one of the two"),
    "map over text": (lambda wf: wf.map("m", "number", over="abc"), "is a step or a list"),
    "map tolerate": (lambda wf: wf.map("m", "number", over=[1], tolerate=-1), "tolerate of map"),
    "map concurrency": (
        lambda wf: wf.map("m", "number", over=[1], max_concurrency=0), "max_concurrency of map 'm'",
    ),
    "sleep": (lambda wf: wf.sleep("s", -1), "sleep 's'"),
    "function": (lambda wf: wf.step("a", print), "needs a task of the app.*@app.task"),
    "gather": (lambda wf: wf.gather("g", []), "'g' gathers nothing"),
    "same id": (
        lambda wf: (wf.step("a", "text", id="x"), wf.step("b", "text", id="x")),
        "steps 'a' and 'b' have the same id 'x'",
    ),
    "types": (
        lambda wf: wf.step("b", "number", deps={"n": wf.step("a", "numbers")}),
        r"step 'a' gives list\[int\], step 'b' takes int",
    ),
    "types of a join": (
        lambda wf: wf.join("b", "names", [wf.step("a", "numbers")], "names"),
        r"step 'a' gives list\[int\], step 'b' takes str",
    ),
    "types of a map": (
        lambda wf: wf.map("m", "number", over=wf.step("a", "text")),
        "map 'm' needs a list, step 'a' gives str",
    ),
    "types of items": (
        lambda wf: wf.map("m", "takes film", over=wf.step("a", "numbers"), arg="film"),
        "step 'a' gives int, step 'm' takes Film",
    ),
    "types after a map": (
        lambda wf: wf.step("b", "number", deps={"n": wf.map("m", "number", over=[1])}),
        r"step 'm' gives list\[int\], step 'b' takes int",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_names_the_step_and_what_to_do(app: App, fault: str) -> None:
    build, match = FAULTS[fault]
    refused(app, build, match)


GOOD: dict[str, Build] = {
    "text for a date": lambda wf: wf.step("b", "when", deps={"at": wf.step("a", "text")}),
    "a field of anything": lambda wf: wf.step("b", "number", deps={"n": wf.step("a", "film")["x"]}),
    "a dataclass": lambda wf: wf.step("b", "takes film", deps={"film": wf.step("a", "film")}),
    "unknown types": lambda wf: wf.step("b", "number", deps={"n": wf.step("a", "anything")}),
    "a join": lambda wf: wf.join("b", "names", [wf.step("a", "text")], "names"),
    "a map": lambda wf: wf.map("m", "number", over=wf.step("a", "numbers")),
    "a tolerated step": lambda wf: wf.step(
        "b", "number", deps={"n": wf.step("a", "text", on_failure="tolerate", default=1)}
    ),
    "code elsewhere": lambda wf: wf.step("b", "not here", deps={"x": wf.step("a", "text")}),
    "a name with spaces and braces": lambda wf: wf.step("a {b} ü:c", "text"),
}


@pytest.mark.parametrize("graph", GOOD)
def test_what_may_fit_is_let_through(app: App, graph: str) -> None:
    submit(app, GOOD[graph])


def test_what_can_not_travel_is_refused_with_the_step_named(app: App) -> None:
    refused(app, lambda wf: wf.step("a", "anything", args=(object(),)), "step 'a'", EncodeError)
    refused(
        app, lambda wf: wf.step("a", "anything", args=("x" * 300_000,)), "bytes", MessageTooLarge
    )


def test_a_step_of_another_graph_is_refused(app: App) -> None:
    kept: list[Any] = []
    submit(app, lambda wf: kept.append(wf.step("a", "text")))
    app.workflows.clear()
    before = len(app.transport.list_jobs(limit=10).jobs)
    with pytest.raises(ConfigError, match="'b' depends on 'a', which is of another graph"):
        submit(app, lambda wf: wf.step("b", "anything", deps={"value": kept[0]}))
    assert len(app.transport.list_jobs(limit=10).jobs) == before


def test_results_can_not_be_used_while_the_graph_is_declared(app: App) -> None:
    refused(app, lambda wf: [*wf.step("a", "numbers")], "use wf.map", TypeError)
    refused(app, lambda wf: bool(wf.step("c", "text")), "use wf.when", TypeError)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"deadline": 0}, "deadline of workflow 'w'"),
        ({"budget": 5}, "budget of workflow 'w' is a Budget"),
        ({"budget": Budget(max_attempts=0)}, "Budget.max_attempts"),
        ({"run_id": "mine"}, "begins with 'wf-'"),
        ({"que": "x"}, "has no option 'que'"),
        ({"priority": 11}, "priority"),
    ],
)
def test_options_of_a_submission_are_checked(app: App, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        submit(app, lambda wf: wf.step("a", "text"), **options)


def test_parameters_are_bound_and_converted(app: App) -> None:
    seen: list[Any] = []

    @app.workflow("dated")
    def _dated(wf: WorkflowBuilder, at: datetime, count: int = 2) -> Any:
        seen.append((at, count))
        return wf.step("a", "text")

    app.submit_workflow("dated", {"at": "2026-01-02T03:04:05Z"})
    assert seen[0][0].year == 2026
    with pytest.raises(TypeError, match="workflow 'dated': .*missing a required argument: 'at'"):
        app.submit_workflow("dated")
    with pytest.raises(TypeError, match="unknown argument 'att'"):
        app.submit_workflow("dated", {"att": 1})
    with pytest.raises(ConfigError, match="no workflow 'datde'.*did you mean 'dated'"):
        app.submit_workflow("datde")


def test_two_workflows_can_not_have_one_name(app: App) -> None:
    submit(app, lambda wf: wf.step("a", "text"))
    with pytest.raises(ConfigError, match="two workflows have the name 'w'"):
        app.workflow("w")(lambda wf: None)
    with pytest.raises(ConfigError, match="with parentheses"):
        app.workflow(lambda wf: None)  # type: ignore[arg-type]
