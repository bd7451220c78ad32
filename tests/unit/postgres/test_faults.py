"""What the server's errors mean for a call."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors
from psycopg_pool import PoolTimeout

from taskmq.errors import TransportError
from taskmq_postgres import faults
from taskmq_postgres.faults import Fault, Overdue, judge
from taskmq_postgres.settings import read_url

SETTINGS = read_url("postgresql://me:secret@h/db")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.DeadlockDetected(), Fault.AGAIN),
        (errors.SerializationFailure(), Fault.AGAIN),
        (errors.LockNotAvailable(), Fault.SLOW),
        (errors.AdminShutdown(), Fault.LOST),
        (errors.CannotConnectNow(), Fault.LOST),
        (errors.ReadOnlySqlTransaction(), Fault.LOST),
        (errors.TooManyConnections(), Fault.LOST),
        (errors.DiskFull(), Fault.LOST),
        (errors.ProtocolViolation("query_wait_timeout"), Fault.LOST),
        (errors.IdleInTransactionSessionTimeout(), Fault.LOST),
        (psycopg.OperationalError("server closed the connection unexpectedly"), Fault.LOST),
        (psycopg.InterfaceError("the connection is closed"), Fault.LOST),
        (PoolTimeout(), Fault.LOST),
        (Overdue(), Fault.SLOW),
        (errors.QueryCanceled(), Fault.SLOW),
        (errors.InvalidSqlStatementName(), Fault.UNPREPARED),
        (errors.DuplicatePreparedStatement(), Fault.UNPREPARED),
        (errors.UndefinedFunction(), Fault.UNREADY),
        (errors.UndefinedTable(), Fault.UNREADY),
        (errors.CharacterNotInRepertoire(), Fault.VALUE),
        (errors.ProgramLimitExceeded(), Fault.VALUE),
        (errors.InsufficientPrivilege(), Fault.NEVER),
        (errors.SyntaxError(), Fault.NEVER),
        (psycopg.OperationalError('FATAL:  password authentication failed for "a"'), Fault.NEVER),
        (psycopg.OperationalError('FATAL:  role "nobody" does not exist'), Fault.NEVER),
        (psycopg.OperationalError('FATAL:  database "none" does not exist'), Fault.NEVER),
        (psycopg.OperationalError('could not translate host name "x"'), Fault.LOST),
    ],
)
def test_an_error_is_judged(error: psycopg.Error, fault: Fault) -> None:
    assert judge(error) is fault


def test_the_gist_of_an_error_is_one_line() -> None:
    text = 'connection failed: connection to "h" failed: FATAL:  no pg_hba.conf entry\nHINT: x\n'
    assert faults.first_line(psycopg.OperationalError(text)) == "no pg_hba.conf entry"
    assert faults.first_line(psycopg.OperationalError("\n one \n two")) == "one"
    assert faults.first_line(psycopg.OperationalError()) == "OperationalError"


@pytest.mark.parametrize(
    "made",
    [
        faults.unavailable(SETTINGS, OSError("away")),
        faults.slow(SETTINGS),
        faults.held_keys(SETTINGS, ["k"], Overdue()),
        faults.refused(SETTINGS, errors.InsufficientPrivilege("denied")),
        faults.unready(SETTINGS, "no tables yet"),
        faults.unstorable(SETTINGS, errors.CharacterNotInRepertoire("0x00")),
    ],
)
def test_what_callers_are_told_is_ours_on_one_line_and_masked(made: TransportError) -> None:
    assert isinstance(made, TransportError)
    assert "secret" not in str(made)
    assert "\n" not in str(made)
    assert "me:***@h" in str(made)


def test_a_url_without_host_or_database_is_completed_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    assert faults.where(SETTINGS) == "postgresql://me:***@h/db"
    assert "(database me)" in faults.where(read_url("postgresql://me:secret@h"))
    assert "(host the local socket)" in faults.where(read_url("postgresql:///db"))
    monkeypatch.setenv("PGHOST", "h1")
    monkeypatch.setenv("PGDATABASE", "d1")
    assert "(host h1, database d1)" in faults.where(read_url("postgresql://me:secret@"))
