"""The worked example of a workflow, as a person would start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[2] / "docs/examples/compress/run.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), *words], capture_output=True, text=True, timeout=80, check=False
    )


def test_a_segment_fails_twice_and_a_step_is_done_elsewhere() -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compress[2], attempt 1: no space left" in done.stdout
    assert "compress[2], attempt 2: no space left" in done.stdout
    assert re.search(r"signed [0-9a-f]{16} by process \d+", done.stdout)
    found = re.search(r"(\d+) parts, [\d,]+ bytes, (\d+)% of the file", done.stdout)
    assert found is not None
    assert int(found[1]) > 5
    assert int(found[2]) < 50
    assert "flowchart TD" in done.stdout


def test_an_empty_file_has_no_segments_and_ends_too(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    done = run("--file", str(empty))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 parts" in done.stdout
