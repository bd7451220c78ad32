"""Queue names on the command line: which exist, and which was meant."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from taskmq_cli.errors import Failure, did_you_mean, warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.app import App
    from taskmq_cli.session import Session

_MOST_WARNINGS = 5


def known_queues(session: Session) -> set[str]:
    """Return the queues that the backend has seen, and those of the app when there is one."""
    names = {each.queue for each in session.transport(existing=True).stats()}
    return names | _declared(session.app()) if session.has_app else names


def check_exists(session: Session, queue: str) -> None:
    """Refuse a queue that neither backend nor app knows, naming the nearest."""
    known = known_queues(session)
    if queue in known:
        return
    near = did_you_mean(queue, known)
    some = f"; queues: {', '.join(sorted(known)[:8]) or 'none'}"
    raise Failure(f"no queue {queue!r}{near or some}")


def named(given: tuple[str, ...], known: Callable[[], set[str]]) -> tuple[str, ...]:
    """Return the queues that `-Q` names, each once.

    A queue whose whole name was given wins; anything else is split at its commas, where blanks belong to
    a name only if a queue is called so.
    """
    names: list[str] = []
    for text in given:
        if "," not in text or text in (existing := known()):
            names.append(text)
            continue
        for part in text.split(","):
            bare = part.strip()
            spellings = (part, part.lstrip(), part.rstrip())
            if bare:
                names.append(next((each for each in spellings if each in existing), bare))
    return tuple(dict.fromkeys(names))


def served_by(session: Session) -> set[str]:
    """Return the queues of the app, and those of the backend when it is there."""
    from taskmq.errors import TransportError

    names = _declared(session.app())
    with suppress(TransportError):
        names |= {each.queue for each in session.transport().stats()}
    return names


def warn_of_unknown(app: App, queues: tuple[str, ...]) -> None:
    """Warn of queues that neither a task nor Config names: perhaps a slip of the pen."""
    known = _declared(app)
    unknown = [queue for queue in queues if queue not in known]
    for queue in unknown[:_MOST_WARNINGS]:
        near = did_you_mean(queue, known) or f" (they use {', '.join(sorted(known))})"
        warn(f"no task and no Config(queues=…) of this app uses queue {queue!r}{near}")
    more = len(unknown) - _MOST_WARNINGS
    if more > 0:
        warn(f"nor does it use {more} more of these queues")


def _declared(app: App) -> set[str]:
    return {each.name for each in app.queue_shares(None)}
