"""The documents are true: commands, settings, defaults, dependencies, paths and links are those of the code."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

import surf2vec
from surf2vec.tasks.night.config import PipelineConfig, all_settings
from tests.reference_pages import pages

ROOT = Path(__file__).parents[1]
GENERATED = [path.name for path in pages() if path.name != "python.md"]  # it has a part written by hand
DOCUMENTS = [
    *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "trainer" / "README.md", ROOT / "trainer" / "kernels" / "README.md",
]  # fmt: skip
WRITTEN = {path: path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS) if path.name not in GENERATED}
TEXTS = [pytest.param(path, text, id=str(path.relative_to(ROOT))) for path, text in WRITTEN.items()]
SECTIONS = dict(PipelineConfig())
WRITTEN_BY_HAND = ["infra/.env"]  # what the reader makes


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_the_generated_pages_are_up_to_date(path: Path) -> None:
    made = pages()[path]
    assert path.read_text(encoding="utf-8") == made, "run: python -m tests.reference_pages"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


@pytest.mark.parametrize(("path", "text"), TEXTS)
def test_every_relative_link_leads_to_a_file(path: Path, text: str) -> None:
    links = [unquote(link) for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    files = [link.partition("#")[0] for link in links if not link.startswith("#")]
    assert [file for file in files if not (path.parent / file).exists()] == []


@pytest.mark.parametrize(("path", "text"), TEXTS)
def test_every_path_of_the_repository_is_there(path: Path, text: str) -> None:
    tops = "flows|tasks|trainer|sql|infra|tests|docs"
    named = re.findall(rf"`((?:{tops})/[\w./-]*)`", text)
    assert [name for name in named if name not in WRITTEN_BY_HAND and not (ROOT / name).exists()] == []


@pytest.mark.parametrize(("path", "text"), TEXTS)
def test_every_setting_that_is_named_exists(path: Path, text: str) -> None:
    sections = "|".join(SECTIONS)
    named = set(re.findall(rf"(?<![\w./])((?:{sections})\.[a-z_0-9]+(?:\.[a-z_]+)?)(?![\w/(])", text))
    known = set(all_settings()) | {key.rpartition(".")[0] for key in all_settings()}
    endings = (".py", ".parquet", ".toml", ".json", ".md", ".key", ".csv", ".txt", ".log")
    assert [key for key in sorted(named - known) if not key.endswith(endings)] == []


def test_defaults_are_those_of_the_settings() -> None:
    text = "\n".join(WRITTEN.values())
    told = re.findall(r"`(\w+)\.(\w+)` \(([^()]*)\)", text)
    gate = text.split("(`--set gate.`")[1].split("\n\n")[0]
    told += [("gate", name, value) for name, value in re.findall(r"`(\w+)` \(?([\d.]+|true|false)\b", gate)]
    told = [one for one in told if one[0] in SECTIONS and re.match(r"[\d.]+( ?[KMGT]?B)?$|true$|false$", one[2])]
    assert len(told) > 10
    assert [one for one in told if as_told(getattr(SECTIONS[one[0]], one[1])) != as_told(one[2])] == []


def as_told(value: object) -> str | float:
    """A setting's value as a person may write it: 0.5 or .5, 1 GB or 1GB, false or False."""
    text = str(value).replace(" ", "").lower()
    try:
        return float(text)
    except ValueError:
        return text


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = [re.split(r"[<>=;\[]", name)[0] for name in wanted]
    table = (ROOT / "docs" / "dependencies.md").read_text()
    assert [name for name in names if name not in table] == []


def test_the_import_rules_are_those_that_are_checked() -> None:
    table = WRITTEN[ROOT / "CONTRIBUTING.md"].split("| tasks | trainer |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [[set(re.findall(r"\w+", cell)) for cell in line.split("|")[1:3]] for line in table.splitlines()]
    checks = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [contract["layers"] for contract in checks["contracts"] if "containers" in contract]
    checked = [[set(re.findall(r"\w+", layer)) for layer in one] for one in layers]
    assert [[cell for cell in column if cell] for column in zip(*rows, strict=True)] == checked


def test_releases_of_the_changelog_are_short() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    releases = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    assert releases[0].startswith(surf2vec.__version__)
    assert [release.split()[0] for release in releases if len(release.strip().splitlines()[2:]) > 15] == []
