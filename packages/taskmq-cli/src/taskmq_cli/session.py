"""What one invocation works with: its settings, and the app and transport opened from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskmq_cli.errors import Failure, Misuse, a_type, masked

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.plugins import Plugins
    from taskmq.transport import Transport


class Session:
    """The shared options of one invocation, and what they lead to, opened when first asked for.

    Attributes:
        app_path: `--app`, else None; `TASKMQ_APP` is looked up when an app is needed.
        debug: Whether tracebacks are wanted.
        json: Whether stdout gets one JSON document.
        plugin_names: `--plugins`, else None for `TASKMQ_PLUGINS`.
        transport_url: `--transport`, else None; it goes before an app's transport.
    """

    def __init__(self) -> None:
        self.app_path: str | None = None
        self.debug = False
        self.json = False
        self.plugin_names: tuple[str, ...] | None = None
        self.transport_url: str | None = None
        self._app: App | None = None
        self._transport: Transport | None = None
        self._plugins_loaded = False

    @property
    def app_name(self) -> str | None:
        """Where the app is said to be, by option or environment."""
        return self.app_path or os.environ.get("TASKMQ_APP") or None

    @property
    def wanted_plugins(self) -> tuple[str, ...]:
        """The plugins named by option or environment."""
        if self.plugin_names is not None:
            return self.plugin_names
        return split_names(os.environ.get("TASKMQ_PLUGINS", ""))

    def load_plugins(self) -> None:
        """Load the named plugins into this process, once."""
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        names = self.wanted_plugins
        if not names:
            return
        from taskmq.plugins import load_plugins
        from taskmq_cli.loading import on_import_path

        with on_import_path():
            load_plugins(list(names))

    def app(self) -> App:
        """Import the app that `--app` or `TASKMQ_APP` names, with its task modules."""
        if self._app is None:
            name = self.app_name
            if name is None:
                raise Misuse(
                    "no app given: say where it is with --app module:attribute "
                    "or set TASKMQ_APP (for example --app myapp.tasks:app)"
                )
            self.load_plugins()
            from taskmq_cli.loading import load_app

            app = load_app(name)
            if self.transport_url is not None:
                _use_transport(app, self.transport_url)
            self._app = app
        return self._app

    def transport(self, *, existing: bool = False) -> Transport:
        """Open the transport: `--transport`, else the app's, else `TASKMQ_TRANSPORT`.

        Args:
            existing: Refuse a database file that is missing, rather than make it: for commands that
                look at what others have made.
        """
        if self._transport is None:
            self._transport = self._open()
        if existing:
            _check_file(self._transport)
        return self._transport

    def shadowed(self) -> str | None:
        """What to say when `TASKMQ_TRANSPORT` is set and the app's own transport goes before it."""
        url = os.environ.get("TASKMQ_TRANSPORT")
        if not url or not self.has_app:
            return None
        used = self.app().config.transport
        if used == url.strip():
            return None
        named = repr(used) if isinstance(used, str) else a_type(used)
        text = f"TASKMQ_TRANSPORT={url} is not used: the app gives transport={named} in code"
        return f"{masked(text)}, which goes before it"

    def plugins(self) -> Plugins:
        """Return the app's plugins, or without an app those of the process."""
        if self.transport_url is None and self.app_name is not None:
            return self.app().plugins
        self.load_plugins()
        from taskmq.plugins import PROCESS_PLUGINS

        return PROCESS_PLUGINS

    def close(self) -> None:
        """Close what was opened."""
        if self._transport is not None and self._transport_is_own:
            self._transport.close()
        if self._app is not None:
            self._app.close()
        self._app = self._transport = None

    @property
    def has_app(self) -> bool:
        """Whether commands that need only a transport work through an app."""
        return self.transport_url is None and self.app_name is not None

    @property
    def _transport_is_own(self) -> bool:
        return not self.has_app

    def _open(self) -> Transport:
        if self.has_app:
            return self.app().transport
        url = self.transport_url or os.environ.get("TASKMQ_TRANSPORT")
        if not url:
            raise Misuse(
                "no app and no transport given: say --app module:attribute (or set TASKMQ_APP), "
                "or --transport URL (or set TASKMQ_TRANSPORT), for example sqlite:///jobs.db"
            )
        from taskmq.transport.open import open_transport

        return open_transport(url, self.plugins(), timeout=5.0)


def _use_transport(app: App, url: str) -> None:
    given = app.config.transport
    if not isinstance(given, str):
        raise Misuse(
            f"--transport can't replace the {type(given).__name__} that the app has as an instance: "
            f"give the app a URL, or leave --transport away"
        )
    # Whatever a module opened at its import is the wrong backend.
    app.close()
    app.config = app.config.replace(transport=url)


def _check_file(transport: Transport) -> None:
    url = transport.describe().get("url", "")
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).exists():
        raise Failure(f"no such database {path}; a producer or worker creates it")


pass_session = click.make_pass_decorator(Session, ensure=True)
"""Hand the `Session` to a command as its first argument."""


def split_names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list, dropping blanks and empty parts."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
