"""The pages are true to the code: links lead somewhere, generated pages are fresh, commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_config_page_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/reference/generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: hatch run reference"


def test_every_config_field_is_explained() -> None:
    rows = re.findall(
        r"^\| `(\w+)` .*\| (.*) \|$", (ROOT / "docs/reference/config.md").read_text(), re.M
    )
    assert len(rows) > 30
    assert [name for name, text in rows if len(text) < 10] == []


def test_every_command_that_the_pages_name_exists() -> None:
    from taskmq_cli.main import cli

    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"(?:^|`)taskmq (?:--app \S+ )?([a-z]+)", text, re.M))
    assert {"worker", "status", "dlq"} <= named
    assert named - set(cli.list_commands(None)) == set()  # type: ignore[arg-type]
