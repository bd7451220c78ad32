"""What a step's arguments are filled with when it starts: the values of what it depends on.

Values stay on the records of their steps. A step's envelope names its sources; the worker fetches
them in as few round trips as there are kinds of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union, cast

import msgspec

from taskmq._internal.guards import is_dict, is_list
from taskmq.errors import ArgumentError, ProtocolError, TaskError
from taskmq.states import JobState
from taskmq.transport.types import Payload
from taskmq.workflow.names import MAP_TASK, NODE_TASK, item_id
from taskmq.workflow.plan import Path, WorkflowPlan, decode_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taskmq.app import App
    from taskmq.transport.types import JobRecord
    from taskmq.workflow.plan import PlanStep

FETCH = 500
"""How many records are asked for at once."""
SKIPPED = "skipped"
"""The reason on the record of a step that was settled without being run."""


class Source(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One edge, as a step's envelope carries it; see `PlanEdge`.

    `ref` is a job id, or "::" and the name of a step of the run.
    """

    ref: str
    into: Union[str, int, None] = None
    path: Path = ()
    at: Path = ()
    collect: bool = False
    errors: bool = False
    default: Union[Payload, None] = None


class Condition(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A condition, as a step's envelope carries it."""

    ref: str
    path: Path = ()
    negate: bool = False
    default: Union[Payload, None] = None


class Inputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a step's further arguments come from, and what decides whether it runs."""

    run: str
    root: str
    sources: tuple[Source, ...] = ()
    conditions: tuple[Condition, ...] = ()
    default: Union[Payload, None] = None
    """The step's own, its result when a condition does not hold."""
    budget: bool = False
    open: bool = False
    from_plan: str = ""
    """The step's name, when its sources are too many to travel and are read from the plan."""


class Filled(msgspec.Struct, frozen=True):
    """The arguments of a step. `skip` is why it is not to be run, "" when it is."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    generation: int = 1
    skip: str = ""


class MapResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the record of a map has as its result: where the items' results are, not the results."""

    count: int
    generation: int = 1
    failed: tuple[int, ...] = ()
    default: Union[Payload, None] = None


def decode_inputs(data: bytes) -> Inputs:
    """Read what `encode_inputs` wrote.

    Raises:
        ProtocolError: It is nothing of the kind.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"undecodable inputs of a step: {error}") from error


def encode_inputs(inputs: Inputs) -> bytes:
    """Encode a step's inputs for its envelope."""
    return _encoder.encode(inputs)


def sources_of(step: PlanStep, by_name: Mapping[str, PlanStep]) -> tuple[Source, ...]:
    """The sources of a step, in the order of its edges."""
    found: list[Source] = []
    for edge in step.edges:
        origin = by_name[edge.source]
        is_list_edge = step.kind == "map" and edge.at == ("over",)
        found.append(
            Source(
                ref=origin.id or f"::{origin.name}",
                into=edge.into,
                path=edge.path,
                at=() if is_list_edge else edge.at,
                collect=edge.collect,
                errors=edge.errors,
                default=origin.default,
            )
        )
    return tuple(found)


def is_skipped(record: JobRecord) -> bool:
    """Whether a record that SUCCEEDED is of a step that was skipped by a condition or an operator."""
    return (
        record.state is JobState.SUCCEEDED
        and record.error is not None
        and record.error.reason == SKIPPED
    )


class Values:
    """Fetches records and the values on them, each record once."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._records: dict[str, JobRecord | None] = {}
        self._plans: dict[str, WorkflowPlan] = {}

    def fetch(self, ids: Iterable[str]) -> None:
        """Fetch those of these records that are not here yet."""
        missing = [each for each in dict.fromkeys(ids) if each not in self._records]
        for start in range(0, len(missing), FETCH):
            chunk = missing[start : start + FETCH]
            self._records.update(zip(chunk, self._app.transport.get_jobs(chunk), strict=True))

    def record(self, job_id: str) -> JobRecord:
        """A record that has to be there.

        Raises:
            TaskError: It is not: its run's records were pruned or never complete.
        """
        self.fetch([job_id])
        record = self._records[job_id]
        if record is None:
            raise _gone(job_id)
        return record

    def value(self, job_id: str, default: Payload | None = None) -> Any:
        """The value of a step that has ended; the default's where it gave none."""
        record = self.record(job_id)
        if record.state is not JobState.SUCCEEDED:
            # A node too: it is given up at the first failure, when the others may not have ended yet.
            return self._decode(default)
        if is_skipped(record):
            return self._decode(record.result)
        if record.task == NODE_TASK and record.hold is not None and record.step is not None:
            return self._gathered(record)
        if record.task == MAP_TASK:
            return self._items(record)
        return self._decode(record.result)

    def plan(self, run: str) -> WorkflowPlan:
        """The plan of a run."""
        plan = self._plans.get(run)
        if plan is None:
            plan = self._plans[run] = load_plan(self._app, run)
        return plan

    def _items(self, record: JobRecord) -> list[Any]:
        if record.result is None:
            return []
        shape = decode_map_result(record.result.data)
        ids = [item_id(record.id, index, shape.generation) for index in range(shape.count)]
        missing = self._decode(shape.default)
        decode, succeeded = self._app.codecs.decode_value, JobState.SUCCEEDED
        values: list[Any] = []
        for start in range(0, len(ids), FETCH):
            chunk = ids[start : start + FETCH]
            found = self._app.transport.get_results(chunk)
            for job_id, item in zip(chunk, found, strict=True):
                if item is None:
                    raise _gone(job_id)
                if item.state is not succeeded:
                    values.append(missing)
                else:
                    values.append(None if item.result is None else decode(item.result))
        return values

    def _gathered(self, record: JobRecord) -> list[Any]:
        run = record.id[: -len(f"::{record.step}")]
        plan = self.plan(run)
        by_name = {step.name: step for step in plan.steps}
        step = by_name[record.step or ""]
        sources = [each for each in sources_of(step, by_name) if each.collect]
        ids = [_absolute(each.ref, run) for each in sources]
        self.fetch(ids)
        return [
            pick(self.value(job_id, each.default), each.path, each.ref)
            for job_id, each in zip(ids, sources, strict=True)
        ]

    def _decode(self, payload: Payload | None) -> Any:
        return None if payload is None else self._app.codecs.decode_value(payload)


def decode_map_result(data: bytes) -> MapResult:
    """Read the result of a map's record."""
    return _map_decoder.decode(data)


def encode_map_result(result: MapResult) -> Payload:
    """Encode the result of a map's record."""
    return Payload("application/msgpack", _encoder.encode(result))


def fill(
    app: App, inputs: Inputs, args: tuple[Any, ...], kwargs: dict[str, Any], step_id: str
) -> Filled:
    """Fill in what a step's dependencies give.

    Raises:
        ArgumentError: A value has not the field that an edge names.
        TaskError: A record is gone.
        TransportUnavailable: The backend is away.
    """
    values = Values(app)
    sources = inputs.sources
    if inputs.from_plan:
        by_name = {step.name: step for step in values.plan(inputs.run).steps}
        sources = sources_of(by_name[inputs.from_plan], by_name)
    run = inputs.run
    refs = [each.ref for each in inputs.conditions] + [each.ref for each in sources]
    values.fetch(_absolute(ref, run) for ref in refs)
    generation = 1
    for job_id in dict.fromkeys(_absolute(each.ref, run) for each in sources):
        generation += values.record(job_id).series - 1
    for condition in inputs.conditions:
        job_id = _absolute(condition.ref, run)
        if not _holds(values.value(job_id, condition.default), condition):
            opposite = "true" if condition.negate else "false"
            name = job_id.rpartition("::")[2]
            return Filled(args, kwargs, generation, f"the condition on step {name!r} is {opposite}")
    positional = list(args)
    for source in sources:
        job_id = _absolute(source.ref, run)
        if source.into is None:
            continue
        if source.errors:
            _append(kwargs, source.into, _errors(values.record(job_id)))
            continue
        value = pick(values.value(job_id, source.default), source.path, source.ref)
        if source.collect:
            _collect(positional, kwargs, source.into, value)
        else:
            _place(positional, kwargs, source, value)
    if inputs.open:
        _add_joined(app, values, sources, positional, kwargs, step_id)
    return Filled(tuple(positional), kwargs, generation)


def pick(value: Any, path: Sequence[str | int], ref: str) -> Any:
    """The part of a value at a path.

    Raises:
        ArgumentError: There is none.
    """
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError) as error:
            name = ref.rpartition("::")[2]
            raise ArgumentError(
                f"the result of step {name!r} has no {key!r} ({type(error).__name__}: {error})",
                path=".".join(map(str, path)),
            ) from error
    return value


def load_plan(app: App, run: str) -> WorkflowPlan:
    """The plan of a run from its record.

    Raises:
        TaskError: There is no such run.
    """
    from taskmq.protocol.envelope import decode_envelope

    record = app.transport.get_jobs([run], envelopes=True)[0]
    if record is None or record.envelope is None:
        raise TaskError(f"there is no run {run} (any more)")
    return decode_plan(decode_envelope(record.envelope).body)


def _gone(job_id: str) -> TaskError:
    return TaskError(f"the record of {job_id} is gone, and with it a value that is needed")


def _absolute(ref: str, run: str) -> str:
    return run + ref if ref.startswith("::") else ref


def _holds(value: Any, condition: Condition) -> bool:
    try:
        found = pick(value, condition.path, condition.ref)
    except ArgumentError:
        # What is not there is not true: results that lack a flag are common.
        found = None
    return bool(found) is not condition.negate


def _place(positional: list[Any], kwargs: dict[str, Any], source: Source, value: Any) -> None:
    into = source.into
    if isinstance(into, int):
        positional.extend([None] * (into + 1 - len(positional)))
        positional[into] = value
    elif not source.at:
        kwargs[cast("str", into)] = value
    else:
        place = kwargs.setdefault(cast("str", into), {})
        for key in source.at[:-1]:
            place = place.setdefault(key, {}) if is_dict(place) else place
        if not is_dict(place):
            raise ArgumentError("a value can be placed in a dict only", path=str(into))
        place[source.at[-1]] = value


def _collect(positional: list[Any], kwargs: dict[str, Any], into: str | int, value: Any) -> None:
    if isinstance(into, str):
        _append(kwargs, into, [value])
        return
    positional.extend([] for _ in range(into + 1 - len(positional)))
    positional[into].append(value)


def _append(kwargs: dict[str, Any], into: str | int, values: list[Any]) -> None:
    listed = kwargs.setdefault(str(into), [])
    if is_list(listed):
        listed.extend(values)


def _errors(record: JobRecord) -> list[Any]:
    if record.state is JobState.SUCCEEDED or not record.state.is_final:
        return []
    error = record.error
    return [
        {
            "step": record.step or record.id,
            "state": record.state.value,
            "type": error.type if error else "",
            "message": error.message if error else "",
            "reason": error.reason if error else record.reason,
        }
    ]


def _add_joined(
    app: App,
    values: Values,
    sources: Sequence[Source],
    positional: list[Any],
    kwargs: dict[str, Any],
    step_id: str,
) -> None:
    """Append the values of what was added to an open join while it waited."""
    into = next((each.into for each in sources if each.collect), None)
    if into is None:
        return
    cursor: str | None = None
    while True:
        page = app.transport.list_jobs(prefix=f"{step_id}+", limit=FETCH, cursor=cursor)
        for record in page.jobs:
            _collect(positional, kwargs, into, values.value(record.id))
        cursor = page.cursor
        if cursor is None:
            return


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Inputs)
_map_decoder = msgspec.msgpack.Decoder(MapResult)
