"""The page docs/reference/cli.md, made from the commands themselves: `python -m taskmq_cli.reference`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

from taskmq_cli.main import cli
from taskmq_cli.options import SHARED_NAMES, shared_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HEAD = """\
# The command line

Made from the help texts by `python -m taskmq_cli.reference`; a test compares.

`taskmq COMMAND --help` shows the same in a terminal.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | what was asked failed: the job failed, the worker crashed, nothing was found |
| 2 | usage or configuration |
| 130 | interrupted (Ctrl-C) |

Errors are one or two lines on stderr; `--debug` adds the traceback. With `--json`, stdout gets one
JSON document and nothing else.

## Shared options

Every command takes them, before and after its name.
"""


def render() -> str:
    """Return the whole page."""
    root = click.Context(cli, info_name="taskmq")
    parts = [_HEAD, _options(shared_options())]
    for name in cli.lazy:
        command = cli.get_command(root, name)
        if command is not None:
            parts += _command(command, f"taskmq {name}")
    return "\n".join(parts).rstrip() + "\n"


def _command(command: click.Command, path: str) -> Iterator[str]:
    yield f"{'#' * (len(path.split()))} {path}\n"
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    words = [path, *(["[OPTIONS]"] if len(command.params) > len(arguments) else [])]
    words += [each.metavar or (each.name or "").upper() for each in arguments]
    if isinstance(command, click.Group):
        words.append("COMMAND …")
    yield f"```\n{' '.join(words)}\n```\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    own = [each for each in command.params if isinstance(each, click.Option)]
    own = [each for each in own if SHARED_NAMES.isdisjoint(each.opts)]
    if own:
        yield _options(own)
    examples: Iterable[tuple[str, str]] = getattr(command, "examples", ())
    lines = [f"# {what}\n{line}" for line, what in examples]
    if lines:
        yield "```bash\n" + "\n".join(lines) + "\n```\n"
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _command(command.commands[name], f"{path} {name}")


def _options(options: Iterable[click.Parameter]) -> str:
    rows = ["| option | meaning |", "| --- | --- |"]
    for option in options:
        if isinstance(option, click.Option):
            spelling = ", ".join(f"`{each}`" for each in sorted(option.opts, key=len, reverse=True))
            value = "" if option.is_flag else f" `{_value_of(option)}`"
            rows.append(f"| {spelling}{value} | {_meaning(option)} |")
    return "\n".join(rows) + "\n"


def _value_of(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "\\|".join(str(each) for each in option.type.choices)
    return "NUMBER" if isinstance(option.type, click.IntRange) else option.type.name


def _meaning(option: click.Option) -> str:
    text = option.help or "How many at most."
    kind = option.type
    if isinstance(kind, click.IntRange) and kind.max is not None:
        text += f" From {kind.min} to {kind.max}."
    return f"{text} Default: {option.default}." if option.show_default else text


if __name__ == "__main__":
    click.echo(render(), nl=False)
