"""Forked children have ids and event threads of their own."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from taskmq.events import Event, EventBus, EventSink
from taskmq.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


class Remembering(EventSink):
    """Remembers the types of events, on its own thread."""

    def __init__(self) -> None:
        self.types: list[str] = []

    def emit(self, events: Sequence[Event]) -> None:
        self.types += [event.type for event in events]


def test_a_forked_child_makes_ids_of_its_own() -> None:
    parent_first = new_id()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, new_id().encode())
        os._exit(0)
    os.close(writer)
    child = os.read(reader, 100).decode()
    os.close(reader)
    assert os.waitpid(pid, 0)[1] == 0

    parent_next = new_id()

    assert ULID.match(child)
    assert child not in (parent_first, parent_next)
    # The upper half of the randomness is drawn anew, not counted on.
    assert child[10:18] != parent_first[10:18]


def test_a_forked_child_delivers_events_of_its_own() -> None:
    sink = Remembering()
    bus = EventBus([sink])
    bus.emit("parent")
    assert bus.flush(10)
    pid = os.fork()
    if not pid:
        bus.emit("child")
        os._exit(0 if bus.flush(10) and sink.types[-1] == "child" else 1)

    assert os.waitpid(pid, 0)[1] == 0
    assert sink.types == ["parent"]
    bus.close()
