"""Names work on every backend, or are refused when declared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmq.errors import ConfigError
from taskmq.names import check_key, check_name


@pytest.mark.parametrize(
    "name",
    [
        "email",
        "with space",
        "a:b{c}",
        "größe 日本語",
        "👩‍👩‍👧",
        "x" * 255,
        "a/b\\c'\"%_*?",
        "non\u00a0breaking",
    ],
)
def test_unusual_names_are_allowed(name: str) -> None:
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "1 to 255"),
        ("x" * 256, "this one has 256"),
        ("a\x00b", r"U\+0000 at position 1"),
        ("line\nbreak", r"U\+000A"),
        ("\x85", r"U\+0085"),
        ("\ud800", r"U\+D800"),
        (b"bytes", "not bytes"),
        (None, "not NoneType"),
        (7, "not int"),
    ],
)
def test_names_that_some_backend_cannot_carry_are_refused(name: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        check_name("queue", name)

    assert str(caught.value).startswith("queue ")
    str(caught.value).encode()


def test_keys_may_be_longer_than_names() -> None:
    assert check_key("key", "k" * 512)
    with pytest.raises(ConfigError, match="1 to 512"):
        check_key("key", "k" * 513)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=255))
def test_a_name_is_accepted_exactly_when_it_is_free_of_controls(name: str) -> None:
    bad = any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in name)

    if bad:
        with pytest.raises(ConfigError):
            check_name("queue", name)
    else:
        assert check_name("queue", name).encode().decode() == name
