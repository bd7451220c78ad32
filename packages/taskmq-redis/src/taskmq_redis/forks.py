"""What a child made by fork must not share with its parent: connections, threads, and held locks."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something that must be made anew in a child."""

    def after_fork(self) -> None:
        """Forget what is the parent's. Runs in the child before anything else of it."""
        ...


_known: WeakSet[Forked] = WeakSet()


def renew_in_children(one: Forked) -> None:
    """Have `after_fork` called in each child, while the object lives."""
    _known.add(one)


def _renew() -> None:
    for one in list(_known):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
