"""`taskmq health` against real workers: verdicts, exit codes, and what an answer costs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cli import APP, environment, run, started
from support.unmeasured import unmeasured
from support.waiting import wait_until

SLOW_IMPORT = "import pathlib\npathlib.Path('imported').touch()\n"
MEASURED = """
import json, pathlib, re, sys
from taskmq_cli.start import main
try:
    main()
finally:
    status = pathlib.Path("/proc/self/status")
    size = re.search(r"VmHWM:\\s+(\\d+)", status.read_text()) if status.exists() else None
    told = {
        "modules": " ".join(sys.modules),
        "kilobytes": size and int(size[1]),
    }
    print(json.dumps(told), file=sys.stderr)
"""
APP_ENV = {"TASKMQ_APP": "shop:app"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SLOW_IMPORT + APP)
    return tmp_path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(folder: Path, *words: str) -> tuple[int, dict[str, object]]:
    done = run(folder, "health", *words, **APP_ENV)
    return done.returncode, json.loads(done.stdout)


def test_a_file_tells_of_a_worker_that_works_freezes_and_ends(folder: Path) -> None:
    path = str(folder / "health.json")
    code, report = ask(folder, "--file", path)
    assert (code, report["alive"]) == (1, False)
    with started(folder, "worker", "--health-file", path, **APP_ENV) as worker:
        wait_until(lambda: ask(folder, "--file", path)[0] == 0, timeout=20)
        report = ask(folder, "--file", path)[1]
        assert (report["pid"], report["state"]) == (worker.pid, "running")
        assert (report["alive"], report["ready"], report["reasons"]) == (True, True, [])
        written = json.loads(Path(path).read_text())
        Path(path).write_text(json.dumps({**written, "at": written["at"] - 60}))
        os.kill(worker.pid, signal.SIGSTOP)
        Path(path).write_text(json.dumps({**written, "at": written["at"] - 60}))
        code, report = ask(folder, "--file", path)
        assert (code, report["alive"]) == (1, False)
        assert "old" in str(report["reasons"])
        os.kill(worker.pid, signal.SIGCONT)
        wait_until(lambda: ask(folder, "--file", path)[0] == 0, timeout=20)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    assert not Path(path).exists()
    assert [each.name for each in folder.iterdir() if each.name.startswith(".health")] == []


def test_a_port_answers_while_every_slot_is_busy_and_during_the_stop(folder: Path) -> None:
    (folder / "shop.py").write_text(
        APP + "\nimport time, pathlib\n@app.task(queue='email')\ndef slow() -> None:\n"
        "    pathlib.Path('started').touch()\n"
        "    while not pathlib.Path('go').exists():\n        time.sleep(0.01)\n"
    )
    port = free_port()
    words = ("worker", "-c", "1", "--health-port", str(port))
    with started(folder, *words, **APP_ENV) as worker:
        wait_until(lambda: ask(folder, "--port", str(port))[0] == 0, timeout=20)
        for _ in range(3):
            run(folder, "submit", "slow", **APP_ENV)
        wait_until((folder / "started").exists, timeout=20)
        code, report = ask(folder, f"http://127.0.0.1:{port}/")
        assert (code, report["busy"], report["slots"]) == (0, 1, 1)
        worker.send_signal(signal.SIGTERM)
        wait_until(lambda: ask(folder, "--port", str(port))[0] == 1, timeout=10)
        code, report = ask(folder, "--port", str(port), "--live")
        assert (code, report["ready"], report["state"]) == (0, False, "stopping")
        (folder / "go").touch()
        assert worker.wait(20) == 0
    assert ask(folder, "--port", str(port))[0] == 1


def test_an_answer_costs_little_and_imports_no_app(folder: Path) -> None:
    path = folder / "health.json"
    with started(folder, "worker", "--health-file", str(path), **APP_ENV):
        wait_until(lambda: ask(folder, "--file", str(path))[0] == 0, timeout=20)
        (folder / "imported").unlink()
        answers: list[dict[str, object]] = []
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, "-c", MEASURED, "health", "--file", str(path)],
                cwd=folder,
                env=unmeasured(environment(TASKMQ_PLUGINS="shop", **APP_ENV)),
                capture_output=True,
                text=True,
                timeout=20,
                check=True,
            )
            answers.append(json.loads(done.stderr))
        modules = str(answers[0]["modules"]).split()
        # What an answer takes follows from what it imports: a clock would judge the machine as well.
        assert len(modules) < 120
        assert not {"click", "taskmq", "shop"} & set(modules)
        if (kilobytes := answers[0]["kilobytes"]) is not None:
            assert int(str(kilobytes)) < 20_000
        assert not (folder / "imported").exists()


def test_a_port_in_use_and_a_missing_folder_are_told_at_the_start(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(folder, "worker", "--health-port", port, **APP_ENV)
        assert done.returncode == 2
        assert port in done.stderr
    done = run(folder, "worker", "--health-file", "nowhere/health.json", **APP_ENV)
    assert done.returncode == 2
    assert "folder" in done.stderr


@pytest.mark.parametrize(
    "words",
    [(), ("--file", "a", "--port", "1"), ("nonsense",), ("--port", "x"), ("--timeout", "1.5")],
)
def test_a_question_that_names_no_place_is_a_usage_error(
    folder: Path, words: tuple[str, ...]
) -> None:
    done = run(folder, "health", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_something_else_on_the_port_is_no_worker(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        begun = time.monotonic()
        code, report = ask(folder, "--port", str(port), "--timeout", "0.3")
        assert (code, report["alive"]) == (1, False)
        assert time.monotonic() - begun < 15
