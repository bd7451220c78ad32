"""Ways in: sockets, users, and passwords of any characters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from support.backends import need
from support.redis_servers import RedisServer, redis_folder
from taskmq import App, Config
from taskmq.errors import TransportError, TransportUnavailable
from taskmq_redis import RedisTransport
from taskmq_worker import Worker

ODD = [
    "p@ss:w/rd",
    "a?b#c&d=e",
    "100%",
    "%40",
    "a+b c",
    "ü€✓",
    "'\"`$(x)\\",
    "[::1]",
    "user:name@host/0?x",
]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server on a socket, too, that knows users with odd names."""
    need("redis")
    with redis_folder() as folder:
        server = RedisServer(folder, {"unixsocket": str(folder / "redis %41.sock").join('""')})
        server.start()
        yield server
        server.kill()


def socket_of(server: RedisServer) -> str:
    return quote(str(server.folder / "redis %41.sock"))


def works(url: str) -> None:
    """A job and its result, with a worker that waits."""
    app = App(Config(transport=url, result=url, result_ttl=60, events="null"))

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Worker(app):
        for number in range(3):
            assert double.delay(number).get(timeout=20) == 2 * number
    app.close()


@pytest.mark.parametrize("password", ODD)
def test_a_user_may_have_any_password(server: RedisServer, password: str) -> None:
    server.ask("ACL", "SETUSER", "odd", "reset", "on", f">{password}", "~*", "&*", "+@all")
    login = f"odd:{quote(password, safe='')}"
    works(f"redis://{login}@127.0.0.1:{server.port}/0")
    works(f"redis+unix://{login}@{socket_of(server)}")


@pytest.mark.parametrize("name", ["me@home", "a:b", "%41", "ü", "x/y?z#"])
def test_a_user_may_have_any_name(server: RedisServer, name: str) -> None:
    server.ask("ACL", "SETUSER", name, "reset", "on", ">pw", "~*", "&*", "+@all")
    works(f"redis://{quote(name, safe='')}:pw@127.0.0.1:{server.port}/0")


@pytest.mark.parametrize("password", ODD)
def test_a_refused_password_is_told_at_once_and_not_shown(
    server: RedisServer, password: str
) -> None:
    server.ask("ACL", "SETUSER", "other", "reset", "on", ">right", "~*", "&*", "+@all")
    for place in (f"127.0.0.1:{server.port}/0", socket_of(server)):
        scheme = "redis+unix" if place.startswith("/") else "redis"
        transport = RedisTransport.from_url(f"{scheme}://other:{quote(password, safe='')}@{place}")
        with pytest.raises(TransportError) as caught:
            transport.ping()
        assert not isinstance(caught.value, TransportUnavailable)
        assert password not in str(caught.value)
        assert quote(password, safe="") not in str(caught.value)
        transport.close()


def test_a_password_without_a_user(server: RedisServer) -> None:
    with redis_folder() as folder:
        secret = RedisServer(folder, {"requirepass": "s3cret/@"}, login=("default", "s3cret/@"))
        secret.start()
        try:
            works(f"redis://:{quote('s3cret/@', safe='')}@127.0.0.1:{secret.port}/0")
        finally:
            secret.kill()


def test_a_socket_that_is_not_there_is_an_outage_that_names_it(tmp_path: Path) -> None:
    transport = RedisTransport.from_url(f"redis+unix://{tmp_path}/none.sock", timeout=0.3)
    with pytest.raises(TransportUnavailable, match=r"none\.sock"):
        transport.ping()
    transport.close()
