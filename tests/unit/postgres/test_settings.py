"""What a URL of the postgres transport says, without a server."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from taskmq.errors import ConfigError
from taskmq_postgres.results import PostgresResultStore
from taskmq_postgres.settings import read_url
from taskmq_postgres.transport import PostgresTransport


def test_a_plain_url_gives_the_defaults() -> None:
    settings = read_url("postgresql://me:p%40ss@db.example:6432/shop", timeout=3.2)
    assert settings.connect["host"] == "db.example"
    assert settings.connect["port"] == "6432"
    assert settings.connect["user"] == "me"
    assert settings.connect["password"] == "p@ss"
    assert settings.connect["dbname"] == "shop"
    assert settings.connect["connect_timeout"] == 4
    assert (settings.schema, settings.prefix, settings.pooler) == ("public", "taskmq_", "none")
    assert settings.listen == settings.connect
    assert not settings.pooled


def test_what_the_url_leaves_out_is_left_to_libpq() -> None:
    connect = read_url("postgresql:///").connect
    assert not {"host", "port", "user", "password", "dbname"} & connect.keys()


def test_options_of_libpq_and_of_ours_stand_side_by_side() -> None:
    settings = read_url(
        "postgres://h/db?sslmode=require&application_name=shop&prefix=app1_&schema=Jobs&connections=3"
    )
    assert settings.connect["sslmode"] == "require"
    assert settings.connect["application_name"] == "shop"
    assert not {"prefix", "schema", "connections"} & settings.connect.keys()
    assert (settings.schema, settings.prefix, settings.connections) == ("Jobs", "app1_", 3)


def test_of_several_servers_the_one_that_takes_writes_is_wanted() -> None:
    pair = "postgresql://me@/db?host=a,b&port=1,2"
    assert read_url(pair).connect["target_session_attrs"] == "read-write"
    assert read_url(pair + "&target_session_attrs=any").connect["target_session_attrs"] == "any"
    assert "target_session_attrs" not in read_url("postgresql://a/db").connect


@pytest.mark.parametrize(
    ("hosts", "host", "port"),
    [
        ("a:1,b:2", "a,b", "1,2"),
        ("a,b:2", "a,b", ",2"),
        ("a:1,b,[::1]:3", "a,b,::1", "1,,3"),
        ("a,b", "a,b", None),
    ],
)
def test_several_servers_are_named_in_the_url(hosts: str, host: str, port: str | None) -> None:
    connect = read_url(f"postgresql://me:secret@{hosts}/db").connect
    assert (connect["host"], connect.get("port")) == (host, port)
    assert connect["target_session_attrs"] == "read-write"


def test_nothing_is_heard_through_a_transaction_pooler_but_through_a_direct_url() -> None:
    url = "postgresql://h/db?pooler=transaction"
    assert read_url(url).listen is None
    settings = read_url(f"{url}&listen={quote('postgresql://me:secret@direct:5432/db', safe='')}")
    assert settings.pooled
    assert settings.listen is not None
    assert settings.listen["host"] == "direct"
    assert "secret" not in settings.url
    assert read_url("postgresql://h/db?pooler=session").listen is not None


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgresql://h/db?prefx=a_", "unknown option 'prefx'.*prefix"),
        ("postgresql://h/db?prefix=A-", "bad prefix"),
        ("postgresql://h/db?prefix=", "bad prefix"),
        ("postgresql://h/db?schema=1a", "bad schema"),
        ("postgresql://h/db?schema=a%22b", "bad schema"),
        ("postgresql://h/db?pooler=statement", "pooler.*transaction"),
        ("postgresql://h/db?connections=0", "bad connections"),
        ("postgresql://h/db?connections=many", "bad connections"),
        ("postgresql://h/db?client_encoding=latin1", "unknown option"),
        ("postgresql://h/a/b", "names no database"),
        ("postgresql://h/db?listen=elsewhere", "no transport URL"),
        ("postgresql://h/db?listen=postgresql%3A%2F%2Fh%2Fdb%3Fprefix%3Da_", "unknown option"),
    ],
)
def test_a_bad_url_is_refused_with_what_is_allowed(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PostgresTransport.from_url(url)
    with pytest.raises(ConfigError, match=text):
        PostgresResultStore.from_url(url)


def test_nothing_connects_before_the_first_call_and_no_secret_is_shown() -> None:
    transport = PostgresTransport.from_url("postgresql://me:secret@192.0.2.1/db?password=other")
    shown = dict(transport.describe())
    assert "secret" not in str(shown)
    assert "other" not in str(shown)
    assert dict(transport.duplicate().describe()) == shown
    transport.close()
    transport.close()
