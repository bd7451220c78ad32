"""The demo's app: one task that examines one file. Workers import it with `--app taskmq_demo:app`."""

from __future__ import annotations

import ast
import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

from taskmq import App, Config

# Old source files are full of escapes that the compiler warns of; that is not the demo's subject.
warnings.simplefilter("ignore", SyntaxWarning)
warnings.simplefilter("ignore", DeprecationWarning)

QUEUE = "files"

# A short lease, so that the jobs of the killed worker come back while you watch. TASKMQ_TRANSPORT
# says where; a worker finds it there too.
app = App(
    Config(default_queue=QUEUE, lease=4, heartbeat_interval=1, shutdown_timeout=10, events="null")
)


@dataclass(frozen=True)
class Report:
    """What is found in one file."""

    sha256: str
    lines: int
    nodes: int


def examine(path: str) -> Report:
    """Hash a file, count its lines and the nodes of its syntax tree. Raises what the parser raises."""
    content = Path(path).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    nodes = sum(1 for _ in ast.walk(ast.parse(content)))
    return Report(digest, content.count(b"\n"), nodes)


# The task is the same function; without a retry policy a job is tried once, and a file that does not
# parse becomes a dead letter with the parser's words.
examine_file = app.task(name="demo.examine")(examine)
