"""One server for the tests that leave it as it is, and a database of its own for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.pg_databases import Databases
from support.pg_servers import PgServer, pg_server


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    with pg_server() as server:
        yield Databases(server)


@pytest.fixture
def server(databases: Databases) -> PgServer:
    return databases.server


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """A migrated database."""
    yield from databases.fresh()


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    """A database without our tables."""
    yield from databases.fresh(migrated=False)
