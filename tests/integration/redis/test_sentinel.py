"""Sentinel: credentials of its own, and failovers under load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from redis import RedisError

from support.backends import need
from support.load import Load
from support.redis_servers import RedisServer, redis_folder
from support.redis_services import SentinelSetup
from support.waiting import wait_until
from taskmq import App, Config
from taskmq.errors import TransportError, TransportUnavailable
from taskmq_redis import RedisTransport
from taskmq_worker import Worker

pytestmark = [pytest.mark.timeout(120), pytest.mark.leaks]
SOON = 15.0
"""A second until the sentinels agree, and some for the failover, on a busy machine."""


@pytest.fixture(scope="module")
def setup() -> Iterator[SentinelSetup]:
    need("redis-sentinel")
    with redis_folder() as folder:
        setup = SentinelSetup(folder)
        try:
            setup.start([])
            yield setup
        finally:
            for server in setup.servers:
                server.kill()


def test_the_primary_is_found_with_two_sets_of_credentials(setup: SentinelSetup) -> None:
    url = setup.url
    app = App(Config(transport=url, result=url, result_ttl=60, events="null"))

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Worker(app):
        assert double.delay(4).get(timeout=20) == 8
    app.close()


def test_a_password_that_the_sentinels_refuse_is_told_at_once(setup: SentinelSetup) -> None:
    url = setup.url.replace("sentinel_password=", "sentinel_password=no")
    transport = RedisTransport.from_url(url, timeout=20)
    start = time.monotonic()
    with pytest.raises(TransportError, match="sentinel_password") as caught:
        transport.ping()
    assert not isinstance(caught.value, TransportUnavailable)
    assert "object at" not in str(caught.value)
    assert time.monotonic() - start < 10
    transport.close()


def test_a_sentinel_that_is_taken_for_a_server_is_told_apart(setup: SentinelSetup) -> None:
    secret = quote(SentinelSetup.SENTINEL_PASSWORD, safe="")
    url = f"redis://:{secret}@127.0.0.1:{setup.sentinels[0].port}/0"
    transport = RedisTransport.from_url(url, timeout=20)
    with pytest.raises(TransportError, match=r"redis\+sentinel://"):
        transport.stats()
    transport.close()


def test_a_server_that_is_taken_for_a_sentinel_is_told_apart(setup: SentinelSetup) -> None:
    name, password = (quote(text, safe="") for text in SentinelSetup.DATA)
    login = f"sentinel_username={name}&sentinel_password={password}"
    url = f"redis+sentinel://127.0.0.1:{setup.primary.port}/{SentinelSetup.SERVICE}/0?{login}"
    transport = RedisTransport.from_url(url, timeout=20)
    with pytest.raises(TransportError, match="is no sentinel"):
        transport.stats()
    transport.close()


def test_an_unknown_service_ends_in_time(setup: SentinelSetup) -> None:
    url = setup.url.replace(SentinelSetup.SERVICE, "nobody")
    transport = RedisTransport.from_url(url, timeout=0.5)
    with pytest.raises(TransportUnavailable, match="nobody"):
        transport.ping()
    transport.close()


def test_sentinels_that_do_not_answer_are_named_in_one_line(setup: SentinelSetup) -> None:
    url = setup.url + "&sentinel_tls=1"
    transport = RedisTransport.from_url(url, timeout=0.5)
    with pytest.raises(TransportUnavailable, match="sentinel_tls") as caught:
        transport.ping()
    text = str(caught.value)
    assert f"127.0.0.1:{setup.sentinels[0].port}" in text
    assert "<redis" not in text
    assert len(text) < 600
    transport.close()


def follows(server: RedisServer) -> bool:
    try:
        return bool(server.ask("INFO", "replication").get("master_link_status") == "up")
    except RedisError:
        # A server whose role changes closes the connections of its clients.
        return False


def test_work_goes_on_after_failovers_by_order_and_by_death(setup: SentinelSetup) -> None:
    load = Load(setup.url, timeout=20)
    with load.running(lossless=False):
        load.wait_for_more()
        before = setup.primary_port()
        setup.sentinels[0].ask("SENTINEL", "FAILOVER", SentinelSetup.SERVICE)
        wait_until(lambda: setup.primary_port() != before, 30, 0.05, what="another primary")
        assert load.wait_for_more() < SOON
        # The former primary follows the new one, which then dies.
        former = next(each for each in setup.servers if each.port == before)
        wait_until(lambda: follows(former), 30, 0.05, what="the former primary to follow")
        now = next(each for each in setup.servers if each.port == setup.primary_port())
        settled = [handle.id for handle in load.accepted[:20]]
        assert now.ask("WAIT", 1, 5000) == 1
        now.kill()
        assert load.wait_for_more(timeout=60) < 40
        # What had reached the replica is there: replication is not waited for, see the docs.
        assert None not in load.app.transport.get_jobs(settled)
        fresh = len(load.accepted)
        wait_until(lambda: len(load.accepted) >= fresh + 20, 30)
        for handle in load.accepted[fresh : fresh + 20]:
            handle.get(timeout=20)
    load.app.close()
