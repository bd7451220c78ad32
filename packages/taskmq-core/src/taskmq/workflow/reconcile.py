"""Reconciliation: runs that do not go on are looked at by the worker that does the fleet's maintenance."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from taskmq.errors import TransportUnavailable
from taskmq.states import JobState
from taskmq.workflow.names import PREFIX, RUN_TASK
from taskmq.workflow.repair import resume

if TYPE_CHECKING:
    from taskmq.app import App

_log = logging.getLogger("taskmq.workflow")

QUIET = 30.0
"""Runs younger than so many seconds are left alone."""
_RUNS = 50


class Reconciler:
    """Looks at the runs that have not ended, some at each pass; what goes on by itself is left as it is."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._cursor: str | None = None

    def run(self) -> int:
        """One pass; how much had to be done.

        Raises:
            TransportUnavailable: The backend is away.
        """
        transport = self._app.transport
        if not transport.supports_job_listing:
            return 0
        page = transport.list_jobs(
            prefix=PREFIX,
            states=(JobState.PENDING,),
            task=RUN_TASK,
            limit=_RUNS,
            cursor=self._cursor,
        )
        self._cursor = page.cursor
        done = 0
        if not page.jobs:
            return done
        now = transport.now()
        for record in page.jobs:
            if now - record.enqueued_at < QUIET:
                continue
            try:
                repaired = resume(self._app, record.id)
            except TransportUnavailable:
                raise
            # One run that can't be understood must not stop the maintenance of all queues.
            except Exception as error:  # noqa: BLE001
                _log.warning("run %s can't be looked at: %s", record.id, error, exc_info=True)
                continue
            if repaired:
                _log.warning("run %s did not go on: %d steps moved", record.id, repaired)
            done += repaired
        return done
