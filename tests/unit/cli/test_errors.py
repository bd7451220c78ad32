from __future__ import annotations

import errno

import click
import pytest

from taskmq.errors import ConfigError, TransportUnavailable
from taskmq_cli.errors import Failure, Misuse, cause_of, clean, did_you_mean, masked, report


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Failure("nothing found"), 1),
        (Misuse("no app"), 2),
        (ConfigError("bad"), 2),
        (TransportUnavailable("away"), 1),
        (click.UsageError("what?"), 2),
        (RuntimeError("bug"), 1),
        (KeyboardInterrupt(), 130),
        (click.exceptions.Exit(3), 3),
        (click.exceptions.Abort(), 1),
        (OSError(errno.ENOSPC, "disk full"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error, debug=False) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) <= 2
    assert "Traceback" not in told.err


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise TransportUnavailable("away")
    except TransportUnavailable as error:
        report(error, debug=True)
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("debug", [False, True])
def test_secrets_are_masked_in_errors_and_tracebacks(
    debug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise TransportUnavailable("redis://me:s3cret@host:6379/0 and ?password=s3cret are away")
    except TransportUnavailable as error:
        report(error, debug=debug)
    err = capsys.readouterr().err
    assert "s3cret" not in err
    assert "***" in err


def test_hostile_text_reaches_no_terminal() -> None:
    assert clean("a\x1b[31mb\x00\x9b\ud800") == "a\\x1b[31mb\\x00\\x9b\\xd800"
    assert clean("line\n\ttab") == "line\n\ttab"


def test_a_cause_is_told_with_type_text_and_place() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(Unprintable) as caught:
        raise Unprintable
    told = cause_of(caught.value)
    assert told.startswith("Unprintable: (its text can't be printed) (")
    assert __file__ in told


def test_suggestions_only_name_what_is_near() -> None:
    assert did_you_mean("emial", ["email", "reports"]) == "; did you mean 'email'?"
    assert did_you_mean("zzz", ["email"]) == ""


def test_masking_leaves_other_text_alone() -> None:
    assert (
        masked("sqlite:///jobs.db at 12:30 for a@b.com") == "sqlite:///jobs.db at 12:30 for a@b.com"
    )
