from __future__ import annotations

from pathlib import Path

from taskmq_cli.reference import render

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_command_line_page_is_what_the_help_texts_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "stale: python -m taskmq_cli.reference > docs/reference/cli.md"
    )
