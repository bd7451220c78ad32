"""`python -m taskmq_worker.children`: started by a worker, never by hand."""

from __future__ import annotations

import sys

from taskmq_worker.children.inside import main

if __name__ == "__main__":
    main(sys.argv[1:])
