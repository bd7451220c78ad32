"""TLS: an authority of one's own, names that must fit, client certificates, and clear refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from support.backends import need
from support.redis_servers import RedisServer, redis_folder
from support.redis_services import ClusterSetup, SentinelSetup, TlsServer
from support.waiting import wait_until
from taskmq import App, Config
from taskmq.errors import TransportError, TransportUnavailable
from taskmq_redis import RedisTransport
from taskmq_worker import Worker


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    """A server that asks for client certificates."""
    need("redis-tls")
    with redis_folder() as folder:
        server = TlsServer(folder, {"tls-auth-clients": "yes"})
        server.start()
        yield server
        server.kill()


@pytest.fixture
def client(server: TlsServer) -> str:
    """The options of a client with a certificate."""
    files = {"cert": server.folder / "client.pem", "key": server.folder / "client.key"}
    return "&" + "&".join(f"{name}={quote(str(file), safe='')}" for name, file in files.items())


def refusal(url: str) -> str:
    transport = RedisTransport.from_url(url, timeout=20)
    start = time.monotonic()
    with pytest.raises(TransportError) as caught:
        transport.ping()
    assert not isinstance(caught.value, TransportUnavailable)
    # It is not tried again: it would be refused again.
    assert time.monotonic() - start < 10
    transport.close()
    return str(caught.value)


def test_jobs_and_results_travel_by_tls_and_idle_workers_are_woken(
    server: TlsServer, client: str
) -> None:
    url = server.url + client
    app = App(Config(transport=url, result=url, result_ttl=60, events="null", concurrency=2))

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Worker(app):
        for number in range(10):
            # Blocked by now, or it would not be woken.
            wait_until(lambda: any(each["cmd"] == "blpop" for each in server.connections()))
            assert double.delay(number).get(timeout=10) == 2 * number
    app.close()


def works(url: str) -> None:
    """A job, its result, and a result store."""
    app = App(Config(transport=url, result=url, result_ttl=60, events="null"))

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Worker(app):
        assert double.delay(4).get(timeout=20) == 8
    app.close()


@pytest.mark.timeout(120)
def test_a_cluster_s_nodes_are_all_spoken_to_by_tls() -> None:
    need("redis-tls")
    with redis_folder() as folder:
        setup = ClusterSetup(folder, tls=True)
        try:
            setup.start([])
            works(setup.url)
            # Whichever node has the slot of a prefix, and whichever was asked first.
            for number in range(6):
                works(f"{setup.url}&prefix=p{number}:")
            assert "not trusted" in refusal(setup.url.partition("&")[0])
        finally:
            for node in setup.nodes:
                node.kill()


@pytest.mark.timeout(120)
def test_sentinels_and_the_servers_they_watch_are_spoken_to_by_tls() -> None:
    need("redis-tls")
    with redis_folder() as folder:
        setup = SentinelSetup(folder, tls=True)
        try:
            setup.start([])
            works(setup.url)
            # The library keeps to itself why each sentinel did not answer.
            stranger = RedisTransport.from_url(setup.url.partition("&ca=")[0], timeout=0.5)
            with pytest.raises(
                TransportUnavailable, match=r"by that authority \(sentinel_tls, ca\)"
            ):
                stranger.ping()
            stranger.close()
        finally:
            for server in setup.servers:
                server.kill()


def test_an_unknown_authority_is_refused_and_what_to_do_is_said(
    server: TlsServer, client: str
) -> None:
    text = refusal(f"rediss://127.0.0.1:{server.port}/0?verify=full{client}")
    assert "not trusted" in text
    assert "?ca=FILE" in text


def test_a_certificate_for_another_host_is_refused_unless_only_the_authority_counts(
    client: str,
) -> None:
    with redis_folder() as folder:
        other = TlsServer(folder, names="DNS:elsewhere.example")
        other.start()
        try:
            assert "another host" in refusal(other.url)
            lenient = RedisTransport.from_url(other.url + "&verify=ca")
            lenient.ping()
            lenient.close()
            blind = RedisTransport.from_url(f"rediss://127.0.0.1:{other.port}?verify=off")
            blind.ping()
            blind.close()
        finally:
            other.kill()


def test_a_client_without_a_certificate_hears_that_it_needs_one(server: TlsServer) -> None:
    assert "?cert=FILE&key=FILE" in refusal(server.url)


def test_tls_to_a_server_without_it_ends_in_time_with_a_hint(shared: RedisServer) -> None:
    url = shared.url.replace("redis:", "rediss:")
    transport = RedisTransport.from_url(url, timeout=0.5)
    with pytest.raises(TransportUnavailable, match="that would be redis://"):
        transport.ping()
    transport.close()
