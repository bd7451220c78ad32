"""What `taskmq doctor` finds about a server: is it right, and will it stay quick?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TaskmqError
from taskmq.transport.types import Finding
from taskmq_postgres.listener import Listener
from taskmq_postgres.migrate import known

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskmq_postgres.database import Database

OLDEST_VERSION: Final = 120000
OLD_SNAPSHOT: Final = 300.0
"""From this age on a snapshot is warned of, seconds: so much of what is dead can't be removed."""
_SKEW = 5.0
_MANY_DEAD = 50_000

_SETTINGS = (
    "SELECT name, setting FROM pg_settings WHERE name IN ('server_version_num', 'server_version', "
    "'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', "
    "'server_encoding', 'transaction_read_only')"
)
_RIGHTS = (
    "SELECT c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND starts_with(c.relname, %s) AND CASE c.relkind "
    "WHEN 'r' THEN NOT (has_table_privilege(c.oid, 'SELECT') AND "
    "(c.relname = %s OR has_table_privilege(c.oid, 'INSERT') AND "
    "has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))) "
    "WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') ELSE false END"
)
_SNAPSHOTS = (
    "SELECT what, age FROM ("
    "SELECT format('session %%s of %%s (%%s, %%s)', pid, coalesce(usename, '?'), "
    "coalesce(nullif(application_name, ''), '?'), coalesce(state, backend_type)) AS what, "
    "date_part('epoch', statement_timestamp() - xact_start) AS age "
    "FROM pg_stat_activity WHERE coalesce(backend_xid, backend_xmin) IS NOT NULL "
    "AND pid <> pg_backend_pid() AND datname = current_database() "
    "UNION ALL SELECT format('prepared transaction %%s', gid), "
    "date_part('epoch', statement_timestamp() - prepared) FROM pg_prepared_xacts "
    "WHERE database = current_database()"
    ") holders ORDER BY age DESC NULLS LAST LIMIT 1"
)
_SLOTS = (
    "SELECT slot_name FROM pg_replication_slots WHERE NOT active AND "
    "(xmin IS NOT NULL OR catalog_xmin IS NOT NULL)"
)
_DEAD_ROWS = (
    "SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = %s AND "
    "starts_with(relname, %s) AND n_dead_tup > %s AND n_dead_tup > 4 * n_live_tup ORDER BY 2 DESC"
)
_CONNECTIONS = (
    "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), "
    "current_setting('max_connections')::integer"
)


def findings(database: Database) -> list[Finding]:
    """Look at the server, our tables in it, and the way to it."""
    try:
        return list(_look(database))
    except TaskmqError as error:
        return [_error("server", str(error), "nothing can be enqueued or run until this is mended")]


def dangers(database: Database) -> list[Finding]:
    """The settings under which the server may lose what it has confirmed."""
    return list(_durability(dict(database.query(_SETTINGS))))


def _look(database: Database) -> Iterator[Finding]:
    settings: dict[str, str] = dict(database.query(_SETTINGS))
    yield _version(settings)
    yield from _role(database, settings)
    yield _schema(database)
    yield _rights(database)
    yield from _durability(settings)
    yield _clock(database)
    yield _snapshot(database)
    yield from _vacuum(database, settings)
    yield _connections(database)
    yield _wake_up(database)


def _version(settings: dict[str, str]) -> Finding:
    version = settings["server_version"]
    if int(settings["server_version_num"]) < OLDEST_VERSION:
        return _error("server", f"PostgreSQL {version}", "taskmq needs PostgreSQL 12 or newer")
    return _ok("server", f"PostgreSQL {version} answers")


def _role(database: Database, settings: dict[str, str]) -> Iterator[Finding]:
    if database.query("SELECT pg_is_in_recovery()")[0][0]:
        yield _error(
            "server",
            "this is a standby: it takes no writes",
            "name all servers in the URL (//a:5432,b:5432/…), then the primary is found by itself",
        )
    elif settings["transaction_read_only"] == "on":
        yield _error("server", "it is read-only", "see default_transaction_read_only of the role")
    if settings["server_encoding"] != "UTF8":
        yield _warning(
            "encoding",
            f"the database is encoded in {settings['server_encoding']}",
            "names outside of it are refused; make the database with ENCODING 'UTF8'",
        )


def _schema(database: Database) -> Finding:
    with database.housekeeping() as connection:
        found = database.migrations.version(connection)
    latest = known()[-1].version
    if found > latest:
        text = f"schema version {found} is newer than this taskmq, which knows {latest}"
        return _warning("schema", text, "upgrade this installation too")
    return _ok("schema", f"schema version {found}")


def _rights(database: Database) -> Finding:
    settings = database.settings
    lacking = database.query(
        _RIGHTS, [settings.schema, settings.prefix, settings.prefix + "migrations"]
    )
    if not lacking:
        return _ok("rights", "the role may read and write all tables")
    names = ", ".join(sorted(name for name, _ in lacking)[:5])
    return _error(
        "rights",
        f"the role lacks rights on {len(lacking)} of our tables and sequences ({names})",
        "grant SELECT, INSERT, UPDATE, DELETE on the tables and USAGE on the sequences",
    )


def _durability(settings: dict[str, str]) -> Iterator[Finding]:
    for name in ("fsync", "full_page_writes"):
        if settings[name] != "on":
            yield _warning(
                "durability", f"{name} is {settings[name]}", "a power cut can lose everything"
            )
    if settings["synchronous_commit"] == "off":
        yield _warning(
            "durability",
            "synchronous_commit is off",
            "a crash of the server loses the last moments: jobs that were accepted",
        )


def _clock(database: Database) -> Finding:
    before = SYSTEM_CLOCK.time()
    server = float(database.query(database.names.statement("SELECT {now}()"))[0][0])
    skew = server - (before + SYSTEM_CLOCK.time()) / 2
    text = f"the server's clock is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
    if abs(skew) > _SKEW:
        return _warning("clock", text, "jobs go by the server's clock; an eta is meant by it too")
    return _ok("clock", text)


def _snapshot(database: Database) -> Finding:
    slots = database.query(_SLOTS)
    if slots:
        return _warning(
            "snapshot",
            f"the replication slot {slots[0][0]} is unused and keeps dead rows from being removed",
            "use it or drop it: pg_drop_replication_slot",
        )
    rows = database.query(_SNAPSHOTS)
    if not rows or rows[0][1] is None:
        return _ok("snapshot", "no old snapshot is held")
    who, age = rows[0]
    text = f"the oldest snapshot is {age:,.0f} s old, held by {who}"
    if age > OLD_SNAPSHOT:
        return _warning(
            "snapshot",
            text,
            "dead rows stay while it lives and claims get slower: end that transaction, and see "
            "idle_in_transaction_session_timeout",
        )
    return _ok("snapshot", text)


def _vacuum(database: Database, settings: dict[str, str]) -> Iterator[Finding]:
    for name in ("autovacuum", "track_counts"):
        if settings[name] != "on":
            yield _error("vacuum", f"{name} is off", "tables only grow: turn it on")
            return
    own = database.settings
    rows = database.query(_DEAD_ROWS, [own.schema, own.prefix, _MANY_DEAD])
    if rows:
        yield _warning(
            "vacuum",
            f"{rows[0][0]} has {rows[0][1]:,} dead rows",
            "an old snapshot or a slow autovacuum: VACUUM it, and see autovacuum_max_workers",
        )
    else:
        yield _ok("vacuum", "autovacuum keeps up")


def _connections(database: Database) -> Finding:
    used, most = database.query(_CONNECTIONS)[0]
    text = f"{used} of {most} connections are used, this handle opens at most "
    text += f"{database.settings.connections + 2}"
    if used > 0.9 * most:
        return _warning("connections", text, "put a pooler between, or raise max_connections")
    return _ok("connections", text)


def _wake_up(database: Database) -> Finding:
    if database.settings.listen is None:
        return _warning(
            "wake-up",
            "behind a transaction pooler nothing can be heard: idle workers poll",
            "give a direct URL for listening: ?listen=postgresql%3A%2F%2Fhost%2Fdb",
        )
    listener = Listener(database, lambda _: None)
    try:
        if listener.start(3.0):
            return _ok("wake-up", "notifications arrive")
        return _warning(
            "wake-up",
            f"notifications do not arrive, idle workers poll: {listener.error or 'none came'}",
            "behind a pooler say ?pooler=transaction, and ?listen= with a direct URL",
        )
    finally:
        listener.close()


def _ok(subject: str, message: str) -> Finding:
    return Finding(level="ok", subject=subject, message=message)


def _warning(subject: str, message: str, advice: str) -> Finding:
    return Finding(level="warning", subject=subject, message=message, advice=advice)


def _error(subject: str, message: str, advice: str) -> Finding:
    return Finding(level="error", subject=subject, message=message, advice=advice)
