"""The runtime that `taskmq.testing` and the CLI find by entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq_worker.supervisor import Supervisor
from taskmq_worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq import App


class Runtime:
    """Makes workers."""

    def create_worker(self, app: App, **options: Any) -> Worker:
        """A worker with these options of `Worker`."""
        return Worker(app, **options)

    def create_supervisor(
        self, command: Sequence[str], replicas: int, **options: Any
    ) -> Supervisor:
        """What keeps this many processes of a worker's command running, with options of `Supervisor`."""
        return Supervisor(command, replicas, **options)
