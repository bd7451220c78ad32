"""Commands that plugins bring: by entry point, or registered in code by a loaded plugin."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskmq_cli.errors import Misuse, a_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KIND = "commands"


def installed_names() -> list[str]:
    """Return the names of the commands that installed distributions declare, importing none."""
    if not _anybody_declares():
        return []
    from importlib.metadata import entry_points

    return sorted({each.name for each in entry_points(group=f"taskmq.{KIND}")})


def registered(builtin: Mapping[str, str]) -> dict[str, Any]:
    """Return what loaded plugins registered in code and the table doesn't know, by name."""
    from taskmq.plugins import PROCESS_PLUGINS

    return {
        info.name: PROCESS_PLUGINS.resolve(KIND, info.name)
        for info in PROCESS_PLUGINS.listing()
        if info.kind == KIND
        and info.source == "registered"
        and builtin.get(info.name) != info.target
    }


def register_builtins(builtin: Mapping[str, str]) -> None:
    """Make the built-in commands known, so that a plugin replaces one only with override=True."""
    from taskmq.plugins import PROCESS_PLUGINS

    for name in builtin.keys() - set(_registered_names(PROCESS_PLUGINS.listing())):
        PROCESS_PLUGINS.register(KIND, name, builtin[name])


def from_entry_point(name: str) -> click.Command | None:
    """Import the command that a distribution declares under this name, None when none does."""
    from taskmq.errors import ConfigError
    from taskmq.plugins import PROCESS_PLUGINS

    try:
        return checked(name, PROCESS_PLUGINS.resolve(KIND, name))
    except ConfigError as error:
        if error.__cause__ is None and "Install taskmq-" not in str(error):
            return None
        raise


def import_command(where: str) -> click.Command:
    """Import a command from "module:attribute"."""
    module, _, attribute = where.partition(":")
    return checked(attribute, getattr(import_module(module), attribute))


def checked(name: str, loaded: Any) -> click.Command:
    """Return a plugin's command when it is one."""
    if isinstance(loaded, click.Command):
        return loaded
    raise Misuse(f"the plugin's command {name!r} is {a_type(loaded)}, not a click command")


def _registered_names(infos: Iterable[Any]) -> list[str]:
    return [info.name for info in infos if info.kind == KIND and info.source == "registered"]


def _anybody_declares() -> bool:
    # importlib.metadata costs about as much as the rest of `taskmq --help`, and mostly for nothing:
    # a look into the entry_points.txt files says whether it is needed.
    marker = f"[taskmq.{KIND}]"
    for folder in sys.path:
        try:
            files = list(Path(folder or ".").glob("*.dist-info/entry_points.txt"))
            if any(marker in each.read_text(encoding="utf-8") for each in files):
                return True
        except (OSError, ValueError):
            continue
    return False
