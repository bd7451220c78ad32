"""Handles: state, info, results, waiting and revoking."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from support.waiting import wait_until
from taskmq import App, Config, JobState, RemoteError, ResultTimeout, TaskError, TransportError
from taskmq.context import AttemptControl
from taskmq.errors import JobNotFound
from taskmq.execution import Attempt, prepare, run
from taskmq.transport.contract import ResultStore
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import Ack, ErrorInfo, Payload, ReserveRequest, Settlement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskmq.transport.types import Delivery


class Point(msgspec.Struct):
    x: int


@pytest.fixture
def app() -> Iterator[App]:
    with App(Config(transport=MemoryTransport(), events="null")) as app:
        yield app


def reserve(app: App) -> Delivery:
    request = ReserveRequest(worker="w", queues=app.queue_shares(), limit=1)
    return app.transport.reserve(request).deliveries[0]


def settle(app: App, settlement: Settlement) -> None:
    assert app.transport.settle("w", [settlement]).results[0].status == "ok"


def run_one(app: App) -> None:
    attempt = prepare(app, reserve(app), worker="w", control=AttemptControl())
    assert isinstance(attempt, Attempt)
    settle(app, run(attempt).settlement)


def run_all(app: App, count: int) -> None:
    for _ in range(count):
        run_one(app)


def test_info_tells_what_is_known(app: App) -> None:
    handle = app.task(name="t", queue="q", priority=3)(lambda: 1).apply_async(key="k")
    info = handle.info
    assert (info.id, info.task, info.queue, info.state) == (handle.id, "t", "q", JobState.QUEUED)
    assert (info.priority, info.attempt, info.key, info.meta) == (3, 1, "k", {})
    run_one(app)
    assert handle.state == "SUCCEEDED"
    assert handle.info.finished_at is not None


def test_the_result_has_the_annotated_type(app: App) -> None:
    @app.task
    def point() -> Point:
        return Point(3)

    handle = point.delay()
    run_one(app)
    assert handle.get(timeout=1) == Point(3)
    assert app.handle(handle.id).get(timeout=1) == {"x": 3}


def test_an_unknown_job_is_said_to_be_unknown(app: App) -> None:
    handle = app.handle("nowhere")
    looks: list[Any] = [
        lambda: handle.state,
        lambda: handle.info,
        handle.get,
        handle.wait,
        handle.revoke,
        lambda: asyncio.run(handle.aget(1)),
    ]
    for look in looks:
        with pytest.raises(JobNotFound, match="pruned"):
            look()


def test_get_gives_up_in_time(app: App) -> None:
    handle = app.task(name="t")(lambda: 1).delay()
    with pytest.raises(ResultTimeout, match="goes on"):
        handle.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        asyncio.run(handle.aget(timeout=0.01))
    assert handle.wait(timeout=0) is False
    assert asyncio.run(handle.await_end(timeout=0.01)) is False


def test_get_returns_as_soon_as_the_job_ends(app: App) -> None:
    handle = app.task(name="t")(lambda: 7).delay()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(handle.get(timeout=30)))
    thread.start()
    run_one(app)
    thread.join(10)
    assert found == [7]


def test_the_end_of_a_job_is_told_apart(app: App) -> None:
    handle = app.task(name="t")(lambda: 7).delay()
    error = ErrorInfo(type="ValueError", message="no", traceback="Traceback …", reason="exception")
    settle(app, Ack(receipt=reserve(app).receipt, state=JobState.FAILED, error=error))
    with pytest.raises(RemoteError) as caught:
        handle.get()
    assert (caught.value.type, caught.value.state, caught.value.job_id) == (
        "ValueError",
        "FAILED",
        handle.id,
    )
    assert "Remote traceback" in str(caught.value)


def test_a_queued_job_is_revoked_at_once(app: App) -> None:
    handle = app.task(name="t")(lambda: 7).delay()
    assert handle.revoke() is True
    assert handle.state is JobState.REVOKED
    assert handle.revoke() is False
    assert handle.wait(timeout=0)
    with pytest.raises(RemoteError, match="REVOKED"):
        handle.get(timeout=1)


def test_a_running_job_is_asked_to_end(app: App) -> None:
    handle = app.task(name="t")(lambda: 7).delay()
    reserve(app)
    assert handle.revoke()
    assert handle.info.cancelling
    assert handle.revoke(terminate=True)
    assert handle.info.cancelling


def test_waiting_inside_a_task_is_refused_unless_asked_for(app: App) -> None:
    other = app.task(name="other")(lambda: 1)

    @app.task(name="waits")
    def waits(inside: bool) -> str:
        handle = other.apply_async(queue="elsewhere")
        try:
            handle.wait(timeout=0, inside_task=inside)
        except TaskError as error:
            return str(error)
        return "waited"

    refused, allowed = waits.delay(False), waits.delay(True)
    run_one(app)
    run_one(app)
    assert "holds a slot" in refused.get(timeout=1)
    assert allowed.get(timeout=1) == "waited"
    assert waits(False) == "waited"


def test_hundreds_of_awaited_jobs_need_one_thread(app: App) -> None:
    handles = app.task(name="t")(lambda n: n).map_async([(n,) for n in range(300)])
    threads: set[str] = set()

    async def gather() -> list[Any]:
        running = asyncio.to_thread(run_all, app, len(handles))
        *results, _ = await asyncio.gather(*(each.aget(timeout=30) for each in handles), running)
        threads.update(t.name for t in threading.enumerate() if t.name.startswith("taskmq"))
        return results

    assert asyncio.run(gather()) == list(range(300))
    assert threads == {"taskmq-wait"}


def test_the_waiting_thread_ends_by_itself(app: App) -> None:
    handle = app.task(name="t")(lambda: 1).delay()
    run_one(app)
    assert asyncio.run(handle.aget(5)) == 1
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "taskmq-wait"])


def test_a_closed_app_ends_open_waits() -> None:
    app = App(Config(transport=MemoryTransport(), events="null"))
    handle = app.task(name="t")(lambda: 1).delay()

    async def wait() -> None:
        waiting = asyncio.create_task(handle.aget(30))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(app.close)
        with pytest.raises(TransportError, match="closed"):
            await waiting

    asyncio.run(wait())


def test_a_failing_backend_is_told_to_who_awaits() -> None:
    class Broken(MemoryTransport):
        def wait_jobs(self, *args: Any, **kwargs: Any) -> Any:
            raise TransportError("disk on fire")

    with App(Config(transport=Broken(), events="null")) as app:
        handle = app.task(name="t")(lambda: 1).delay()
        with pytest.raises(TransportError, match="disk on fire"):
            asyncio.run(handle.aget(30))


class Shelf(ResultStore):
    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Payload] = {}

    def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
        self.kept.update({(job, receipt): payload for job, receipt, payload in batch})

    def get(self, ids: Sequence[tuple[str, str]]) -> list[Payload | None]:
        return [self.kept.get(each) for each in ids]

    def delete(self, ids: Sequence[tuple[str, str]]) -> None:
        for each in ids:
            self.kept.pop(each, None)

    def close(self) -> None:
        pass


def test_results_are_read_from_the_separate_store_by_id_and_receipt() -> None:
    shelf = Shelf()
    config = Config(transport=MemoryTransport(), result=shelf, result_ttl=60, events="null")
    with App(config) as app:
        handle = app.task(name="t")(lambda: None).delay()
        delivery = reserve(app)
        payload = app.codecs.encode_value("far away")
        shelf.put([(handle.id, delivery.receipt, payload), (handle.id, "stale", payload)], 60)
        settle(app, Ack(receipt=delivery.receipt, result_stored=True))
        assert handle.get(timeout=1) == "far away"
        assert asyncio.run(handle.aget(1)) == "far away"
        shelf.delete([(handle.id, delivery.receipt)])
        with pytest.raises(TransportError, match="result_ttl"):
            handle.get(timeout=1)


def test_a_result_in_a_store_that_this_app_has_not_is_said_so(app: App) -> None:
    handle = app.task(name="t")(lambda: None).delay()
    settle(app, Ack(receipt=reserve(app).receipt, result_stored=True))
    with pytest.raises(TransportError, match="Config\\(result"):
        handle.get(timeout=1)
