"""What the server's errors mean for a call: again, anew, or never."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors, pq
from psycopg_pool import PoolClosed, PoolTimeout

from taskmq.errors import TransportError, TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq_postgres.settings import Settings


class Overdue(psycopg.OperationalError):
    """The server did not answer in the time that the call had; the connection was closed."""


class Unstorable(TransportError, psycopg.DataError):
    """A value that PostgreSQL can't store or compare, as a NUL in a text: refused for good."""


class Fault(Enum):
    """What can be done about an error."""

    AGAIN = "again"
    """Other transactions were in the way: the same, a moment later."""
    LOST = "lost"
    """The server or the connection is gone, or takes no writes: the same on a new connection."""
    UNPREPARED = "unprepared"
    """A pooler that nobody told us of hands connections around: without prepared statements."""
    UNREADY = "unready"
    """Our tables or functions are not there."""
    SLOW = "slow"
    """It was ended because it took too long."""
    VALUE = "value"
    """A value can't be stored: whoever gave it must know."""
    NEVER = "never"
    """Repeating it would fail again."""


_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)
_LOST_CLASSES = ("08", "57P", "53", "58")
_READ_ONLY = "25006"
_IDLE_ENDED = ("25P03", "57P05")
_UNREADY = (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)
_UNPREPARED = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
_VALUES = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded)
# libpq tells no code for a refused connection; these are the texts of servers and poolers.
_REFUSED = (
    "password authentication failed",
    "no password supplied",
    "authentication failed",
    "pg_hba.conf",
    "no such user",
    "no such database",
    "certificate verify failed",
    "root certificate file",
    "does not support SSL",
    "permission denied for database",
    "is not permitted to log in",
    "connection is bad: invalid ",
)
_TAKES_KEY = "take_key_"
"""The function that waits for a key, as the context of an error names it."""
_NAMED = 3
"""How many keys an error names."""
_ROLE_OR_DATABASE = ('role "', 'database "')
_SIGN_IN = "check user and password: in the URL, or PGPASSWORD, or ~/.pgpass"
_FULL = "raise its limit of connections, lower ?connections=, or put a pooler between"
# What to do, by what the server, a pooler or libpq says; the first that fits.
_ADVICE = (
    ("password authentication failed", _SIGN_IN),
    ("no password supplied", _SIGN_IN),
    ("pg_hba.conf", "let this host, user and database in: a line in the server's pg_hba.conf"),
    ("authentication failed", _SIGN_IN),
    ("no such user", "the pooler must know the user: check its list of users, and the URL"),
    ("no such database", "the pooler must know the database: check its list of them, and the URL"),
    ("connection is bad: invalid ", "correct this option in the URL, or its PG… variable"),
    ("certificate", "check sslmode, sslrootcert, sslcert and sslkey"),
    ("SSL", "check sslmode, and whether the server has ssl = on"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE to the role, or use another"),
    ("is not permitted to log in", "ALTER ROLE … LOGIN, or use another"),
    ('database "', "create it (createdb), or name another one in the URL"),
    ('role "', "create it (createuser), or name another user in the URL"),
    ("Connection refused", "is the server running, and are host and port right?"),
    ("No such file or directory", "is the server running, and are host and port right?"),
    ("resolve host", "is the name of the host right?"),
    ("translate host name", "is the name of the host right?"),
    ("connection slots", _FULL),
    ("too many", _FULL),
)


def judge(error: psycopg.Error) -> Fault:
    """Say what can be done about an error."""
    state = error.sqlstate or ""
    if isinstance(error, (PoolTimeout, PoolClosed)):
        return Fault.LOST
    if isinstance(error, Overdue):
        return Fault.SLOW
    if isinstance(error, _AGAIN):
        return Fault.AGAIN
    if isinstance(error, _UNPREPARED):
        return Fault.UNPREPARED
    if isinstance(error, (errors.QueryCanceled, errors.LockNotAvailable)):
        return Fault.SLOW
    if isinstance(error, _UNREADY):
        return Fault.UNREADY
    if state == _READ_ONLY or state in _IDLE_ENDED or state.startswith(_LOST_CLASSES):
        return Fault.LOST
    if isinstance(error, _VALUES):
        return Fault.VALUE
    if not state and isinstance(error, psycopg.OperationalError):
        return Fault.NEVER if _refused(str(error)) else Fault.LOST
    if isinstance(error, psycopg.InterfaceError):
        return Fault.LOST
    return Fault.NEVER


def _refused(text: str) -> bool:
    if any(part in text for part in _REFUSED):
        return True
    return "does not exist" in text and any(part in text for part in _ROLE_OR_DATABASE)


def unavailable(settings: Settings, error: BaseException) -> TransportUnavailable:
    """The error for a server that could not be reached in time."""
    return TransportUnavailable(
        f"{where(settings)} could not be reached within {settings.timeout:g} s: {_advised(error)}"
    )


def unstorable(settings: Settings, error: BaseException) -> Unstorable:
    """The error for a value that can't be stored."""
    return Unstorable(f"{where(settings)} refused a value: {first_line(error)}")


def slow(settings: Settings) -> TransportUnavailable:
    """The error for a statement that took too long."""
    return TransportUnavailable(
        f"{where(settings)} did not answer within {settings.timeout:g} s: the server is overloaded, "
        f"frozen, or somebody holds a lock; `taskmq doctor` tells more"
    )


def held_keys(
    settings: Settings, keys: Sequence[str], error: BaseException | None
) -> TransportUnavailable:
    """The error for an enqueue that waited too long, when it has keys of which one may be taken just now."""
    names = ", ".join(map(repr, keys[:_NAMED])) + (" …" if len(keys) > _NAMED else "")
    which = f"the key {names}" if len(keys) == 1 else f"one of the keys {names}"
    advice = (
        "End that transaction (`taskmq doctor` names the oldest one), commit sooner, then enqueue "
        "again: under the key nothing is enqueued twice"
    )
    if isinstance(error, errors.LockNotAvailable) and _TAKES_KEY in (error.diag.context or ""):
        return TransportUnavailable(
            f"{where(settings)}: another open transaction has enqueued a job with {which}, and has "
            f"neither committed nor rolled back within {settings.timeout:g} s. {advice}"
        )
    return TransportUnavailable(
        f"{slow(settings)}. Perhaps another open transaction has enqueued a job with {which}. {advice}"
    )


def refused(settings: Settings, error: BaseException) -> TransportError:
    """The error for what can never work."""
    if isinstance(error, errors.InsufficientPrivilege) and "for database" not in str(error):
        return TransportError(
            f"{where(settings)}: {first_line(error)}. The role needs USAGE on schema "
            f"{settings.schema!r}, SELECT, INSERT, UPDATE, DELETE on the tables {settings.prefix}*, "
            f"and USAGE on their sequences; see the grants in the guide to PostgreSQL"
        )
    return TransportError(f"{where(settings)}: {_advised(error)}")


def unready(settings: Settings, what: str) -> TransportError:
    """The error for tables that are not there and that this role may not make."""
    return TransportError(
        f"{where(settings)}: {what} (schema {settings.schema!r}, prefix {settings.prefix!r}); run "
        f"`taskmq doctor --migrate` once as a role that may create them, then grant this role the "
        f"rights that the guide to PostgreSQL lists"
    )


def where(settings: Settings) -> str:
    """The masked URL, and the host and the database when others than the URL decide on them."""
    given = settings.connect
    ours = ("host" in given or "hostaddr" in given, "dbname" in given)
    if all(ours) or "service" in given:
        return settings.url
    usual = {each.keyword: each.val for each in pq.Conninfo.get_defaults()}
    host = usual.get(b"host") or usual.get(b"hostaddr") or b"the local socket"
    user = str(given.get("user", "")).encode() or usual.get(b"user") or b""
    found = [
        f"{name} {value.decode(errors='replace')}"
        for name, value, known in (
            ("host", host, ours[0]),
            ("database", usual.get(b"dbname") or user or b"of the user's name", ours[1]),
        )
        if not known
    ]
    return f"{settings.url} ({', '.join(found)})"


def _advised(error: BaseException) -> str:
    """The gist of an error, and what to do about it if we know that."""
    text = first_line(error)
    advice = next((advice for part, advice in _ADVICE if part in text), None)
    return text if advice is None else f"{text}; {advice}"


def first_line(error: BaseException) -> str:
    """The gist of a driver's message, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    fatal = next((line for line in lines if "FATAL:" in line), None)
    if fatal is not None:
        return fatal.partition("FATAL:")[2].strip()
    return lines[0] if lines else type(error).__name__
