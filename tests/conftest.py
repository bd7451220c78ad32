"""What every suite shares: a marker for each folder, a printed seed, and no leaks."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from support.backends import SHARED, backends
from support.waiting import PATIENCE, wait_until

__all__ = ["backends"]

HERE = Path(__file__).parent
SOAK_TIMEOUT = 3600
FOLDERS = {
    "acceptance",
    "unit",
    "typing",
    "conformance",
    "integration",
    "e2e",
    "chaos",
    "docs",
    "packaging",
}
for _name in [name for name in os.environ if name.startswith("TASKMQ_")]:
    # The settings of the person's shell are not part of a test.
    del os.environ[_name]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background: children would not hear of Ctrl-C either, and some are to be stopped by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="the full figures of the faults")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soak = config.getoption("--soak")
    for item in items:
        parts = item.path.relative_to(HERE).parts
        if parts[0] in FOLDERS:
            item.add_marker(parts[0])
        if item.get_closest_marker("soak") and not soak:
            item.add_marker(pytest.mark.skip(reason="full figures: hatch run soak"))
        if limit := item.get_closest_marker("timeout"):
            # For a machine at rest, as in wait_until; the full figures take what they take.
            seconds = SOAK_TIMEOUT if soak else limit.args[0] * PATIENCE
            item.add_marker(pytest.mark.timeout(seconds), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(
    report: pytest.CollectReport | pytest.TestReport,
) -> Generator[None, dict[str, object] | None, dict[str, object] | None]:
    """Captured texts may hold lone surrogates, which do not travel between the processes of xdist."""
    report.sections = [(name, _printable(text)) for name, text in report.sections]
    return (yield)


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> bool:
    """Whether the full figures are wanted; who asks is marked `scaled`, so that `hatch run soak` finds it."""
    return bool(request.config.getoption("--soak"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of a randomised test; TEST_SEED repeats a printed one."""
    value = int(os.environ.get("TEST_SEED") or random.SystemRandom().randrange(2**32))
    request.node.user_properties.append(("seed", value))
    print(f"seed {value}: TEST_SEED={value} repeats it")
    return value


def _threads() -> set[threading.Thread]:
    # Daemon threads end by themselves a moment after their owner was closed or collected.
    return {t for t in threading.enumerate() if t.is_alive()}


def _children() -> set[int]:
    """Pids of this process's children; an empty set where /proc has no such list."""
    pids: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            pids.update(int(pid) for pid in listing.read_text().split())
        except OSError:
            continue
    return pids


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread of ours or a process behind."""
    threads, children = _threads(), _children()
    yield
    if request.node.get_closest_marker("leaks"):
        return

    def left() -> list[str]:
        return [
            f"thread {t.name}"
            for t in _threads() - threads
            if t.name.startswith("taskmq") or not t.daemon
        ] + [f"process {pid}" for pid in _children() - children - SHARED]

    if left():
        gc.collect()
        wait_until(lambda: not left(), timeout=5, what=f"the end of {', '.join(left())}")
