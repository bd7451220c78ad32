"""An environment for child processes whose loaded modules are looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping


def unmeasured(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without the coverage hook, which would load sqlite3 and more by itself."""
    given = os.environ if environment is None else environment
    return {name: value for name, value in given.items() if not name.startswith("COVERAGE")}
