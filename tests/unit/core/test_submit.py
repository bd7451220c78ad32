"""Calls: options, what travels, what is refused, many at once."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from taskmq import App, Config, ConfigError, MessageTooLarge, Task
from taskmq.errors import EncodeError
from taskmq.protocol.envelope import Envelope, decode_envelope
from taskmq.transport.memory import MemoryTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import Enqueued, Message


class Recording(MemoryTransport):
    """Remembers each batch of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Sequence[Message]] = []

    def enqueue(self, messages: Sequence[Message], **options: Any) -> list[Enqueued]:
        self.batches.append(messages)
        return super().enqueue(messages, **options)

    @property
    def last(self) -> Message:
        return self.batches[-1][-1]

    @property
    def envelope(self) -> Envelope:
        return decode_envelope(self.last.envelope)


@pytest.fixture
def transport() -> Recording:
    return Recording()


@pytest.fixture
def app(transport: Recording) -> App:
    return App(Config(transport=transport, events="null"))


@pytest.fixture
def task(app: App) -> Task[..., Any]:
    def send_email(to: str, subject: str = "hi", *, priority_text: str = "") -> str:
        return to

    return app.task(queue="email", name="send")(send_email)


def test_every_option_of_a_call_reaches_message_and_envelope(
    task: Task, transport: Recording
) -> None:
    task.apply_async(
        ("a",),
        {"subject": "s"},
        queue="other",
        priority=5,
        delay=60,
        expires=3600,
        key="order-42",
        key_scope="until_end",
        timeout=30,
        headers={"tenant": "t1"},
        job_id="my-id",
    )
    message, envelope = transport.last, transport.envelope
    assert (message.id, message.queue, message.priority) == ("my-id", "other", 5)
    assert (message.delay, message.expires, message.eta) == (60, 3600, None)
    assert (message.key, message.key_scope, message.key_ttl) == ("order-42", "until_end", 86_400)
    assert (envelope.id, envelope.timeout, envelope.headers) == ("my-id", 30, {"tenant": "t1"})


def test_delays_may_be_timedeltas_and_etas_datetimes(task: Task, transport: Recording) -> None:
    task.apply_async(("a",), delay=timedelta(minutes=2), expires=timedelta(hours=1))
    assert (transport.last.delay, transport.last.expires) == (120, 3600)
    due = datetime(2030, 1, 1, tzinfo=timezone.utc)
    task.apply_async(("a",), eta=due)
    assert transport.last.eta == due.timestamp()
    task.apply_async(("a",), eta=1_700_000_000)
    assert transport.last.eta == 1_700_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"eta": datetime.max.replace(tzinfo=timezone.utc)}, "9999"),
        ({"eta": datetime(1960, 1, 1, tzinfo=timezone.utc)}, "1970"),
        ({"eta": float("nan")}, "eta"),
        ({"eta": "tomorrow"}, "eta"),
        ({"eta": 1, "delay": 1}, "not both"),
        ({"delay": -1}, "delay"),
        ({"delay": float("inf")}, "delay"),
        ({"delay": "5"}, "delay"),
        ({"expires": 0}, "expires"),
        ({"priority": 10}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"queue": ""}, "queue"),
        ({"key": "a\x00"}, "key"),
        ({"key": "k", "key_scope": "for ever"}, "key_scope"),
        ({"job_id": "\ud800"}, "job_id"),
        ({"timeout": 0}, "timeout"),
        ({"headers": {1: 2}}, "headers"),
        ({"headers": "x"}, "headers"),
    ],
)
def test_a_wrong_option_is_refused_and_nothing_enqueued(
    task: Task, transport: Recording, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        task.apply_async(("a",), **options)
    assert transport.batches == []


def test_an_unknown_option_is_a_type_error_with_a_hint(task: Task) -> None:
    with pytest.raises(TypeError, match="priority"):
        task.apply_async(("a",), prioritty=5)  # type: ignore[call-overload]


@pytest.mark.parametrize("call", [(), ("a", "b", "c")])
def test_arguments_that_don_t_fit_are_a_type_error_at_the_call(
    task: Task, transport: Recording, call: tuple[str, ...]
) -> None:
    for submit in (task.delay, task.submit):
        with pytest.raises(TypeError, match="send_email"):
            submit(*call)
    with pytest.raises(TypeError):
        task.delay("a", unknown=1)
    with pytest.raises(TypeError):
        task.map_async([("a",), call])
    assert transport.batches == []


@pytest.mark.parametrize("value", [object(), "\ud800", {1: object()}])
def test_what_can_t_travel_is_refused_at_the_call(
    app: App, transport: Recording, value: Any
) -> None:
    work = app.task(lambda x: None)
    with pytest.raises(EncodeError):
        work.delay(value)
    with pytest.raises(EncodeError):
        work.apply_async((1,), headers={"h": value})
    assert transport.batches == []


def test_a_message_over_the_limit_names_both_sizes(task: Task, transport: Recording) -> None:
    with pytest.raises(MessageTooLarge) as caught:
        task.delay("x" * 300_000)
    assert caught.value.limit == 262_144
    assert caught.value.size > 300_000
    assert transport.batches == []


def test_submit_tells_options_from_arguments(app: App, transport: Recording) -> None:
    @app.task
    def work(a: str, *, priority: str = "") -> None: ...

    @app.task
    def free(**kwargs: Any) -> None: ...

    work.submit("x", priority="mine", queue="q")
    assert (transport.last.priority, transport.last.queue) == (0, "q")
    free.submit(color="red", priority=4)
    assert transport.last.priority == 4
    args, kwargs = app.codecs.decode_call(transport.envelope.body, transport.envelope.content_type)
    assert (args, kwargs) == ((), {"color": "red"})


def test_many_jobs_go_in_batches_of_a_thousand(task: Task, transport: Recording) -> None:
    handles = task.map_async([(f"a{n}", "hi") for n in range(2_500)], priority=1)
    assert [len(batch) for batch in transport.batches] == [1000, 1000, 500]
    assert len({handle.id for handle in handles}) == 2_500
    ids = [message.id for batch in transport.batches for message in batch]
    assert ids == [handle.id for handle in handles] == sorted(ids)
    envelopes = [decode_envelope(message.envelope) for message in transport.batches[2]]
    assert [envelope.id for envelope in envelopes] == ids[2000:]
    bodies = [app_args(task, envelope) for envelope in envelopes]
    assert bodies[0] == ("a2000", "hi")
    assert bodies[-1] == ("a2499", "hi")
    assert {message.priority for message in transport.batches[0]} == {1}


def app_args(task: Task, envelope: Envelope) -> tuple[Any, ...]:
    return task.app.codecs.decode_call(envelope.body, envelope.content_type)[0]


def test_one_bad_call_among_many_enqueues_none(task: Task, transport: Recording) -> None:
    with pytest.raises(EncodeError):
        task.map_async([*[("a",)] * 1500, (object(),)])
    assert transport.batches == []


def test_many_jobs_can_t_share_key_or_id(task: Task) -> None:
    for name in ("key", "job_id"):
        with pytest.raises(ConfigError, match=name):
            task.map_async([("a",)], **{name: "x"})
    with pytest.raises(TypeError, match="tuple"):
        task.map_async(["ab"])
    assert task.map_async([]) == []


def test_a_concurrency_key_is_filled_from_the_bound_arguments(
    app: App, transport: Recording
) -> None:
    @app.task(concurrency_key="user:{user}:{zone}", concurrency_limit=2)
    def work(user: int, zone: str = "eu") -> None: ...

    work.delay(7)
    assert (transport.last.concurrency_key, transport.last.concurrency_limit) == ("user:7:eu", 2)
    assert transport.envelope.concurrency_key == "user:7:eu"
    work.map_async([(1, "us"), (2,)])
    assert [m.concurrency_key for m in transport.batches[-1]] == ["user:1:us", "user:2:eu"]


@pytest.mark.parametrize("template", ["{nobody}", "{user.name}", "{", "{user[3]}", "{0}"])
def test_a_bad_key_template_is_refused_at_the_call(
    app: App, transport: Recording, template: str
) -> None:
    @app.task(concurrency_key=template)
    def work(user: int) -> None: ...

    with pytest.raises(ConfigError, match="concurrency_key"):
        work.delay(7)
    assert transport.batches == []


def test_a_duplicate_key_returns_the_first_job(task: Task) -> None:
    first = task.apply_async(("a",), key="k")
    assert task.apply_async(("b",), key="k").id == first.id
    assert task.apply_async(("b",), key="other").id != first.id


def test_an_id_of_the_caller_s_is_stored_once(task: Task, app: App) -> None:
    assert task.apply_async(("a",), job_id="x").id == task.apply_async(("a",), job_id="x").id == "x"
    assert sum(stats.pending for stats in app.transport.stats()) == 1


def test_a_task_is_sent_by_name_with_its_own_policy_when_it_is_known(
    app: App, task: Task, transport: Recording
) -> None:
    app.send("send", ("a",), {"subject": "s"}, priority=2)
    assert (transport.last.queue, transport.last.priority) == ("email", 2)
    with pytest.raises(TypeError):
        app.send("send", ())


def test_a_task_that_is_elsewhere_leaves_its_limits_open(app: App, transport: Recording) -> None:
    app.send("myapp.tasks.other", (1,))
    envelope = transport.envelope
    assert (envelope.max_attempts, envelope.ack) == (0, "")
    assert transport.last.queue == "default"


def test_calls_from_coroutines_don_t_block_the_loop(app: App) -> None:
    import threading

    where: list[threading.Thread] = []

    class Slow(MemoryTransport):
        def enqueue(self, messages: Sequence[Message], **options: Any) -> list[Enqueued]:
            where.append(threading.current_thread())
            return super().enqueue(messages, **options)

    slow = App(Config(transport=Slow(), events="null"))
    work = slow.task(name="t")(lambda x: None)

    async def call() -> tuple[str, str]:
        first, second = await work.adelay(1), await work.aapply_async((2,), priority=3)
        return first.id, second.id

    assert len(set(asyncio.run(call()))) == 2
    assert threading.main_thread() not in where


def test_json_bodies_are_plain_json(app: App, transport: Recording) -> None:
    app.task(name="t", serializer="json")(lambda a, b: None).delay(1, b="x")
    assert transport.envelope.content_type == "application/json"
    assert transport.envelope.body == b'{"args":[1],"kwargs":{"b":"x"}}'


def test_the_caller_s_objects_are_not_shared_with_the_job(app: App) -> None:
    work = app.task(name="t")(lambda rows: rows)
    rows = [1]
    work.delay(rows)
    rows.append(2)
    assert isinstance(app.transport, Recording)
    assert app_args(work, app.transport.envelope) == ([1],)


@pytest.mark.parametrize("one", ["x", b"x", 5, None, {"to": "x"}, {"x"}])
def test_one_value_is_no_tuple_of_arguments(one: Any, task: Task[..., Any], app: App) -> None:
    told = rf"args is a tuple: \({re.escape(repr(one))},\)"
    with pytest.raises(TypeError, match=told):
        task.apply_async(one)
    with pytest.raises(TypeError, match=told):
        app.send("elsewhere", one)
    with pytest.raises(TypeError, match=told):
        asyncio.run(task.aapply_async(one))
    with pytest.raises(TypeError, match="as a tuple"):
        task.map_async([one])


def test_any_other_series_of_arguments_will_do(task: Task[..., Any], transport: Recording) -> None:
    task.apply_async(["a", "b"])
    task.apply_async(each for each in "ab")
    assert len(transport.batches) == 2


def test_an_unknown_argument_is_named_with_the_nearest(task: Task[..., Any]) -> None:
    with pytest.raises(TypeError, match="unknown argument 'subjct', did you mean 'subject'"):
        task.delay("a", subjct="x")
    with pytest.raises(TypeError, match=r"unknown argument 'zzz'\Z"):
        task.delay("a", zzz="x")
