"""`python -m taskmq_cli`: the same as the console script."""

from __future__ import annotations

from taskmq_cli.start import main

if __name__ == "__main__":
    main()
