"""What goes to stdout: one JSON document, or text and tables that fit 80 columns."""

from __future__ import annotations

import json
import math
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from taskmq_cli.errors import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table


_NARROWEST = 8


def to_json(value: Any, *, indent: int = 2) -> str:
    """Return a value as JSON text: what JSON has no form for is told as text, NaN as null."""
    try:
        compact = msgspec.json.encode(value, enc_hook=_as_text)
        text = msgspec.json.format(compact, indent=indent).decode() if indent else compact.decode()
    except (UnicodeError, ValueError, TypeError, OverflowError, msgspec.MsgspecError):
        # Lone surrogates and integers beyond 64 bits, which only the standard library writes.
        text = json.dumps(_plain(value), default=_as_text, indent=indent or None)
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return text if encoding == "utf8" else json.dumps(json.loads(text), indent=indent or None)


def show_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    click.echo(to_json(value))


def console(*, stderr: bool = False) -> Console:
    """Return a rich console on the stdout (or stderr) of now."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


def show(*parts: RenderableType) -> None:
    """Write text, as it is, or tables to stdout."""
    screen = console()
    for part in parts:
        if isinstance(part, str):
            click.echo(clean(part))
        elif screen.is_terminal:
            screen.print(part)
        else:
            with screen.capture() as captured:
                screen.print(part)
            # Cells are padded, which is only for the eye.
            click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """Return a table without frame. A column that starts with ">" is set to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(
        box=None, title=title or None, title_justify="left", title_style="bold", pad_edge=False
    )
    for name in columns:
        right = name.startswith(">")
        made.add_column(
            name.removeprefix(">"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right,
        )
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(clean(str(cell))) for cell in row))
    return made


def listing(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return lines of cells, one line a row. A column that starts with ">" is set to the right.

    A column that ends with ">" is cut at the end where the screen is too narrow, one that starts with
    "<" at the start. No other is ever cut or folded, even if the line gets longer than the screen.
    """
    from rich.cells import cell_len

    heads = [name.strip("<>") for name in columns]
    lines = [heads, *([" ".join(clean(str(cell)).split()) for cell in row] for row in rows)]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    elastic = [i for i, name in enumerate(columns) if name.startswith("<") or name.endswith(">")]
    excess = sum(widths) + 2 * (len(widths) - 1) - console().width
    while excess > 0 and (wide := [i for i in elastic if widths[i] > _NARROWEST]):
        widths[max(wide, key=widths.__getitem__)] -= 1
        excess -= 1
    return "\n".join("  ".join(map(_fitted, line, widths, columns)).rstrip() for line in lines)


def _fitted(cell: str, width: int, column: str) -> str:
    from rich.cells import cell_len, set_cell_size

    if column.startswith(">"):
        return " " * (width - cell_len(cell)) + cell
    if cell_len(cell) <= width:
        return cell + " " * (width - cell_len(cell))
    if column.startswith("<"):
        while cell_len(cell) > width - 1:
            cell = cell[1:]
        return set_cell_size("…" + cell, width)
    return set_cell_size(cell, width - 1) + "…"


def fields(pairs: Iterable[tuple[str, object]]) -> Table:
    """Return a two-column table of names and values; empty values are left out."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, "", ()):
            made.add_row(name, value if isinstance(value, Text) else Text(clean(str(value))))
    return made


def age(seconds: float | None) -> str:
    """Return a duration in its largest unit: "12 s", "5 min", "3 h", "4 d"."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    for size, unit, below in ((1, "s", 120), (60, "min", 7200), (3600, "h", 172_800)):
        if whole < below:
            return f"{whole // size} {unit}"
    return f"{whole // 86_400} d"


def instant(at: float | None) -> str:
    """Return an instant as UTC text, "" for None."""
    if at is None or at <= 0:
        return ""
    try:
        return datetime.fromtimestamp(at, tz=timezone.utc).isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at} (epoch seconds)"


def counted(number: int, noun: str) -> str:
    """Return "1 job", "1,234 jobs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _as_text(value: object) -> Any:
    return list(cast("set[Any]", value)) if isinstance(value, (set, frozenset)) else str(value)


def _plain(value: Any) -> Any:
    """Turn a value into what the standard library's json can write without NaN."""
    anything: Any = value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in anything.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in anything]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, msgspec.Struct):
        return _plain(msgspec.structs.asdict(value))
    return str(value)
