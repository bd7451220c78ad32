"""Faults of area H: no payload stops a worker, vanishes, or leaves a job without an end."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.backends import ALL, Backends
from support.waiting import wait_until
from taskmq import App, Config, JobState, MessageTooLarge, RemoteError, Retry
from taskmq.errors import TaskmqError
from taskmq.ids import new_id
from taskmq.transport.types import Message
from taskmq_worker import Worker

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(params=ALL)
def app(request: pytest.FixtureRequest, tmp_path: Path, backends: Backends) -> Iterator[App]:
    url = backends.url(request.param, tmp_path)
    with App(Config(transport=url, events="null", unknown_task_ttl=0.3)) as made:
        yield made


def run_until_idle(app: App, **options: Any) -> None:
    with Worker(app, **options) as worker:
        worker.run_until_idle(timeout=40)


GARBAGE = {
    "no bytes": b"",
    "random bytes": bytes(range(256)),
    "text": b"hello, queue",
    "truncated map": b"\x8a\xa1v\x01\xa2id",
    "not a map": msgspec.msgpack.encode([1, 2, 3]),
    "an unknown version": msgspec.msgpack.encode(
        {"v": 99, "id": "x", "task": "good", "queue": "default"}
    ),
    "a field of another type": msgspec.msgpack.encode({"v": 1, "id": 7, "task": [], "queue": None}),
    "deep nesting": b"\x91" * 100_000,
    "deep json": b"[" * 100_000,
    "gzip of garbage": gzip.compress(b"garbage" * 1000),
    "an unknown content type": msgspec.msgpack.encode(
        {
            "v": 1,
            "id": "x",
            "task": "good",
            "queue": "default",
            "content_type": "text/x-none",
            "body": b"x",
        }
    ),
    "a body that is garbage": msgspec.msgpack.encode(
        {"v": 1, "id": "x", "task": "good", "queue": "default", "body": b"\xff\x00\xc1"}
    ),
    "a body of deep nesting": msgspec.msgpack.encode(
        {"v": 1, "id": "x", "task": "good", "queue": "default", "body": b"\x91" * 100_000}
    ),
}


def test_garbage_is_dead_with_its_raw_bytes_and_the_good_jobs_run(app: App) -> None:
    @app.task(name="good")
    def good(number: int = 0) -> int:
        return number

    ids = {what: new_id() for what in GARBAGE}
    app.transport.enqueue(
        [
            Message(id=ids[what], task="?", queue="default", envelope=data, priority=1)
            for what, data in GARBAGE.items()
        ]
    )
    handles = good.map_async([(n,) for n in range(100)])
    run_until_idle(app, concurrency=4)

    assert [handle.get(timeout=1) for handle in handles] == list(range(100))
    for what, data in GARBAGE.items():
        letter = app.transport.get_dead(ids[what])
        assert letter is not None, what
        assert letter.envelope == data, what
        assert letter.reason == "undecodable", (what, letter.reason)
        assert letter.error is not None
        assert letter.error.message, what


class Unreducible:
    def __reduce__(self) -> Any:
        raise RuntimeError("never pickled")


def _endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


UNENCODABLE: dict[str, Any] = {
    "a lock": threading.Lock,
    "a generator": lambda: (n for n in range(3)),
    "an object": Unreducible,
    "a loop": _endless,
    "deep nesting": lambda: __import__("functools").reduce(
        lambda inner, _: [inner], range(50_000), []
    ),
    "a lone surrogate": lambda: "\ud800",
}


@pytest.mark.parametrize("serializer", ["msgspec", "json"])
def test_a_result_that_cannot_travel_fails_the_job_once(app: App, serializer: str) -> None:
    runs: list[str] = []

    @app.task(name="give", retry=Retry(max_attempts=3, base=0.01), serializer=serializer)
    def give(what: str) -> Any:
        runs.append(what)
        return UNENCODABLE[what]()

    handles = {what: give.delay(what) for what in UNENCODABLE}
    run_until_idle(app)

    assert sorted(runs) == sorted(UNENCODABLE)
    for what, handle in handles.items():
        assert handle.state is JobState.FAILED, what
        with pytest.raises(RemoteError) as caught:
            handle.get(timeout=1)
        assert caught.value.reason == "result not serialisable", what


def test_a_result_of_any_size_ends_its_job(app: App) -> None:
    @app.task(name="big")
    def big(size: int) -> str:
        return "x" * size

    handle = big.delay(20_000_000)
    run_until_idle(app)
    assert handle.state.is_final
    if handle.state is JobState.SUCCEEDED:
        assert len(handle.get(timeout=5)) == 20_000_000
    else:
        with pytest.raises(RemoteError):
            handle.get(timeout=1)


ODD_TEXTS = ["a\x00b", "\ud800", "\udcff tail", "\x1b[31m", "\u202e", "𝔘𝔫𝔦", "a" * 100_000]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
@pytest.mark.parametrize("serializer", ["msgspec", "json"])
def test_odd_text_travels_or_is_refused_at_the_call(app: App, text: str, serializer: str) -> None:
    @app.task(name="echo", serializer=serializer)
    def echo(value: Any) -> Any:
        return value

    for value in (text, {text: 1}, [text]):
        try:
            handle = echo.delay(value)
        except (TaskmqError, TypeError, ValueError):
            continue
        run_until_idle(app)
        assert handle.get(timeout=1) == value


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
def test_odd_error_text_always_ends_the_job(app: App, text: str) -> None:
    @app.task(name="fail")
    def fail() -> None:
        raise ValueError(text if len(text) < 100 else text * 100)

    @app.task(name="meta", bind=True)
    def meta(self: Any) -> None:
        self.request.update_meta(note="x\x00y")
        raise self.retry(exc=ValueError(text), reason=text, countdown=0, max_retries=0)

    handles = [
        app.send("fail", (), job_id=new_id()),
        meta.delay(),
    ]
    run_until_idle(app)
    for handle in handles:
        assert handle.state is JobState.FAILED
        with pytest.raises(RemoteError) as caught:
            handle.get(timeout=1)
        assert caught.value.type == "ValueError"
        assert len(str(caught.value)) < 200_000
        letter = app.transport.get_dead(handle.id)
        assert letter is not None


@pytest.mark.parametrize(
    "name",
    ["with space", "a:b", "{curly}", "50%", "ünïcode", "x" * 300, "nul\x00", "\ud800", "", " "],
)
def test_odd_names_work_or_are_refused_when_declared(app: App, name: str) -> None:
    try:

        @app.task(name=name, queue=name)
        def task() -> str:
            return "done"
    except TaskmqError as error:
        assert "name" in str(error) or "queue" in str(error)
        return
    handle = task.apply_async(key=name[:50], job_id=f"job {name[:50]}")
    run_until_idle(app, queues=[name])
    assert handle.get(timeout=1) == "done"


class Needy(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one, two)


class Holding(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("can't be printed")


class MuteRepr(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("can't be printed")


class Listing(Exception):
    """Has `exceptions` that are none, as errors of many a library do."""

    exceptions = {"field": "is missing"}


class Numbered(Exception):
    exceptions = 5


class Lazy(Exception):
    @property
    def exceptions(self) -> list[Exception]:
        raise RuntimeError("not loaded")


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("can't be changed")


def _closure_error() -> Exception:
    class Hidden(Exception):
        pass

    return Hidden("from a closure")


ODD_ERRORS: dict[str, Any] = {
    "Needy": lambda: Needy("1", "2"),
    "Holding": Holding,
    "Mute": Mute,
    "MuteRepr": lambda: MuteRepr("x"),
    "Listing": Listing,
    "Numbered": Numbered,
    "Lazy": Lazy,
    "Frozen": Frozen,
    "Hidden": _closure_error,
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "TimeoutError": TimeoutError,
}


@pytest.mark.parametrize("kind", ODD_ERRORS)
@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_every_odd_exception_ends_as_text(app: App, kind: str, pool: str) -> None:
    @app.task(
        name="fail", retry=Retry(max_attempts=2, base=0.01, jitter=False, retry_on=(BaseException,))
    )
    def fail() -> None:
        raise ODD_ERRORS[kind]()

    @app.task(name="after")
    def after() -> str:
        return "alive"

    handle, alive = fail.delay(), after.delay()
    run_until_idle(app, pool=pool)
    with pytest.raises(RemoteError) as caught:
        handle.get(timeout=1)
    assert caught.value.type.endswith(kind)
    assert "ODD_ERRORS[kind]()" in caught.value.traceback
    assert alive.get(timeout=1) == "alive"


def test_a_task_nobody_knows_waits_and_then_is_dead_without_a_hot_loop(app: App) -> None:
    @app.task(name="known")
    def known() -> int:
        return 1

    handle = app.send("unknown", ())
    goods = known.map_async([()] * 20)
    with Worker(app) as worker:
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert [good.get(timeout=30) for good in goods] == [1] * 20
            wait_until(lambda: handle.state.is_final, timeout=20)
        finally:
            worker.stop()
            thread.join(60)
    letter = app.transport.get_dead(handle.id)
    assert letter is not None
    assert letter.reason == "unknown task"
    assert handle.info.attempt == 1


def test_another_worker_that_knows_the_task_takes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    old, new = App(Config(transport=url, events="null")), App(Config(transport=url, events="null"))

    @new.task(name="b")
    def b(number: int) -> int:
        return number

    with old, new, Worker(old, queues=["default"]) as first:
        thread = threading.Thread(target=first.run)
        thread.start()
        handles = [old.send("b", (number,)) for number in range(100)]
        # The old worker sees them first.
        wait_until(lambda: any("unknown_task_since" in handle.info.meta for handle in handles))
        with Worker(new, queues=["default"]) as second:
            runner = threading.Thread(target=second.run)
            runner.start()
            assert [new.handle(handle.id).get(timeout=80) for handle in handles] == list(range(100))
            second.stop()
            runner.join(20)
        first.stop()
        thread.join(20)
        assert {handle.info.attempt for handle in handles} == {1}
        assert {handle.info.deliveries for handle in handles} == {1}


def test_a_message_over_the_limit_is_refused_with_both_sizes(app: App) -> None:
    @app.task(name="echo")
    def echo(value: str) -> int:
        return len(value)

    with pytest.raises(MessageTooLarge) as caught:
        echo.delay("x" * 300_000)
    assert caught.value.limit == 262_144
    assert caught.value.size > 300_000
    assert "262,144" in str(caught.value)
    assert app.transport.stats() == [] or app.transport.stats()[0].pending == 0


@pytest.mark.parametrize("place", ["before_start", "middleware", "arguments", "base import"])
def test_failures_around_the_body_count_as_attempts_and_end(app: App, place: str) -> None:
    tries: list[str] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        tries.append(place)
        raise ImportError("broken around the body")

    from taskmq import Task

    class Base(Task):
        def before_start(self, ctx: Any) -> None:
            if place == "before_start":
                broken()

    if place == "middleware":
        app.add_middleware(broken)

    @app.task(name="around", base=Base, retry=Retry(max_attempts=3, base=0.01, jitter=False))
    def around(number: int) -> int:
        if place == "base import":
            broken()
        return number

    argument = "no number" if place == "arguments" else 1
    handle = app.send("around", (argument,))
    run_until_idle(app)
    assert handle.state is JobState.FAILED
    assert app.transport.get_dead(handle.id) is not None
    if place == "arguments":
        assert "number" in str(handle.info.error)  # the path of the bad field
    else:
        assert len(tries) == 3
