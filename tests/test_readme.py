"""The README is true and short: its commands are the Makefile's, its folders have the captions of the code."""

import re
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = [
    path.parent
    for top in ("flows", "tasks", "trainer", "sql", "infra")
    for path in sorted((ROOT / top).rglob("__init__.py"))
    if top in ("tasks", "trainer") or path.parent.name == top
]


def test_the_readme_is_read_in_three_minutes() -> None:
    lines = README.splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120] == []


def test_the_two_commands_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text()
    first_screen = README.split("```")[1]
    commands = re.findall(r"^make (\w+)", first_screen, re.MULTILINE)
    assert commands == ["demo", "test"]
    assert all(f"\n{command}:" in makefile for command in commands)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_every_folder_stands_in_the_readme_with_its_caption(folder: Path) -> None:
    """The caption is the first sentence of the docstring of its __init__.py."""
    docstring = (folder / "__init__.py").read_text().split('"""')[1].splitlines()[0]
    caption = re.split(r"(?<=\.) ", docstring)[0]
    lines = [line for line in README.splitlines() if line.startswith(f"{folder.relative_to(ROOT)}/ ")]
    assert [line.split("/ ", 1)[1].strip().startswith(caption) for line in lines] == [True]


def test_the_readme_leads_to_the_files_that_decide() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| `([^`]+)`", README, re.MULTILINE))
    assert rows["decides whether a release serves"] == "tasks/gate/rules.py"
    assert "def holds_back" in (ROOT / rows["decides whether a release serves"]).read_text()
    assert "NEGATIVE" in (ROOT / rows["draws the negatives"]).read_text()
    commits = (ROOT / rows["commits: renames the manifest last"]).read_text()
    assert "write_manifest(self.folder, STORE_MANIFEST" in commits


def test_the_pins_for_the_oldest_python_take_it() -> None:
    """Debian 12 has 3.11.2. Newer Pythons have pins of their own, which need not take it: constraints.txt marks them."""
    oldest = {"python_version": "3.11", "python_full_version": "3.11.0"}
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    pins = [requirement for requirement in map(Requirement, filter(None, lines)) if takes(requirement, oldest)]
    installed = {canonicalize_name(one.name): one for one in distributions()}
    pythons = {}
    for pin in pins:
        one = installed.get(canonicalize_name(pin.name))
        if one and one.version.partition("+")[0] in pin.specifier and "Requires-Python" in one.metadata:
            pythons[pin.name] = SpecifierSet(one.metadata["Requires-Python"])
    assert len(pythons) > 100, "few of the pins for 3.11 are installed"
    assert [name for name, specifier in pythons.items() if "3.11.0" not in specifier] == []
    assert "3.11.0" in SpecifierSet(installed["surf2vec"].metadata["Requires-Python"])


def takes(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)
