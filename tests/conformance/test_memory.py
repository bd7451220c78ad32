from collections.abc import Callable

import pytest

from taskmq.clock import FakeClock
from taskmq.testing.conformance import conformance_params
from taskmq.transport.memory import MemoryTransport

SUPPORTS = {
    "leases": True,
    "workers": True,
    "job_listing": True,
    "atomic_settle": True,
    "rates": True,
}


def memory() -> MemoryTransport:
    return MemoryTransport(clock=FakeClock())


@pytest.mark.parametrize("scenario", conformance_params(memory, SUPPORTS))
def test_memory_keeps_the_contract(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize("scenario", conformance_params(MemoryTransport, themes=("leases",)))
def test_memory_keeps_it_by_the_real_clock(scenario: Callable[[], None]) -> None:
    scenario()
