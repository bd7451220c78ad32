"""`python -m taskmq`: the command line of taskmq-cli, or the version without it."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import taskmq


def main(arguments: list[str]) -> int:
    """Hand over to the console script `taskmq`, or answer what core alone can."""
    for point in entry_points(group="console_scripts", name="taskmq"):
        sys.argv[0] = "taskmq"
        return int(point.load()() or 0)
    if arguments == ["--version"]:
        print(f"taskmq {taskmq.__version__}")
        return 0
    print(
        "the command line needs the distribution taskmq-cli: pip install taskmq-cli",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
