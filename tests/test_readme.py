"""The README is true: its tree has every module, and its commands are the Makefile's."""

import re
from pathlib import Path

from flows.config import PipelineConfig

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_module_stands_in_the_tree() -> None:
    modules = [
        path.name
        for folder in ("flows", "infra", "tasks", "trainer")
        for path in (ROOT / folder).rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    ]
    assert len(modules) > 40
    assert [name for name in modules if name not in README] == []


def test_the_tree_names_no_module_that_there_is_not() -> None:
    tree = README.split("## The tree")[1].split("```")[1]
    there = {
        path.name for folder in ("flows", "infra", "tasks", "trainer", "sql") for path in (ROOT / folder).rglob("*.py")
    }
    assert set(re.findall(r"[a-z0-9_]+\.py", tree)) <= there


def test_the_two_commands_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text()
    first_screen = README.split("```")[1]
    commands = re.findall(r"^make (\w+)", first_screen, re.MULTILINE)
    assert commands == ["demo", "test"]
    assert all(f"\n{command}:" in makefile for command in commands)


def test_every_dependency_is_explained() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *optional["dev"], *optional["stack"], *optional["ray"]]
    names = [re.split(r"[<>=;\[]", name)[0] for name in wanted]
    table = README.split("## What each dependency is for")[1]
    assert [name for name in names if name not in table] == []


def test_defaults_are_those_of_the_settings() -> None:
    sections = dict(PipelineConfig())
    told = re.findall(r"`(\w+)\.(\w+)` \(([^()]*)\)", README)
    gate = README.split("| rule (`--set gate.`")[1].split("\n\n")[0]
    told += [("gate", name, value) for name, value in re.findall(r"`(\w+)` \(?([\d.]+|true|false)\b", gate)]
    told = [one for one in told if one[0] in sections]
    assert len(told) > 20
    assert [one for one in told if as_told(getattr(sections[one[0]], one[1])) != as_told(one[2])] == []


def as_told(value: object) -> str | float:
    """A setting's value as a person may write it: 0.5 or .5, 1 GB or 1GB, false or False."""
    text = str(value).replace(" ", "").lower()
    try:
        return float(text)
    except ValueError:
        return text
