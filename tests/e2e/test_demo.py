"""The demo, on little, as a person would start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, str(ROOT / "docs/examples/demo/run.py")]


def make_files(folder: Path, count: int) -> None:
    for number in range(count):
        # Every tenth does not parse.
        text = "def broken(:\n" if number % 10 == 0 else f"value = {number}\n" * (number + 1)
        (folder / f"file_{number:04}.py").write_text(text)


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        words, capture_output=True, text=True, timeout=150, check=False, env=environment
    )


def test_demo_gives_the_answer_of_a_plain_loop_with_a_worker_killed(tmp_path: Path) -> None:
    make_files(tmp_path, 200)
    done = run([*DEMO, "--folder", str(tmp_path)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed (SIGKILL)" in done.stdout
    assert "180 examined, 20 failed" in done.stdout
    assert "20 x SyntaxError" in done.stdout
    assert "The same answer as a plain loop over the same 200 files" in done.stdout


def test_demo_help_explains_its_options() -> None:
    done = run([*DEMO, "--help"])
    assert done.returncode == 0
    assert "--folder" in done.stdout
    assert "example:" in done.stdout


def test_demo_refuses_a_folder_that_is_none(tmp_path: Path) -> None:
    done = run([*DEMO, "--folder", str(tmp_path / "absent")])
    assert done.returncode == 2
    assert "is not a folder" in done.stderr


def test_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    make_files(tmp_path, 5000)
    with subprocess.Popen(
        [*DEMO, "--folder", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as demo:
        parent = psutil.Process(demo.pid)
        wait_until(lambda: len(parent.children(recursive=True)) >= 2, 30)
        workers = parent.children(recursive=True)
        demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=120)
    assert demo.returncode == 130, errors.decode()
    assert b"interrupted" in output
    wait_until(lambda: not any(worker.is_running() for worker in workers))
