"""One of our wheels, installed alone in a fresh environment."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Installed:
    """A fresh environment with one of our wheels and what it depends on."""

    distribution: str
    package: str
    python: str
    log: str

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.python, "-I", *words], capture_output=True, text=True, timeout=60, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done
