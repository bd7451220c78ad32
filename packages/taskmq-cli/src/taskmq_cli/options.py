"""The options that every command takes, before and after its name, and value types that several use."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, cast

import click

from taskmq_cli.session import Session, split_names

if TYPE_CHECKING:
    _TextType = click.ParamType[str]
    _AnyType = click.ParamType[Any]
    _ChoiceType = click.Choice[str]
else:
    # Generic only in newer versions of click.
    _TextType = _AnyType = click.ParamType
    _ChoiceType = click.Choice


def shared_options() -> list[click.Parameter]:
    """Return new `--app`, `--plugins`, `--transport`, `--json`, `--debug` options."""
    return [
        _shared("--app", "app_path", "MODULE:ATTR", "Where the app is [TASKMQ_APP]."),
        click.Option(
            ["--plugins"],
            metavar="NAMES",
            multiple=True,
            expose_value=False,
            is_eager=True,
            callback=_store_plugins,
            help="Plugins to load: module or module:function, commas between [TASKMQ_PLUGINS].",
        ),
        _shared(
            "--transport",
            "transport_url",
            "URL",
            "The backend; goes before an app's [TASKMQ_TRANSPORT].",
        ),
        _shared_flag("--json", "json", "Write one JSON document to stdout, nothing else."),
        _shared_flag("--debug", "debug", "Show tracebacks of errors."),
    ]


SHARED_NAMES = frozenset({"--app", "--plugins", "--transport", "--json", "--debug"})
"""The spellings of the shared options."""


def _session(ctx: click.Context) -> Session:
    return ctx.ensure_object(Session)


def _shared(flag: str, attribute: str, metavar: str, text: str) -> click.Option:
    def store(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            setattr(_session(ctx), attribute, value)

    return click.Option(
        [flag],
        metavar=metavar,
        expose_value=False,
        is_eager=True,
        callback=store,
        help=text,
    )


def _shared_flag(flag: str, attribute: str, text: str) -> click.Option:
    def store(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value:
            setattr(_session(ctx), attribute, True)

    return click.Option(
        [flag], is_flag=True, expose_value=False, is_eager=True, callback=store, help=text
    )


def _store_plugins(ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> None:
    if value:
        session = _session(ctx)
        named = tuple(name for part in value for name in split_names(part))
        session.plugin_names = (session.plugin_names or ()) + named


class QueueNames(_TextType):
    """One name of a queue, or several with commas between; `queues.named` tells which."""

    name = "NAMES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what names nothing."""
        if not split_names(str(value)):
            self.fail("it names nothing: write it like -Q email or -Q email,default", param, ctx)
        return str(value)


class Number(click.FloatRange):
    """A number within bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what is no number; NaN is within no bounds."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


class Upper(_ChoiceType):
    """One of some words in upper case, however it is written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Find the word."""
        return super().convert(str(value).upper(), param, ctx)


class JsonValue(_AnyType):
    """A JSON document, optionally of one type."""

    name = "JSON"

    def __init__(self, kind: type[list[Any] | dict[str, Any]] | None, example: str) -> None:
        self.kind = kind
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse it, or say where it is wrong and how it could look."""
        if not isinstance(value, str):
            return value
        try:
            parsed: Any = json.loads(value, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            self.fail(f"no valid JSON: {error}. It could look like {self.example!r}", param, ctx)
        if self.kind is not None and not isinstance(parsed, self.kind):
            wanted = "a JSON array" if self.kind is list else "a JSON object"
            self.fail(f"must be {wanted}, like {self.example!r}, not {value!r}", param, ctx)
        return cast("Any", parsed)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


ARGS = JsonValue(list, '["a@b.com", "hi"]')
KWARGS = JsonValue(dict, '{"to": "a@b.com"}')
ANY_JSON = JsonValue(None, '{"ok": true}')
