"""Transport URLs: their parts, their options, and the masking of secrets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmq.errors import ConfigError
from taskmq.transport.url import TransportURL, mask

PASSWORDS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="?#&"), min_size=8
).filter(lambda text: "***" not in text and "host" not in text)


def test_the_parts_are_decoded() -> None:
    url = TransportURL.parse("Redis://us%40er:p%3Aw@host:6379/1?prefix=app1%3A&cluster=1")

    assert (url.scheme, url.username, url.password) == ("redis", "us@er", "p:w")
    assert (url.host, url.port, url.path) == ("host", 6379, "/1")
    assert url.options == {"prefix": "app1:", "cluster": "1"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("memory://", ""),
        ("sqlite:///relative.db", "/relative.db"),
        ("sqlite:////absolute/j%20obs.db", "//absolute/j obs.db"),
        ("redis+sentinel://a,b/mymaster", "/mymaster"),
    ],
)
def test_urls_without_a_server_have_a_path(text: str, path: str) -> None:
    assert TransportURL.parse(text).path == path


@pytest.mark.parametrize("text", ["", "redis", "redis:/x", "://x", "1redis://x", "a b://x"])
def test_what_has_no_scheme_is_no_url(text: str) -> None:
    with pytest.raises(ConfigError, match="is no transport URL: it starts with a scheme"):
        TransportURL.parse(text)


@pytest.mark.parametrize("text", ["redis://h:port/", "redis://h:99999/", "redis://[::1/"])
def test_a_bad_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="host or port can't be read"):
        TransportURL.parse(text)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        TransportURL.parse("memory://?a=1&a=2")
    with pytest.raises(ConfigError, match=r"\?name=value"):
        TransportURL.parse("memory://?prefix")


def test_an_unknown_option_names_the_nearest_and_all_that_are_allowed() -> None:
    url = TransportURL.parse("redis://u:secret1@h/?prefx=a")

    with pytest.raises(ConfigError) as caught:
        url.check_options(("prefix", "lua"))

    text = str(caught.value)
    assert "unknown option 'prefx'" in text
    assert "did you mean 'prefix'" in text
    assert "(allowed: lua, prefix)" in text
    assert "secret1" not in text
    assert TransportURL.parse("redis://h/?lua=on").check_options(["lua"]) == {"lua": "on"}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://user:pw@h/1", "redis://user:***@h/1"),
        ("redis://:pw@h", "redis://:***@h"),
        ("redis://h:6379/1", "redis://h:6379/1"),
        ("redis://user@h", "redis://user@h"),
        ("redis://u:p@ss/w@h/1", "redis://u:***@h/1"),
        ("x://h/?password=pw&a=1", "x://h/?password=***&a=1"),
        ("x://h/?a=1&sslpassword=pw", "x://h/?a=1&sslpassword=***"),
        ("x://h/?auth_token=pw", "x://h/?auth_token=***"),
        ("can't reach a://u:pw@h now", "can't reach a://u:***@h now"),
        ("no url at all: me@example.com", "no url at all: me@example.com"),
        (
            "amqp://h/?state=redis%3A%2F%2Fu%3Apw%40h%2F1&prefix=q",
            "amqp://h/?state=redis%3A%2F%2Fu%3A***%40h%2F1&prefix=q",
        ),
        ("amqp://h/?state=redis://u:pw@h/1", "amqp://h/?state=redis://u:***@h/1"),
    ],
)
def test_secrets_are_masked_and_nothing_else(text: str, masked: str) -> None:
    assert mask(text) == masked


@settings(deadline=None)
@given(PASSWORDS)
def test_no_password_however_odd_shows_in_text_or_repr(password: str) -> None:
    shown: object
    try:
        shown = TransportURL.parse(f"redis://app:{password}@host:6379/0?prefix=x")
    except ConfigError as error:
        shown = error

    assert password not in str(shown)
    assert password not in repr(shown)
    assert password not in f"{shown}"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("redis://h:1/0", (("h", 1),)),
        ("sqlite:///x.db", ()),
        ("memory://", ()),
        (
            "redis+sentinel://u:p%2C%40@a,b:7,[::1]:5,[::2]/m?x=1,2",
            (("a", None), ("b", 7), ("::1", 5), ("::2", None)),
        ),
        ("redis://[::1]:5,b", (("::1", 5), ("b", None))),
    ],
)
def test_a_url_may_name_several_hosts(url: str, hosts: tuple[tuple[str, int | None], ...]) -> None:
    parsed = TransportURL.parse(url)
    assert parsed.hosts == hosts
    assert (parsed.host, parsed.port) == (hosts[0] if hosts else ("", None))


@pytest.mark.parametrize(
    "url", ["redis://a,b:x", "redis://a,,b", "redis://a,", "redis://a:1,b:99999"]
)
def test_each_of_several_hosts_is_checked(url: str) -> None:
    with pytest.raises(ConfigError, match="host or port"):
        TransportURL.parse(url)
