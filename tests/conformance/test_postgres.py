"""PostgreSQL keeps the contract: under default and odd names, behind a pooler, by its real clock."""

from collections.abc import Callable, Iterator

import pytest

from support import postgres
from taskmq.testing.conformance import conformance_params
from taskmq.transport import Transport

SUPPORTS = {
    "leases": True,
    "workers": True,
    "job_listing": True,
    "atomic_settle": True,
    "rates": True,
}
ODD = {"schema": 'Läger "7" %s', "prefix": "pré 'x%_ "}
places: dict[str, postgres.Place] = {}


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with postgres.server() as service, postgres.server("pgbouncer") as pooler:
        places["default"] = postgres.Place(service.url, moved=True)
        places["pooled"] = postgres.Place(pooler.url, moved=True)
        places["odd"] = postgres.Place(service.url, moved=True, **ODD)
        places["real"] = postgres.Place(service.url, schema="real")
        yield
        for place in places.values():
            place.close()
        places.clear()


def on(name: str) -> Callable[[], Transport]:
    return lambda: places[name].transport()


@pytest.mark.parametrize("scenario", conformance_params(on("default"), SUPPORTS))
def test_postgres_keeps_the_contract(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize("scenario", conformance_params(on("odd"), SUPPORTS))
def test_postgres_keeps_it_under_odd_names(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize("scenario", conformance_params(on("pooled"), SUPPORTS))
def test_postgres_keeps_it_behind_a_transaction_pooler(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize(
    "scenario", conformance_params(on("real"), themes=("leases", "named_leases", "workers"))
)
def test_postgres_keeps_it_by_its_own_clock(scenario: Callable[[], None]) -> None:
    scenario()
