"""The result stores of the wheels keep their contract on real servers."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from support.backends import server
from taskmq.plugins import Plugins
from taskmq.testing import result_store_params
from taskmq.transport.contract import ResultStore
from taskmq.transport.open import open_result_store

numbers = count()
urls: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    with server("redis") as redis, server("postgres") as postgres:
        urls.update(redis=redis.url, postgres=postgres.url)
        yield
        urls.clear()


def on_redis() -> ResultStore:
    return open_result_store(f"{urls['redis']}?prefix=%7Bst%C3%B6re%7D{next(numbers)}:", Plugins())


def on_postgres() -> ResultStore:
    return open_result_store(f"{urls['postgres']}?prefix=store{next(numbers)}_", Plugins())


@pytest.mark.parametrize("scenario", result_store_params(on_redis))
def test_redis_keeps_results_as_the_contract_says(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize("scenario", result_store_params(on_postgres))
def test_postgres_keeps_results_as_the_contract_says(scenario: Callable[[], None]) -> None:
    scenario()
