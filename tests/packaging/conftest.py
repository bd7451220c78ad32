"""The wheels, built once, and a fresh environment for each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import Installed

ROOT = Path(__file__).parents[2]
DRIVERS = {"taskmq-postgres": ("psycopg[binary]",)}
"""What a wheel leaves to its user: which build of a driver."""


def command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All wheels, each built through its source archive."""
    folder = tmp_path_factory.mktemp("dist")
    for project in sorted(ROOT.glob("packages/*/pyproject.toml")):
        # A copy, so that a build leaves nothing in the checkout and sees nothing that is not in it.
        copy = tmp_path_factory.mktemp("source") / project.parent.name
        shutil.copytree(project.parent, copy, ignore=shutil.ignore_patterns("__pycache__", "dist"))
        command(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy))
    return folder


@pytest.fixture(
    scope="session", params=[path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")]
)
def installed(
    request: pytest.FixtureRequest, wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    distribution: str = request.param
    folder = tmp_path_factory.mktemp(f"env-{distribution}")
    command(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    wheel = next(wheels.glob(f"{distribution.replace('-', '_')}-*.whl"))
    # Our own wheels come from the folder that was just built, whatever an index may have.
    ours = [f"{path.parent.name}" for path in ROOT.glob("packages/*/pyproject.toml")]
    overrides = folder / "overrides.txt"
    overrides.write_text(
        "".join(
            f"{name} @ {next(wheels.glob(name.replace('-', '_') + '-*.whl')).as_uri()}\n"
            for name in ours
        )
    )
    words = ["pip", "install", "--python", python, "--overrides", str(overrides)]
    log = command("uv", *words, str(wheel), *DRIVERS.get(distribution, ()))
    return Installed(distribution, distribution.replace("-core", "").replace("-", "_"), python, log)
