"""From an exception to text that every backend can store, whatever the exception does."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from taskmq.transport.types import ErrorInfo

if TYPE_CHECKING:
    from types import TracebackType

MAX_MESSAGE = 4_096
"""The longest error text that is kept, in characters."""
MAX_TRACEBACK = 16_384
"""The longest traceback text that is kept, in characters; its end is kept."""

_CUT = "… [truncated]"


def clean(text: str) -> str:
    """The text without what a backend may refuse: NUL and lone surrogates are written as escapes."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def describe(exc: BaseException, *, reason: str = "exception") -> ErrorInfo:
    """The type, text and traceback of an exception as an `ErrorInfo`; never raises."""
    return ErrorInfo(
        type=clean(type_name(exc)),
        message=message_of(exc),
        traceback=_traceback_text(exc),
        reason=reason,
    )


def drop_frames(exc: BaseException | None) -> None:
    """Forget the tracebacks of an exception and of those it came from.

    Frames hold the arguments of the task; an exception that is kept somewhere would keep them too.
    """
    seen: set[int] = set()
    waiting: list[object] = [exc]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        # An exception may forbid changes, and call anything at all `exceptions`.
        with suppress(BaseException):
            each.__traceback__ = None
        waiting += [each.__cause__, each.__context__]
        with suppress(BaseException):
            waiting += getattr(each, "exceptions", ())


def message_of(exc: BaseException) -> str:
    """The text of an exception, truncated; a note when it can't be printed."""
    try:
        text = str(exc)
    # The __str__ of a user's exception may raise anything.
    except BaseException as error:  # noqa: BLE001
        return f"<unprintable {type(exc).__name__}: its __str__ raised {type(error).__name__}>"
    return clean(text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + _CUT)


def type_name(exc: BaseException) -> str:
    """The name of an exception's type, with its module unless it is a built-in."""
    kind = type(exc)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _traceback_text(exc: BaseException) -> str:
    if exc.__traceback__ is None and exc.__cause__ is None and exc.__context__ is None:
        return ""
    try:
        lines = traceback.format_exception(type(exc), exc, _users_part(exc.__traceback__))
    # Formatting calls the exception's own methods, and reads source files.
    except BaseException as error:  # noqa: BLE001
        return f"<the traceback can't be formatted: {type(error).__name__}>"
    text = clean("".join(lines))
    if len(text) > MAX_TRACEBACK:
        text = f"{_CUT}\n{text[-MAX_TRACEBACK:]}"
    return text


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside of taskmq's own execution on; all when none is."""
    part = trace
    while part is not None and part.tb_frame.f_globals.get("__name__") in _OURS:
        part = part.tb_next
    return part or trace


_OURS = frozenset({"taskmq.execution", "taskmq.middleware", "taskmq.task"})
