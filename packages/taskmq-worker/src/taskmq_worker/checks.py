"""What is checked before a worker starts, so that nothing of it is found at 3 a.m."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from taskmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskmq.task import Task
    from taskmq.transport.contract import Transport
    from taskmq_worker.pools.base import Pool

_log = logging.getLogger("taskmq.worker")


def check_start(tasks: Iterable[Task[..., Any]], pool: type[Pool], transport: Transport) -> None:
    """Refuse tasks that can't run here, and warn of policies that can't be kept.

    Raises:
        ConfigError: A task needs another pool or a capability that the transport lacks.
    """
    for task in tasks:
        policy = task.policy
        if task.is_async and not pool.runs_async:
            raise ConfigError(
                f"task {task.name!r} is async def, which the pool {pool.name!r} can't run: start this "
                f"worker with pool='asyncio', or let it serve other queues and not import the task"
            )
        if policy.concurrency_key is not None and not transport.supports_leases:
            raise ConfigError(
                f"task {task.name!r} has a concurrency_key, but {type(transport).__name__} declares "
                f"supports_leases = False: use another transport, or remove the key"
            )
        if policy.rate_scope == "cluster" and not transport.supports_rates:
            raise ConfigError(
                f"task {task.name!r} has rate_scope='cluster', but {type(transport).__name__} declares "
                f"supports_rates = False: use another transport, or rate_scope='worker'"
            )
        if policy.hard_timeout is not None and not pool.enforces_hard_timeout:
            _log.warning(
                "hard_timeout of task %r can't be enforced in the pool %r: %s",
                task.name,
                pool.name,
                pool.at_hard_timeout,
            )
