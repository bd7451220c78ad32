"""What mypy --strict and pyright strict infer of tasks, and what they refuse (C154)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "packages" / "taskmq-core" / "src"
TIMEOUT = 240
Checker = Callable[[Path, Path], set[int]]


def mypy(path: Path, cache: Path) -> set[int]:
    """The lines of the file with errors."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--python-version=3.10",
        f"--cache-dir={cache}",
        "--no-error-summary",
        "--hide-error-context",
        str(path),
    ]
    environment = {**os.environ, "MYPYPATH": str(SOURCE)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, cwd=cache, env=environment
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(rf"{path.name}:(\d+):(?:\d+:)? error: (.*)", done.stdout)
    assert done.returncode == bool(found), done.stdout
    return {int(line) for line, _ in found}


def pyright(path: Path, cache: Path) -> set[int]:
    """The lines of the file with errors."""
    settings = {
        "include": [os.path.relpath(path, cache)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.10",
        "extraPaths": [str(SOURCE)],
        # Statements without effect are how this file shows things.
        "reportUnusedExpression": False,
        "reportUnknownMemberType": False,
        "reportUnknownLambdaType": False,
    }
    (cache / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        cwd=cache,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, done.stdout
    errors = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    return {each["range"]["start"]["line"] + 1 for each in errors}


CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright])


def marked(path: Path) -> set[int]:
    lines = path.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


@pytest.mark.timeout(300)
@CHECKERS
def test_right_uses_pass_with_the_inferred_types(checker: Checker, tmp_path: Path) -> None:
    pytest.importorskip(checker.__name__)
    assert checker(HERE / "right_uses.py", tmp_path) == set()


@pytest.mark.timeout(300)
@CHECKERS
def test_wrong_uses_are_errors_and_nothing_else_is(checker: Checker, tmp_path: Path) -> None:
    pytest.importorskip(checker.__name__)
    # No .py in the repository, or every other check would have to leave it out.
    path = Path(shutil.copy(HERE / "wrong_uses.txt", tmp_path / "wrong_uses.py"))
    expected = marked(path)
    assert len(expected) > 20
    assert checker(path, tmp_path) == expected
