"""A database per test on one server, copied from one that is migrated already."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from support.pg_servers import PgServer
from taskmq_postgres.transport import PostgresTransport

_TEMPLATE = "migrated"
_numbers = count()


class Databases:
    """Hands out fresh databases of a server."""

    def __init__(self, server: PgServer) -> None:
        self.server = server
        server.run(f"CREATE DATABASE {_TEMPLATE}")
        transport = PostgresTransport.from_url(self.url(_TEMPLATE))
        transport.migrate()
        transport.close()

    def url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.server.port}/{name}"

    def fresh(self, *, migrated: bool = True) -> Iterator[str]:
        """The URL of a new database, which is gone afterwards."""
        name = f"test{next(_numbers)}"
        template = _TEMPLATE if migrated else "template1"
        self.server.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield self.url(name)
        self.server.run(f"DROP DATABASE {name} WITH (FORCE)")
