"""`python -m taskmq` and the package itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

import taskmq
from support.unmeasured import unmeasured
from taskmq import __main__ as entry


def test_all_is_sorted_and_complete() -> None:
    assert taskmq.__all__ == sorted(taskmq.__all__)
    for name in taskmq.__all__:
        assert getattr(taskmq, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = taskmq.nothing


def test_without_the_cli_it_knows_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "entry_points", lambda **_: ())
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out == f"taskmq {taskmq.__version__}\n"
    assert entry.main(["worker"]) == 2
    assert "taskmq-cli" in capsys.readouterr().err


def test_importing_taskmq_loads_no_backend_and_scans_nothing() -> None:
    code = (
        "import sys, taskmq; bad = {'sqlite3', 'asyncio', 'importlib.metadata', 'click', "
        "'taskmq_cli', 'taskmq_worker', 'taskmq.transport.memory', 'taskmq.transport.sqlite', "
        "'taskmq.testing'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=unmeasured(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr


def test_with_the_cli_it_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        @staticmethod
        def load() -> object:
            return lambda: 3

    monkeypatch.setattr(entry, "entry_points", lambda **_: (Point,))
    monkeypatch.setattr(sys, "argv", ["x"])
    assert entry.main(["worker"]) == 3
    assert sys.argv[0] == "taskmq"


def test_the_conformance_suite_is_there_when_asked_for() -> None:
    from taskmq import testing

    assert callable(testing.transport_conformance)
    with pytest.raises(AttributeError):
        _ = testing.nothing
