"""CPU-bound jobs of 5 ms on sqlite: how much faster two replicas are than one.

The time counts from the first start to the last end of a job, so that no start-up is measured. On a
machine whose cores are busy otherwise the ratio says little.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure

from taskmq import App, Config

APP = """
from taskmq import App, Config

app = App(Config(events="null", transport="sqlite:///jobs.db"))


@app.task
def compute(rounds: int) -> int:
    total = 0
    for n in range(rounds):
        total += n * n
    return total
"""


def rounds_for(seconds: float) -> int:
    """How many rounds of the task's loop take this long here."""
    count = 200_000
    begun = time.process_time()
    total = 0
    for n in range(count):
        total += n * n
    return int(count * seconds / (time.process_time() - begun))


def measure(replicas: int, jobs: int, rounds: int) -> float:
    """Jobs a second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cpu.py").write_text(APP)
        environment = {**os.environ, "TASKMQ_APP": "cpu:app", "PYTHONPATH": name}
        with App(Config(transport=f"sqlite:///{folder}/jobs.db", events="null")) as app:
            handles = [app.send("cpu.compute", (rounds,)) for _ in range(jobs)]
            words = ["worker", "-c", "1", "--replicas", str(replicas)]
            worker = subprocess.Popen(
                [sys.executable, "-m", "taskmq_cli", *words],
                cwd=name,
                env=environment,
                stderr=subprocess.DEVNULL,
            )
            try:
                app.transport.wait_jobs([each.id for each in handles], 300.0)
                records = app.transport.get_jobs([each.id for each in handles])
            finally:
                worker.send_signal(signal.SIGTERM)
                worker.wait(30)
    started = min(each.started_at or 0.0 for each in records if each is not None)
    ended = max(each.finished_at or 0.0 for each in records if each is not None)
    return jobs / (ended - started)


def figures(runs: int, jobs: int = 400) -> list[Figure]:
    """How much faster two replicas are than one."""
    group = "replicas, CPU-bound jobs of 5 ms on sqlite"
    rounds = rounds_for(0.005)
    pairs = [(measure(1, jobs, rounds), measure(2, jobs, rounds)) for _ in range(runs)]
    return [
        Figure.of(group, "one", "jobs/s", [one for one, _ in pairs]),
        Figure.of(group, "two", "jobs/s", [two for _, two in pairs]),
        Figure.of(
            group, "ratio, two / one", "", [two / one for one, two in pairs], "goal: at least 1.5"
        ),
    ]
