"""The built-in commands: where each is, and the line that help shows for it."""

from __future__ import annotations

from taskmq_cli.group import Lazy

COMMANDS = {
    name: Lazy(f"taskmq_cli.commands.{name}:{name}", summary)
    for name, summary in {
        "worker": "Run jobs until a signal, or until nothing is left.",
        "health": "Ask a worker whether it is alive and ready.",
        "call": "Run a task here and now, without a queue.",
        "submit": "Put a job on its queue, and perhaps wait for its result.",
        "status": "Show queues, workers, workflows and limitations of the backend.",
        "jobs": "List, show, revoke and complete jobs.",
        "dlq": "List, show, replay and purge dead letters.",
        "workflow": "List, show, repair and draw runs of workflows.",
        "purge": "Revoke everything on a queue that no worker holds.",
        "plugins": "Show what is registered, and what brought it.",
        "doctor": "Check the backend and the settings, and migrate.",
        "version": "Show the versions of everything taskmq.",
    }.items()
}
