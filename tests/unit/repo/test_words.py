"""What must not stand in the sources: paths of one machine, unreasoned ignores, banned calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = {".py", ".md", ".toml", ".ini", ".yml", ".json", ".sql", ""}
IGNORE = re.compile(
    r"#\s*(type: ignore|pyright: ignore|noqa|pragma: no cover)(?P<code>[\[:(\w, \]\-]*)"
)
# Put together here, so that this file does not find itself.
PATHS = re.compile("/(" + "|".join(["work", "farm", "root", "home"]) + r")/[a-z]")
PLACES = re.compile("|".join(["pypi" + r"\.", "files" + "pythonhosted", "registry" + r"\.npm"]))


def sources(*folders: str, suffix: str = ".py") -> list[Path]:
    found = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob(f"*{suffix}"))
        if not any(part.startswith((".venv", "__pycache__", ".git/")) for part in path.parts)
    ]
    assert found
    return found


def lines(path: Path) -> list[tuple[int, str]]:
    return list(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))


def test_no_path_of_one_machine_and_no_registry_host() -> None:
    everywhere = [
        *sources("packages", "tests", "docs"),
        *sources("packages", "docs", suffix=".md"),
        *sources("packages", suffix=".toml"),
        *[p for p in (ROOT / ".ci").iterdir() if p.is_file()],
        *[p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT and p.name != ".coverage"],
    ]
    bad = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in everywhere
        if path.name != ".git" and not path.name.startswith(".coverage.")
        for number, line in lines(path)
        if PATHS.search(line) or PLACES.search(line)
    ]
    assert bad == []


@pytest.mark.parametrize("folder", ["packages", "tests"])
def test_every_ignore_names_its_code_and_its_reason(folder: str) -> None:
    bad: list[str] = []
    for path in sources(folder):
        content = lines(path)
        for number, line in content:
            match = IGNORE.search(line)
            if match is None or path == Path(__file__):
                continue
            above = content[number - 2][1].strip() if number > 1 else ""
            tail = line[match.end() :].strip()
            reasoned = above.startswith("#") or IGNORE.search(above) or len(tail) > 10
            coded = match["code"].strip(": ") or match[1] == "pragma: no cover"
            if not (coded and (reasoned or folder == "tests")):
                bad.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert bad == []


def test_todo_names_an_issue() -> None:
    marker = re.compile(r"\b(TODO|FIXME|XXX)\b(?! ?\(?#\d+)")
    bad = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources("packages")
        for number, line in lines(path)
        if marker.search(line)
    ]
    assert bad == []


def test_nothing_pickles_and_only_the_clock_reads_the_wall_clock() -> None:
    banned = re.compile(
        r"\bimport (pickle|marshal|shelve|dill)\b|\btime\.time\(\)|datetime\.now\(\)"
    )
    bad = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources("packages")
        if path.name != "clock.py"
        for number, line in lines(path)
        if banned.search(line)
    ]
    assert bad == []
