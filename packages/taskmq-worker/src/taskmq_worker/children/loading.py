"""Finding the app in a child: "module:attribute", or the only app of "module"."""

from __future__ import annotations

import importlib
import os

from taskmq import App
from taskmq.errors import ConfigError

in_child = False
"""Whether this process is a worker's child: it must not start a worker at the import of the app."""


def app_path_of(given: str | None) -> str:
    """Where children import the app from.

    Raises:
        ConfigError: Nothing says it, or this is a child itself.
    """
    if in_child:
        raise ConfigError(
            "the module of the app starts a worker while it is imported, in a child of a worker too: "
            'put that under `if __name__ == "__main__":`'
        )
    path = given or os.environ.get("TASKMQ_APP")
    if not path:
        raise ConfigError(
            "pool='processes' needs to know where its child processes import the app from: "
            "Worker(app_path='myapp.tasks:app'), --app, or TASKMQ_APP"
        )
    return path


def load_app(path: str) -> App:
    """Import the app and the task modules that it includes.

    Raises:
        ConfigError: There is no app; and whatever the import of a module raises.
    """
    module_name, _, attribute = path.partition(":")
    module = importlib.import_module(module_name)
    if attribute:
        found: object = module
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise ConfigError(f"module {module_name!r} has no attribute {attribute!r}")
            found = getattr(found, part)
    else:
        apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
        if len(apps) != 1:
            raise ConfigError(
                f"module {module_name!r} has {len(apps)} apps: say which one, '{module_name}:app'"
            )
        found = next(iter(apps.values()))
    if not isinstance(found, App):
        raise ConfigError(f"{path!r} is a {type(found).__name__}, not a taskmq App")
    found.load()
    return found
