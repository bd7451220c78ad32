"""Each wheel, installed alone: it imports, its entry points resolve, it brings only what it says."""

from __future__ import annotations

import json
import re
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.installed import Installed

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""
ENTRY_POINTS = """
import sys
from importlib.metadata import distribution
points = [p for p in distribution(sys.argv[1]).entry_points]
for point in points:
    point.load()
print(len(points))
"""
LIST = """
import json
from importlib.metadata import distributions
print(json.dumps(sorted(d.metadata["Name"].lower() for d in distributions())))
"""
DIRECT = {
    "taskmq-core": set(),
    "taskmq-worker": {"taskmq-core"},
    "taskmq-cli": {"taskmq-core"},
    "taskmq-postgres": {"taskmq-core"},
    "taskmq-redis": {"taskmq-core"},
}


def test_every_module_imports(installed: Installed) -> None:
    count = int(installed.run("-c", IMPORT_ALL, installed.package).stdout)
    assert count >= 3


def test_every_entry_point_resolves(installed: Installed) -> None:
    count = int(installed.run("-c", ENTRY_POINTS, installed.distribution).stdout)
    assert count >= 1


def test_wheel_brings_only_the_wheels_it_names(installed: Installed) -> None:
    found = json.loads(installed.run("-c", LIST).stdout)
    ours = {name for name in found if name.startswith("taskmq")}
    assert ours == DIRECT[installed.distribution] | {installed.distribution}


def test_archives_are_typed_licensed_and_clean(wheels: Path) -> None:
    archives = sorted(wheels.glob("*.whl"))
    assert len(archives) == len(DIRECT)
    assert len(list(wheels.glob("*.tar.gz"))) == len(DIRECT)
    for archive in archives:
        with zipfile.ZipFile(archive) as content:
            names = content.namelist()
            metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
            fields = Parser().parsestr(content.read(metadata).decode())
        package = names[0].split("/")[0]
        assert f"{package}/py.typed" in names
        assert fields["License-Expression"] == "MIT"
        assert fields["Requires-Python"] == ">=3.10"
        assert re.match(r"2\.[1-4]$", fields["Metadata-Version"])
        assert {name.split("/")[0] for name in names} == {
            package,
            metadata.split("/")[0],
        }


def test_import_is_lean_and_quick(installed: Installed) -> None:
    if installed.distribution != "taskmq-core":
        return
    script = """
import sys, time
before = set(sys.modules)
start = time.process_time()
import taskmq
spent = time.process_time() - start
new = set(sys.modules) - before
banned = ("taskmq.transport.memory", "taskmq.transport.sqlite", "sqlite3", "importlib.metadata", "taskmq_cli",
          "taskmq_worker", "click", "rich", "asyncio", "taskmq.testing")
print([n for n in new if n.startswith(banned)], file=sys.stderr)
print(spent)
"""
    runs = [installed.run("-c", script) for _ in range(3)]
    assert {run.stderr.strip() for run in runs} == {"[]"}
    # Generous against a busy machine; it catches a heavy import, not a slow day.
    assert min(float(run.stdout) for run in runs) < 0.6


def test_python_dash_m_prints_the_version(installed: Installed) -> None:
    done = installed.run("-m", "taskmq", "--version")
    assert re.search(r"\d+\.\d+\.\d+", done.stdout)


def test_module_without_the_cli_names_the_wheel_to_install(installed: Installed) -> None:
    if installed.distribution == "taskmq-cli":
        return
    done = installed.run("-m", "taskmq", "status", check=False)
    assert done.returncode == 2
    assert "taskmq-cli" in done.stderr
    assert "Traceback" not in done.stderr
