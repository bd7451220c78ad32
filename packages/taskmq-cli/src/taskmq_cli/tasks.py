"""From the name on the command line to a task of the app."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from taskmq_cli.errors import Misuse, did_you_mean

if TYPE_CHECKING:
    from taskmq.app import App


def task_named(app: App, name: str) -> Any:
    """Return the task with this full name, or with this last part when only one has it."""
    known: dict[str, Any] = dict(app.tasks)
    if name in known:
        return known[name]
    ending = [full for full in known if full.rpartition(".")[2] == name]
    if len(ending) == 1:
        return known[ending[0]]
    if ending:
        raise Misuse(f"{name!r} is the last part of several tasks: {', '.join(sorted(ending))}")
    if not known:
        raise Misuse(f"no task {name!r}: {no_tasks(app)}")
    raise Misuse(f"no task {name!r} in this app{_hint(name, known)}")


def converted(task: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Bind like Python does, then turn JSON's values into the annotated types like a worker does.

    Raises:
        Misuse: They don't fit the task's signature.
    """
    from taskmq.errors import TaskmqError

    try:
        task.signature.bind(args, kwargs)
        fitting: tuple[Any, Any] = task.signature.convert(args, kwargs)
    except (TypeError, TaskmqError) as error:
        raise Misuse(f"wrong arguments for {task.name}: {error}") from error
    return fitting


def no_tasks(app: App) -> str:
    """Say that an app has no tasks, and what to do."""
    included = ", ".join(app.config.include) or "nothing"
    return (
        f"the app has no tasks; name the modules that declare them in Config(include=[…]) "
        f"(it includes {included}), or point --app at a module that imports them"
    )


def _hint(name: str, known: dict[str, Any]) -> str:
    last = {full.rpartition(".")[2]: full for full in known}
    near = difflib.get_close_matches(name.rpartition(".")[2], list(last), n=3, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(repr(last[each]) for each in near) + "?"
    if "." in name and (hint := did_you_mean(name, known)):
        return hint
    some = sorted(known)[:5]
    return f"; it has {', '.join(some)}{', …' if len(known) > len(some) else ''}"
