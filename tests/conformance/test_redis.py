"""The whole contract on real Redis servers: by Lua, without Lua, under an odd prefix, on a cluster.

The scripts read a time that the scenarios move; a part is run by the server's own clock besides.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import redis

from support.backends import server
from support.moved_redis import moved, read_moved_time
from taskmq.testing.conformance import conformance_params
from taskmq.transport import Transport
from taskmq_redis import RedisTransport

SUPPORTS = {
    "leases": True,
    "workers": True,
    "job_listing": True,
    "atomic_settle": True,
    "rates": True,
}
ODD = "prefix=%C3%A4%20%7Bb%7D%25*%5B%0A"
numbers = count()
urls: dict[str, str] = {}
admins: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    with server("redis") as single, server("redis-cluster") as cluster:
        urls.update({"redis": f"{single.url}?", "cluster": f"{cluster.url}&"})
        admins["redis"] = redis.Redis.from_url(single.url)
        host, _, port = cluster.url.partition("//")[2].partition(",")[0].partition(":")
        make: Any = redis.RedisCluster
        admins["cluster"] = make(host=host, port=int(port))
        yield
        for admin in admins.values():
            admin.close()
        urls.clear()


@pytest.fixture
def moved_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read_moved_time(monkeypatch)


def on(name: str, options: str) -> Callable[[], Transport]:
    return lambda: moved(f"{urls[name]}{options}{next(numbers)}:", admins[name])


@pytest.mark.usefixtures("moved_time")
@pytest.mark.parametrize("scenario", conformance_params(on("redis", "lua=on&prefix=l"), SUPPORTS))
def test_redis_keeps_the_contract_by_lua(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.usefixtures("moved_time")
@pytest.mark.parametrize("scenario", conformance_params(on("redis", "lua=off&prefix=n"), SUPPORTS))
def test_redis_keeps_the_contract_without_lua(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.usefixtures("moved_time")
@pytest.mark.parametrize("scenario", conformance_params(on("redis", ODD), SUPPORTS))
def test_redis_keeps_the_contract_under_an_odd_prefix(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.usefixtures("moved_time")
@pytest.mark.parametrize("scenario", conformance_params(on("cluster", "prefix=c"), SUPPORTS))
def test_a_cluster_keeps_the_contract(scenario: Callable[[], None]) -> None:
    scenario()


def by_its_own_clock() -> RedisTransport:
    return RedisTransport.from_url(f"{urls['redis']}prefix=real{next(numbers)}:")


@pytest.mark.parametrize(
    "scenario", conformance_params(by_its_own_clock, themes=("leases", "named_leases", "workers"))
)
def test_redis_keeps_it_by_its_own_clock(scenario: Callable[[], None]) -> None:
    scenario()
