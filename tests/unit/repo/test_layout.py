"""What the repository looks like, and that the wheels move together."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
VISIBLE = {"packages", "tests", "docs", "hatch.toml", "README.md", "LICENSE"}
WORD = re.compile(r'"([^"]+)"')


def tracked() -> list[str]:
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def projects() -> dict[str, str]:
    """The text of each wheel's pyproject.toml, by folder (tomllib is not on every version)."""
    return {path.parent.name: path.read_text() for path in ROOT.glob("packages/*/pyproject.toml")}


def test_top_level_shows_only_what_the_design_names() -> None:
    visible = {name.split("/")[0] for name in tracked()}
    assert {name for name in visible if not name.startswith(".")} == VISIBLE


def test_all_wheels_have_one_version_and_pin_core_to_its_minor() -> None:
    versions = {re.search(r'^version = "(.+)"$', text, re.M)[1] for text in projects().values()}  # type: ignore[index]
    assert len(versions) == 1
    major, minor, _ = versions.pop().split(".")
    for folder, text in projects().items():
        needs = re.findall(r"^dependencies = \[(.*?)\]", text, re.M | re.S)
        pins = re.findall(r'"(taskmq-[a-z]+)([^"]*)"', " ".join(needs))
        ours = {name: pin for name, pin in pins if (ROOT / "packages" / name).is_dir()}
        ours.pop(folder, None)
        assert set(ours.values()) <= {f"~={major}.{minor}.0"}
        assert folder == "taskmq-core" or "taskmq-core" in ours


def test_import_rules_name_every_wheel() -> None:
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    packages = {path.name for path in ROOT.glob("packages/*/src/*") if path.is_dir()}
    assert set(rules["importlinter"]["root_packages"].split()) == packages
    layers = rules["importlinter:contract:wheels"]["layers"]
    assert set(re.findall(r"\w+", layers)) == packages


def test_every_wheel_is_typed_and_says_what_it_is() -> None:
    for folder in projects():
        source = next((ROOT / "packages" / folder / "src").iterdir())
        assert (source / "py.typed").exists()
        assert len((ROOT / "packages" / folder / "README.md").read_text()) > 200


def test_every_wheel_has_a_changelog_fragment_folder() -> None:
    folders = {f"taskmq-{path.name}" for path in (ROOT / ".changelog").iterdir() if path.is_dir()}
    assert folders == set(projects())


def test_every_script_the_readme_and_guide_name_exists() -> None:
    scripts = (ROOT / "hatch.toml").read_text().split("scripts]")[1]
    known = set(re.findall(r"^(\w+) = ", scripts, re.M))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {word for page in pages for word in re.findall(r"hatch run (\w+)", page.read_text())}
    assert {"demo", "test"} <= named
    assert named - {"python", "pytest", "WORD"} <= known


def test_fragments_name_an_issue_and_a_known_type() -> None:
    config = (ROOT / ".changelog/towncrier.toml").read_text()
    types = set(re.findall(r'^\[\[tool\.towncrier\.type\]\]\ndirectory = "(\w+)"', config, re.M))
    assert "breaking" in types
    fragments = list((ROOT / ".changelog").glob("*/*.md"))
    bad = [
        path.name
        for path in fragments
        if not re.fullmatch(rf"\d+(\.\d+)?\.({'|'.join(types)})\.md", path.name)
    ]
    assert fragments
    assert bad == []
