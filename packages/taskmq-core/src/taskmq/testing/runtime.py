"""Running jobs in tests, by the worker that taskmq-worker brings."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from taskmq.app import App


def run_until_idle(app: App, queues: Sequence[str] | None = None, timeout: float = 10) -> None:
    """Run a worker until nothing in its queues would still start within the timeout.

    Delayed jobs and retries that are due before the time is over are waited for, in real time, and so
    is what other workers hold. What is due later than that, held (`PENDING`) or parked is left alone:
    when nothing else remains the call returns, early and without an error. Look at the handle's state
    if a job must have ended. An app with `Config(eager=True)` skips the waits and runs everything.

    Args:
        app: The app whose tasks it runs.
        queues: The queues it serves; None: all that the app knows of.
        timeout: The longest it may take, in seconds.

    Raises:
        ConfigError: taskmq-worker is not installed.
        NotIdle: The time is over and something is still pending or running; the message names it.
            It is taskmq_worker's, and a TimeoutError.
    """
    if app.config.eager:
        app.eager.run_until_idle()
        return
    with worker_for(app, queues=queues) as worker:
        worker.run_until_idle(timeout=timeout)


@contextmanager
def worker_for(app: App, **options: Any) -> Generator[Any]:
    """A worker of the app, stopped at the end of the block.

    Args:
        app: The app whose tasks it runs.
        options: Those of `taskmq_worker.Worker`.

    Raises:
        ConfigError: taskmq-worker is not installed.
    """
    runtime = app.plugins.resolve("runtime", "worker")
    with runtime().create_worker(app, **options) as worker:
        yield worker
