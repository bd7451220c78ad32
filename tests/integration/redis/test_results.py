"""A result store on Redis beside another transport: its outage costs no job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.redis_servers import RedisServer
from support.waiting import wait_until
from taskmq import App, Config, JobState, TaskHandle
from taskmq.events import CollectingSink
from taskmq_redis import RedisResultStore
from taskmq_worker import Worker

# A server that was started again is a process that was not there before the test.
pytestmark = [pytest.mark.leaks, pytest.mark.timeout(90)]


def test_an_outage_of_the_result_store_fails_no_job_and_is_reported(
    server: RedisServer, tmp_path: Path
) -> None:
    app = App(
        Config(
            transport=f"sqlite:///{tmp_path}/jobs.db",
            result=server.url,
            result_ttl=600,
            events="null",
            concurrency=4,
            max_inline_result=1000,
            enqueue_timeout=0.5,
        )
    )
    sink = CollectingSink()
    app.add_sink(sink)

    @app.task
    def make(size: int) -> bytes:
        return b"x" * size

    with Worker(app):
        before = make.delay(10)
        assert before.get(timeout=10) == b"x" * 10
        server.kill()
        small = [make.delay(size) for size in range(20)]
        large = make.delay(5000)
        # Readable at once: they stand in the records meanwhile.
        assert [len(handle.get(timeout=20)) for handle in small] == list(range(20))
        time.sleep(0.2)  # for the large one to be wrong about
        assert large.state is JobState.RUNNING
        server.start()
        assert len(large.get(timeout=20)) == 5000
        assert [len(handle.get(timeout=20)) for handle in small] == list(range(20))
        store = RedisResultStore.from_url(server.url)
        # The small ones move there later.
        wait_until(lambda: None not in store.get([_key(app, handle) for handle in [*small, large]]))
        store.close()
    assert {job.state for job in (before, *small, large)} == {JobState.SUCCEEDED}
    assert app.events.flush(10)
    errors = sink.of("transport.error")
    assert errors
    assert all("storing results" in str(event.data) for event in errors)
    app.close()


def _key(app: App, handle: TaskHandle[bytes]) -> tuple[str, str]:
    record = app.transport.get_jobs([handle.id])[0]
    assert record is not None
    assert record.receipt is not None
    return handle.id, record.receipt


def test_results_end_with_their_time_and_leave_no_keys(server: RedisServer) -> None:
    app = App(
        Config(
            transport="memory://", result=server.url, result_ttl=0.5, events="null", concurrency=2
        )
    )

    @app.task
    def make() -> int:
        return 1

    with Worker(app):
        assert make.delay().get(timeout=10) == 1
        assert server.ask("DBSIZE") == 1
        wait_until(lambda: server.ask("DBSIZE") == 0)
    app.close()
