"""Transactional enqueue from SQLAlchemy and Django, by the psycopg connection below them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from taskmq import App, Config

sqlalchemy = pytest.importorskip("sqlalchemy")
django = pytest.importorskip("django")


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(Config(transport=url, events="null"))
    app.task(name="work")(lambda number: None)
    yield app
    app.close()


def exist(app: App, *handles: Any) -> list[bool]:
    return [each is not None for each in app.transport.get_jobs([each.id for each in handles])]


def test_a_session_of_sqlalchemy_decides(app: App, url: str) -> None:
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    work = app.tasks["work"]

    def enqueue(session: Session, number: int) -> Any:
        raw = session.connection().connection.driver_connection
        return work.apply_async((number,), connection=raw)

    with Session(engine) as session, session.begin():
        kept = enqueue(session, 1)
        with session.begin_nested() as savepoint:
            dropped = enqueue(session, 2)
            savepoint.rollback()
        assert exist(app, kept) == [False]
    with Session(engine) as session:
        rolled_back = enqueue(session, 3)
        session.rollback()
    engine.dispose()
    assert exist(app, kept, dropped, rolled_back) == [True, False, False]


def test_an_asynchronous_session_of_sqlalchemy_decides(app: App, url: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    work = app.tasks["work"]

    async def enqueue(session: AsyncSession, number: int) -> Any:
        raw = (await (await session.connection()).get_raw_connection()).driver_connection
        return await work.aapply_async((number,), connection=raw)

    async def produce() -> list[Any]:
        engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        async with AsyncSession(engine) as session, session.begin():
            kept = await enqueue(session, 1)
            assert exist(app, kept) == [False]
        async with AsyncSession(engine) as session:
            dropped = await enqueue(session, 2)
            await session.rollback()
        await engine.dispose()
        return [kept, dropped]

    assert exist(app, *asyncio.run(produce())) == [True, False]


def test_an_atomic_block_of_django_decides(app: App, url: str) -> None:
    from django.conf import settings

    where = conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": where["dbname"],
        "HOST": where["host"],
        "PORT": where["port"],
        "USER": where["user"],
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database})
        django.setup()
    from django.db import connection, transaction

    # Its types are not known to every checker.
    atomic: Any = transaction.atomic
    work = app.tasks["work"]
    made: list[Any] = []

    def enqueue(number: int) -> None:
        connection.ensure_connection()
        made.append(work.apply_async((number,), connection=connection.connection))

    with atomic():
        enqueue(1)
        with pytest.raises(LookupError), atomic():
            enqueue(2)
            raise LookupError
        assert exist(app, made[0]) == [False]
    connection.close()
    assert exist(app, *made) == [True, False]
