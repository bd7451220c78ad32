from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from taskmq.clock import FakeClock
from taskmq.testing.conformance import conformance_params
from taskmq.transport.sqlite import SqliteTransport

SUPPORTS = {
    "leases": True,
    "workers": True,
    "job_listing": True,
    "atomic_settle": True,
    "rates": True,
}
folders: list[Path] = []
numbers = count()


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[None]:
    with TemporaryDirectory() as name:
        folders.append(Path(name))
        yield
        folders.clear()


def path() -> str:
    return str(folders[0] / f"{next(numbers)}.db")


def sqlite() -> SqliteTransport:
    return SqliteTransport(path(), clock=FakeClock())


@pytest.mark.parametrize("scenario", conformance_params(sqlite, SUPPORTS))
def test_sqlite_keeps_the_contract(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize(
    "scenario", conformance_params(lambda: SqliteTransport(path()), themes=("leases",))
)
def test_sqlite_keeps_it_by_the_real_clock(scenario: Callable[[], None]) -> None:
    scenario()
