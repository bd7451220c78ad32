"""Write the pages that are made from the code: `hatch run reference`. `--check` only compares."""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import sys
from pathlib import Path

from taskmq import config, errors, events, retry
from taskmq.event_types import EVENT_TYPES
from taskmq_worker.worker import NotIdle

HERE = Path(__file__).resolve().parent
HEAD = """\
# Config

Made from the docstrings of `taskmq.config` by `hatch run reference`; a test compares.

Frozen, and checked when built. An explicit argument goes before the environment variable
`TASKMQ_<FIELD>`, that before the default. Durations are seconds, sizes bytes. In the environment
lists are separated by commas, `queues` and `retries` are JSON objects. An unknown
field or a value that is not allowed is a `ConfigError` that names both.

Names of plugins (the scheme of a URL, `pool`, `events`, `serializer`) are looked up when they are
first used, so that `app.load_plugins` can come after `App(Config(…))`; one that is unknown then is a
`ConfigError` that lists what there is.
"""
ERRORS_HEAD = """\
# Errors

Made from the docstrings of `taskmq.errors` by `hatch run reference`; a test compares.

Everything that taskmq raises on purpose is a `TaskmqError`; only wrong arguments of a call are Python's
own `TypeError`. Those in bold can be imported from `taskmq`, the others from where the table says. What
your task raised stays in the worker: `handle.get()` raises a `RemoteError` with its text.
"""
EVENTS_HEAD = """\
# Events

Made from `taskmq.event_types` and `taskmq.events` by `hatch run reference`; a test compares.

Events go to the sink that `Config.events` names (`stdout`, which is silent in producers, `log`, `null`, a
plugin's), and to those of `app.add_sink(sink)`. A sink is an object with `emit(events)`; it gets batches
on a thread of its own, so it can neither slow nor break a job: when it is too slow the oldest events are
dropped. The `null` sink costs nothing.

A job that no worker held is ended by the backend alone: revoking or purging it tells no event.
"""


def fields(cls: type) -> list[tuple[str, str, str, str]]:
    """Name, type, default and docstring of each field, as they stand in the source."""
    body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    rows: list[tuple[str, str, str, str]] = []
    for statement, after in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(str(after.value.value).split())
        default = ast.unparse(statement.value) if statement.value else "required"
        if default.startswith("field("):
            default = "{}"
        rows.append((statement.target.id, ast.unparse(statement.annotation), default, text))
    return rows


def table(cls: type) -> str:
    lines = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, kind, default, text in fields(cls):
        shown = kind.replace("|", "\\|")
        lines.append(f"| `{name}` | `{shown}` | `{default}` | {text} |")
    return "\n".join(lines) + "\n"


def config_page() -> str:
    return (
        f"{HEAD}\n## Config\n\n{table(config.Config)}\n## QueueConfig\n\n"
        f'`Config(queues={{"mail": QueueConfig(weight=3)}})`\n\n{table(config.QueueConfig)}'
    )


def summary(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def attributes(cls: type) -> list[tuple[str, str]]:
    """Name and meaning of what a docstring has under "Attributes:"."""
    _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    found: list[tuple[str, str]] = []
    for line in section.splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            name, _, text = line.strip().partition(": ")
            found.append((name, text))
        elif line.strip() and found:
            name, text = found[-1]
            found[-1] = (name, f"{text} {line.strip()}")
    return found


def errors_page() -> str:
    import taskmq

    own = [
        each for each in vars(errors).values() if getattr(each, "__module__", "") == errors.__name__
    ]
    classes = [*own, retry.RetryRequest, retry.UnwantedResult, NotIdle]
    lines = ["| error | is a | import from | meaning |", "| --- | --- | --- | --- |"]
    details: list[str] = []
    for cls in classes:
        name = cls.__name__
        public = name in taskmq.__all__
        where = "taskmq" if public else cls.__module__
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        shown = f"**`{name}`**" if public else f"`{name}`"
        lines.append(f"| {shown} | {bases} | `{where}` | {summary(cls.__doc__)} |")
        if rows := attributes(cls):
            details += [f"\n## {name}\n", "| attribute | meaning |", "| --- | --- |"]
            details += [f"| `{attribute}` | {text} |" for attribute, text in rows]
    reasons = ["", "## Reasons", "", summary(_doc_after(errors, "REASONS")), ""]
    reasons += ["| reason | meaning |", "| --- | --- |"]
    reasons += [f"| {reason} | {text} |" for reason, text in errors.REASONS.items()]
    return f"{ERRORS_HEAD}\n" + "\n".join([*lines, *details, *reasons]) + "\n"


def events_page() -> str:
    lines = ["| type | when | `data` |", "| --- | --- | --- |"]
    for name, kind in EVENT_TYPES.items():
        lines.append(f"| `{name}` | {kind.meaning} | {', '.join(f'`{x}`' for x in kind.data)} |")
    return (
        f"{EVENTS_HEAD}\n## Types\n\n"
        + "\n".join(lines)
        + "\n\nOnly the names that apply are set; "
        "`duration` and `delay` are seconds, `error` is an exception's type.\n\n"
        f"## Event\n\n{table(events.Event)}"
    )


def _doc_after(module: object, name: str) -> str:
    """The string that stands below a module's variable."""
    body = ast.parse(inspect.getsource(module)).body  # type: ignore[arg-type]
    for statement, after in itertools.pairwise(body):
        target = getattr(statement, "target", None)
        if isinstance(target, ast.Name) and target.id == name and isinstance(after, ast.Expr):
            return str(ast.literal_eval(after.value))
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="hatch run reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when a page is stale")
    wanted = parser.parse_args()
    stale: list[str] = []
    pages = {"config.md": config_page(), "errors.md": errors_page(), "events.md": events_page()}
    for path, text in ((HERE / name, text) for name, text in pages.items()):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not wanted.check:
            path.write_text(text, encoding="utf-8")
    print(f"{'stale' if wanted.check else 'written'}: {', '.join(stale) or 'nothing'}")
    return int(wanted.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
