"""Where the console script starts: `taskmq health` in its plain forms answers without click."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    words = sys.argv[1:]
    if words[:1] == ["health"]:
        from taskmq_cli.probe import plain

        code = plain(words[1:])
        if code is not None:
            sys.exit(code)
    from taskmq_cli.main import main as run

    run()
