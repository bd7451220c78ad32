from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from taskmq_cli import output


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        ("grüße", "grüße"),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        (math.nan, None),
        (math.inf, None),
        (2**80, 2**80),
        ({1: "x"}, {"1": "x"}),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 1, 2, tzinfo=timezone.utc), "2026-01-02T00:00:00Z"),
        (b"\xff", "/w=="),
        ({3}, [3]),
        (object, "<class 'object'>"),
        ("\ud800", "\ud800"),
    ],
)
def test_any_value_becomes_one_json_document(value: object, shown: object) -> None:
    assert json.loads(output.to_json(value)) == shown
    assert json.loads(output.to_json(value, indent=0)) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.2, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7200, "2 h"),
        (172_800, "2 d"),
        (-5, "0 s"),
    ],
)
def test_ages_are_told_in_their_largest_unit(seconds: float | None, shown: str) -> None:
    assert output.age(seconds) == shown


def test_instants_beyond_the_calendar_are_told_all_the_same() -> None:
    assert output.instant(1e20).startswith("1e+20")
    assert output.instant(0) == output.instant(None) == ""
    assert output.instant(86_400) == "1970-01-02 00:00:00+00:00"


def test_tables_fold_long_cells_and_print_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output.show(output.table(("name", ">n"), [("y" * 200, 1), ("a\x1b[31m[bold]", 2)]))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    assert "[bold]" in out
    assert out.count("y") == 200
