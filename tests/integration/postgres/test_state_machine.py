"""Random calls against PostgreSQL, compared with a simple model after each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from support import postgres
from taskmq.clock import FakeClock
from taskmq.transport import Transport
from unit.core.test_transport_state_machine import BOUNDED, TransportMachine


@pytest.fixture(scope="module")
def place() -> Iterator[postgres.Place]:
    with postgres.server() as service:
        place = postgres.Place(service.url, moved=True)
        yield place
        place.close()


def machine_on(place: postgres.Place) -> type[TransportMachine]:
    class PostgresMachine(TransportMachine):
        def make(self, clock: FakeClock) -> Transport:
            transport = place.transport()
            assert isinstance(transport, postgres.MovedTransport)
            self.clock = transport.clock
            return transport

    return PostgresMachine


@pytest.mark.timeout(180)
def test_postgres_agrees_with_the_model(place: postgres.Place) -> None:
    run_state_machine_as_test(
        machine_on(place), settings=settings(BOUNDED, max_examples=40, stateful_step_count=30)
    )


@pytest.mark.timeout(180)
def test_postgres_agrees_with_the_model_while_floors_are_used(place: postgres.Place) -> None:
    for slow in ("is_slow_1", "is_slow_reap_1"):
        place.run(
            f"CREATE OR REPLACE FUNCTION {{{slow}}}(began timestamptz) RETURNS boolean "
            "LANGUAGE sql AS $$ SELECT true $$"
        )
    run_state_machine_as_test(
        machine_on(place), settings=settings(BOUNDED, max_examples=25, stateful_step_count=30)
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_postgres_agrees_with_the_model_for_long(place: postgres.Place) -> None:
    long = settings(BOUNDED, max_examples=400, stateful_step_count=150)
    run_state_machine_as_test(machine_on(place), settings=long)
