"""`hatch run test`: every suite in order, the unit tests on two more Pythons, and a table at the end.

`--coverage` runs the suites that measure code under branch coverage, child processes included, and
asks for 90 % of each wheel.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support import services

ROOT = Path(__file__).resolve().parents[2]
SUITES = (
    "unit",
    "typing",
    "conformance",
    "integration",
    "e2e",
    "acceptance",
    "chaos",
    "docs",
    "packaging",
)
MEASURED = ("unit", "conformance", "integration", "e2e", "acceptance", "docs")
WHEELS = {
    "taskmq-core": "taskmq",
    "taskmq-worker": "taskmq_worker",
    "taskmq-cli": "taskmq_cli",
    "taskmq-postgres": "taskmq_postgres",
    "taskmq-redis": "taskmq_redis",
}
SIDE_BY_SIDE = {
    "unit": "load",
    "conformance": "load",
    # A file's tests stay together: many files start servers of their own once.
    "integration": "loadfile",
    "e2e": "loadfile",
    "acceptance": "loadfile",
    "chaos": "load",
}
"""Suites that run on two cores at once, and how their tests are dealt out."""
AT_LEAST = 90
FLAKY: list[str] = []
"""Tests that failed and then passed alone."""
SUITE_TIMEOUT = 1800.0
"""A suite that hangs after its last test, on a thread that was left behind, ends here."""
OLDEST, NEWEST = (3, 10), (3, 14)
IN_CI = os.environ.get("CI") == "true"


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def look_for_servers() -> bool:
    """Install what is missing where that is allowed; False when the tests must not go on."""
    services.install(sorted(services.SERVERS))
    complete = True
    for name, server in sorted(services.SERVERS.items()):
        if server.missing():
            complete = False
            hint = f"apt-get install {server.package}"
            say(f"{name}: not found, its tests are {'needed' if IN_CI else 'skipped'} ({hint})")
        else:
            print(f"{name}: found {server.find(server.programs[0])}", flush=True)
    return complete or not IN_CI


def has_tests(suite: str) -> bool:
    return any((ROOT / "tests" / suite).rglob("test_*.py"))


def run(words: list[str], **environment: str) -> bool:
    try:
        done = subprocess.run(
            words, cwd=ROOT, env={**os.environ, **environment}, check=False, timeout=SUITE_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        say(f"ended after {SUITE_TIMEOUT:.0f} s: {' '.join(words[:6])}")
        return False
    return done.returncode == 0


def pytest(suite: str, python: str = sys.executable, *, coverage: bool, extra: list[str]) -> bool:
    start = ["-m", "coverage", "run", "-m", "pytest"] if coverage else ["-m", "pytest"]
    dealt = None if coverage else SIDE_BY_SIDE.get(suite)
    spread = ["-n", "2", "--dist", dealt] if dealt else []
    words = [python, *start, f"tests/{suite}", "-q", *extra]
    if run([*words, *spread]):
        return True
    # Once more, alone: was it the change, or the machine? Either way the failure stands above, and a test
    # that passes now is named as flaky below, which is a bug to be looked for.
    failed = last_failed()
    say(f"{suite}: {len(failed)} failed; once more, alone")
    if not failed or not run([*words, "--last-failed", "--last-failed-no-failures=none"]):
        return False
    FLAKY.extend(failed)
    return True


def last_failed() -> list[str]:
    """The tests that failed in the last run, as pytest remembers them."""
    file = ROOT / ".pytest_cache/v/cache/lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def pythons() -> Iterator[tuple[tuple[int, int], str]]:
    """Every supported Python found: on PATH, and where version managers keep theirs."""
    folders = [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    home = Path.home()
    for pattern in (
        ".pyenv/versions/*/bin",
        ".local/share/uv/python/*/bin",
        ".local/share/hatch/pythons/*/python/bin",
        ".asdf/installs/python/*/bin",
    ):
        folders += sorted(home.glob(pattern))
    folders += [Path("/usr/bin"), Path("/usr/local/bin"), *sorted(Path("/opt").glob("*/bin"))]
    for folder in folders:
        for minor in range(OLDEST[1], NEWEST[1] + 1):
            program = folder / f"python3.{minor}"
            if program.is_file() and os.access(program, os.X_OK):
                yield (3, minor), str(program)


def works(program: str) -> bool:
    probe = "import sqlite3, ssl, venv, sys; print(sys.version_info[:2])"
    done = subprocess.run([program, "-c", probe], capture_output=True, check=False)
    return done.returncode == 0


def other_pythons() -> list[tuple[str, str]]:
    """The oldest and the newest one that work, without the one that runs this."""
    found: dict[tuple[int, int], str] = {}
    for version, program in pythons():
        if version not in found and version != sys.version_info[:2] and works(program):
            found[version] = program
    current = (sys.version_info[0], sys.version_info[1])
    chosen = {min([*found, current]), max([*found, current])} - {current}
    return [(f"{major}.{minor}", found[major, minor]) for major, minor in sorted(chosen)]


def unit_tests_on(version: str, program: str, extra: list[str]) -> bool:
    """The unit tests in an environment of their own, made from scratch by uv."""
    folder = ROOT / f".venv-py{version.replace('.', '')}"
    uv = shutil.which("uv") or "uv"
    members = [f"--editable={path.parent}" for path in ROOT.glob("packages/*/pyproject.toml")]
    needs = [
        "pytest>=9",
        "pytest-timeout",
        "pytest-randomly",
        "pytest-xdist",
        "hypothesis",
        "psutil",
        "psycopg[binary]",
    ]
    python = str(folder / "bin" / "python")
    quiet = {"VIRTUAL_ENV": "", "UV_NO_PROGRESS": "1"}
    return (
        run([uv, "venv", "-q", "--clear", "--python", program, str(folder)], **quiet)
        and run([uv, "pip", "install", "-q", "--python", python, *members, *needs], **quiet)
        and pytest("unit", python, coverage=False, extra=[*extra, "--ignore=tests/unit/repo"])
    )


def report_coverage() -> bool:
    """Combine what all processes measured, and hold each wheel to the bar."""
    coverage = [sys.executable, "-m", "coverage"]
    run([*coverage, "combine", "-q"])
    good = True
    for wheel, package in WHEELS.items():
        say(f"coverage of {wheel} (branches and child processes included)")
        include = f"--include=packages/{wheel}/src/{package}/*"
        good &= run([*coverage, "report", include, f"--fail-under={AT_LEAST}"])
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="hatch run test", description=__doc__)
    parser.add_argument(
        "--coverage", action="store_true", help="measure, and ask for 90 %% a wheel"
    )
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this suite")
    wanted, extra = parser.parse_known_args()
    suites = wanted.suite or (MEASURED if wanted.coverage else SUITES)
    rows: list[tuple[str, str, float]] = []

    def step(name: str, passed: bool, since: float) -> None:
        rows.append((name, "passed" if passed else "FAILED", time.monotonic() - since))

    if not look_for_servers():
        say("CI=true asks for every server: see the lines above")
        return 1
    if wanted.coverage:
        run([sys.executable, "-m", "coverage", "erase"])
    for suite in filter(has_tests, suites):
        say(f"{suite} (Python {sys.version_info.major}.{sys.version_info.minor})")
        start = time.monotonic()
        step(suite, pytest(suite, coverage=wanted.coverage, extra=extra), start)
    if wanted.coverage:
        start = time.monotonic()
        step(f"coverage >= {AT_LEAST} %", report_coverage(), start)
    elif not wanted.suite:
        others = other_pythons()
        for version, program in others:
            say(f"unit (Python {version}, {re.sub(str(Path.home()), '~', program)})")
            start = time.monotonic()
            step(f"unit on {version}", unit_tests_on(version, program, extra), start)
        if not others:
            say("no other supported Python found: the unit tests ran on this one only")
    say("summary")
    for name, verdict, seconds in rows:
        print(f"{name:<20} {verdict:<8} {seconds:6.1f} s")
    for test in FLAKY:
        print(f"flaky: {test}")
    return int(any(verdict == "FAILED" for _, verdict, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
