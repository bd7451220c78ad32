"""What goes wrong in a command, and how it is told: one or two lines on stderr, and an exit code."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

DONE = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 130

_SECRET_OPTION = re.compile(r"(?i)\b(password|passwd|secret|api_?key)=([^\s&'\"]+)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Failure(click.ClickException):
    """What was asked failed, or nothing was found: exit code 1."""

    exit_code = FAILED


class Misuse(click.ClickException):
    """The command was given something it can't work with, or the configuration is wrong: exit code 2."""

    exit_code = MISUSED


def clean(text: str) -> str:
    """Make text from elsewhere safe for a terminal: control characters and surrogates are spelt out."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def masked(text: str) -> str:
    """Hide passwords in URLs and `password=…` options."""
    # Imported here: `taskmq --help` must not pay for the library.
    from taskmq.transport.url import mask

    return _SECRET_OPTION.sub(r"\1=***", mask(text))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?", or "" when nothing known is near."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return "; did you mean " + " or ".join(repr(each) for each in near) + "?" if near else ""


def warn(text: str) -> None:
    """Write one line of warning to stderr."""
    click.echo(f"Warning: {masked(clean(text))}", err=True)


def note(text: str) -> None:
    """Write one line to stderr that is neither result nor warning."""
    click.echo(masked(clean(text)), err=True)


def report(error: BaseException, *, debug: bool) -> int:
    """Tell the user about an error and return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt) or _from_interrupt(error):
        return INTERRUPTED
    if _is_broken_pipe(error):
        return silence()
    code, lines = _told(error)
    if debug and not isinstance(error, click.exceptions.Abort):
        lines = ["".join(traceback.format_exception(error)).rstrip(), *lines]
    _say(lines)
    return code


def silence() -> int:
    """Let nothing more be written to a stdout that nobody reads; the exit code for that."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):
        # A stdout without a file (a test's) has nobody who would complain at exit.
        pass
    return FAILED


def _say(lines: list[str]) -> None:
    try:
        for line in lines:
            click.echo(masked(clean(line)), err=True)
    except OSError:
        # Nobody reads stderr: the exit code has to do.
        return


def _from_interrupt(error: BaseException) -> bool:
    return isinstance(error, click.exceptions.Abort) and (
        isinstance(error.__cause__, KeyboardInterrupt)
        or isinstance(error.__context__, KeyboardInterrupt)
    )


def _is_broken_pipe(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.EPIPE, errno.ESHUTDOWN}


def _told(error: BaseException) -> tuple[int, list[str]]:
    if isinstance(error, click.exceptions.Abort):
        return FAILED, ["Aborted: nothing was changed. (--yes answers the question beforehand.)"]
    if isinstance(error, click.UsageError):
        lines = [f"Error: {error.format_message()}"]
        if error.ctx is not None:
            lines.append(f"Try '{error.ctx.command_path} --help'.")
        return MISUSED, lines
    if isinstance(error, click.ClickException):
        return error.exit_code, [f"Error: {error.format_message()}"]
    # Imported here: `taskmq --help` must not pay for the library.
    from taskmq.errors import ConfigError, TaskmqError

    if isinstance(error, ConfigError):
        return MISUSED, [f"Error: {error}"]
    if isinstance(error, TaskmqError):
        return FAILED, [f"Error: {error}"]
    return FAILED, [
        f"Error: unexpected {cause_of(error)}",
        "Run it again with --debug to see the traceback.",
    ]


def a_type(value: object) -> str:
    """Return "an int", "a str"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def cause_of(error: BaseException) -> str:
    """Return an exception's type, text and the place that raised it, in one line."""
    try:
        text = str(error)
    # A user's exception may fail in __str__, and its type is worth telling all the same.
    except Exception:  # noqa: BLE001
        text = "(its text can't be printed)"
    where = place_of(error)
    return f"{type(error).__name__}{': ' + text if text else ''}{f' ({where})' if where else ''}"


def place_of(error: BaseException) -> str:
    """Return "file:line" of what in the user's code led to an exception, "" when unknown."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frame = frame_of(error)
    return f"{frame.filename}:{frame.lineno}" if frame else ""


def frame_of(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of the user's own code, else of any library but ours, else of all."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ")
    ]
    paths = sysconfig.get_paths()
    ours = [
        str(Path(__file__).parent) + os.sep,
        *_core_folder(),
        paths["stdlib"] + os.sep + "importlib",
    ]
    foreign = [paths[name] + os.sep for name in ("stdlib", "purelib", "platlib")]
    for skipped in ((*ours, *foreign), ours):
        kept = [frame for frame in frames if not frame.filename.startswith(tuple(skipped))]
        if kept:
            return kept[-1]
    return frames[-1] if frames else None


def _core_folder() -> list[str]:
    core = sys.modules.get("taskmq")
    return [str(Path(core.__file__).parent) + os.sep] if core and core.__file__ else []
