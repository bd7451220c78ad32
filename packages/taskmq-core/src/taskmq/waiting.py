"""Waiting for many jobs from event loops: one thread for the whole app, not one for each job."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING

from taskmq.errors import TransportError
from taskmq.ids import new_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.transport.contract import Transport
    from taskmq.transport.types import JobRecord

logger = logging.getLogger("taskmq.waiting")

_SLICE = 30.0
_LINGER = 1.0


class WaitHub:
    """Turns one blocking `wait_jobs` call over all awaited ids into futures of event loops.

    Its thread starts with the first wait and ends after a few idle seconds.
    """

    def __init__(self, transport: Callable[[], Transport]) -> None:
        self._transport = transport
        self._thread: threading.Thread | None = None
        self._waiter = ""
        self._waking = False
        self._reset()

    def close(self, transport: Transport) -> None:
        """End the thread; waits that are open end with an error."""
        self._fail(self._take_all(), TransportError("the app was closed while a job was awaited"))
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            transport.wake(self._waiter)
            thread.join(timeout=5)

    async def wait(self, job_id: str, timeout: float | None) -> JobRecord | None:
        """The job's record once it has ended, the current one when time is over, None if unknown."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[JobRecord | None] = loop.create_future()
        if self._add(job_id, future):
            # It may reach out for the backend, which must not hold up the loop.
            _ = loop.run_in_executor(None, self._wake)
        try:
            return await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError:
            return (await asyncio.to_thread(self._transport().get_jobs, [job_id]))[0]
        finally:
            self._remove(job_id, future)

    def _add(self, job_id: str, future: asyncio.Future[JobRecord | None]) -> bool:
        """Note a wait; whether the thread has to be woken for it."""
        if self._pid != os.getpid():
            self._reset()
        with self._changed:
            self._futures.setdefault(job_id, []).append(future)
            self._closed = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="taskmq-wait", daemon=True)
                self._thread.start()
            else:
                self._changed.notify_all()
            wake = not self._waking
            self._waking = True
            return wake

    def _wake(self) -> None:
        try:
            self._transport().wake(self._waiter)
        # The thread's own call meets the same error, and tells those who wait.
        except Exception:
            logger.debug("the waiting thread can't be woken", exc_info=True)

    def _fail(self, futures: list[asyncio.Future[JobRecord | None]], error: Exception) -> None:
        for future in futures:
            _tell(future, lambda each: each.set_exception(error))

    def _remove(self, job_id: str, future: asyncio.Future[JobRecord | None]) -> None:
        with self._changed:
            futures = self._futures.get(job_id, [])
            if future in futures:
                futures.remove(future)
            if not futures:
                self._futures.pop(job_id, None)

    def _reset(self) -> None:
        # Also in a forked child, which has neither the thread nor its loops.
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._futures: dict[str, list[asyncio.Future[JobRecord | None]]] = {}
        self._thread = None
        self._closed = False
        self._waking = False
        self._waiter = f"wait-{new_token()}"

    def _run(self) -> None:
        while ids := self._next_ids():
            try:
                records = self._transport().wait_jobs(ids, _SLICE, mode="any", waiter=self._waiter)
            # A failing backend is the awaiting callers' to hear of, not this thread's end.
            except Exception as error:  # noqa: BLE001
                self._fail(self._take_all(), error)
                continue
            for job_id, record in zip(ids, records, strict=True):
                if record is None or record.state.is_final:
                    self._resolve(job_id, record)

    def _next_ids(self) -> list[str]:
        """The ids to wait for; none when the thread is to end."""
        with self._changed:
            if not self._futures and not self._closed:
                self._changed.wait(_LINGER)
            if not self._futures or self._closed:
                self._thread = None
                return []
            # Who comes from here on has to wake the call that follows.
            self._waking = False
            return list(self._futures)

    def _resolve(self, job_id: str, record: JobRecord | None) -> None:
        with self._changed:
            futures = self._futures.pop(job_id, [])
        for future in futures:
            _tell(future, lambda each: each.set_result(record))

    def _take_all(self) -> list[asyncio.Future[JobRecord | None]]:
        with self._changed:
            taken = [future for futures in self._futures.values() for future in futures]
            self._futures.clear()
            return taken


def _tell(
    future: asyncio.Future[JobRecord | None],
    act: Callable[[asyncio.Future[JobRecord | None]], None],
) -> None:
    def set_it() -> None:
        if not future.done():
            act(future)

    try:
        future.get_loop().call_soon_threadsafe(set_it)
    except RuntimeError:
        # Its loop has ended meanwhile; nobody waits any more.
        logger.debug("an awaited job ended after its event loop")
