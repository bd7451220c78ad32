"""What `import taskmq` costs: no backend, no other wheel, no scan of entry points."""

from __future__ import annotations

import subprocess
import sys

from support.unmeasured import unmeasured


def test_importing_taskmq_scans_no_entry_points_and_loads_no_backend() -> None:
    code = (
        "import sys\n"
        "import importlib.metadata as metadata\n"
        "def fail(*a, **k): raise SystemExit('scanned entry points')\n"
        "metadata.entry_points = metadata.distributions = fail\n"
        "import taskmq, taskmq.config, taskmq.plugins, taskmq.events, taskmq.protocol.codec\n"
        "taskmq.config.Config()\n"
        "loaded = [n for n in sys.modules if n.startswith(('taskmq.transport.memory',\n"
        "    'taskmq.transport.sqlite', 'taskmq_', 'sqlite3', 'click', 'rich'))]\n"
        "raise SystemExit(f'loaded {loaded}' if loaded else 0)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=unmeasured(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
