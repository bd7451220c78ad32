"""Exceptions as text."""

from __future__ import annotations

from taskmq.failures import clean, describe, drop_frames


def test_clean_keeps_all_that_can_be_stored() -> None:
    assert clean("plain") == "plain"
    assert clean("ünï\n\t☃") == "ünï\n\t☃"
    assert clean("a\x00b\ud800") == "a\\x00b\\ud800"


def test_causes_stand_in_the_traceback() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as exc:
        error = describe(exc)
    assert "KeyError: 'inner'" in error.traceback
    assert error.type == "ValueError"


def test_an_exception_that_was_never_raised_has_no_traceback() -> None:
    assert describe(ValueError("x")).traceback == ""


def test_frames_are_dropped_along_the_whole_chain() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as exc:
        caught = exc
    caught.__cause__.__context__ = caught  # type: ignore[union-attr]
    drop_frames(caught)
    assert caught.__traceback__ is None
    assert caught.__cause__ is not None
    assert caught.__cause__.__traceback__ is None
    drop_frames(None)
