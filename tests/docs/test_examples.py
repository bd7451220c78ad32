"""Every example runs: the Python of each page in order, and the shell lines of the tutorials.

A fence ```python file=NAME is also saved under that name. A page's examples share one folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(python|bash)([^\n]*)\n(.*?)^```$", re.M | re.S)
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")]
    if re.search(r"^```python", path.read_text(encoding="utf-8"), re.M)
)
SHELL = """
import subprocess as _subprocess
_subprocess.run({line!r}, shell=True, check=True, timeout=60)
"""


def script_of(page: Path, folder: Path) -> str:
    """The page as one Python script; files it shows are written."""
    runs_shell = page.parent.name == "tutorials"
    parts: list[str] = []
    for language, options, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            if match := re.search(r"file=(\S+)", options):
                (folder / match[1]).write_text(body, encoding="utf-8")
            else:
                parts.append(body)
        elif runs_shell:
            lines = [line for line in body.splitlines() if line.startswith("taskmq ")]
            parts += [SHELL.format(line=line) for line in lines]
    # A future import must stand first, wherever the page has it.
    return "\n".join(parts)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_examples_of_the_page_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(script_of(page, tmp_path), encoding="utf-8")
    programs = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": programs + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]


def test_there_are_pages_with_examples() -> None:
    assert len(PAGES) >= 4
