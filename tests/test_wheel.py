"""The wheel has everything that the package needs, and works outside the checkout; a night needs no extra."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import surf2vec

NO_EXTRAS = """
import sys

class NotInstalled:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("torch", "triton", "ray", "lancedb", "qdrant_client", "psycopg2", "boto3", "gensim"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled)
"""
ROOT = Path(__file__).parents[1]
CODE = """
import sys, surf2vec, surf2vec.infra.stack, surf2vec.infra.deploy, surf2vec.flows.demo
from surf2vec.tasks.report.report import PAGES
from surf2vec.sql.runner import connect
found = [module.__file__ for module in (surf2vec, surf2vec.infra.stack, surf2vec.flows.demo)]
assert all(file.startswith(sys.argv[1]) for file in found), found
assert PAGES.get_template("nights.html.j2")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the tracked files, links as links."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked_files():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "tree" / name, follow_symlinks=False)
    pip = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "tree")]
    subprocess.run([sys.executable, "-m", *pip], check=True, timeout=300)
    [made] = folder.glob("surf2vec-*.whl")
    return made


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]


def make_environment(folder: Path, *packages: str) -> Path:
    """Make a virtual environment with these packages, and with the dependencies of this one, but not its surf2vec."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for package in packages:
        command = ["pip", "--python", str(folder / "bin" / "python"), "install", "-q", "--no-deps", package]
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
        if done.returncode and not package.endswith(".whl"):
            pytest.skip(f"PyPI's {package} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    return site


def run_in(folder: Path, cwd: Path, *arguments: str, **environment: str) -> str:
    """Return what Python prints in a virtual environment. PYTHONPATH is that of the call."""
    command = [str(folder / "bin" / "python"), *arguments]
    plain = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    done = subprocess.run(command, cwd=cwd, env=plain | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_whole_root(command: Callable[..., str]) -> None:
    command("sample-logs", "--users", "300", "--out", "logs")
    command("run", "--root", "root", "--logs", "logs/*.csv")
    assert "damage    0\nwarnings  0\n" in command("doctor", "--root", "root")


@pytest.mark.slow
def test_the_wheel_has_all_files_under_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    folders = ("flows/", "infra/", "sql/", "tasks/", "trainer/")
    needed = {f"surf2vec/{name}" for name in tracked_files() if name.startswith(folders)} | {"surf2vec/py.typed"}
    assert {name for name in needed - names if not name.endswith(("README.md", ".gitignore"))} == set()
    assert {name.partition("/")[0] for name in names} == {"surf2vec", f"surf2vec-{surf2vec.__version__}.dist-info"}


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_it_works_beside_packages_whose_names_are_our_folders(wheel: Path, tmp_path: Path, order: str) -> None:
    """PyPI's `trainer` installs a package of that name, and `jupysql` one named `sql`."""
    others = ["trainer", "jupysql"]
    packages = [str(wheel), *others] if order == "before" else [*others, str(wheel)]
    site = make_environment(tmp_path / "venv", *packages)
    assert (site / "trainer" / "__init__.py").exists()
    assert (site / "sql" / "__init__.py").exists()
    run_in(tmp_path / "venv", tmp_path, "-c", CODE, str(site))
    assert "train.epochs" in run_in(
        tmp_path / "venv", tmp_path, str(tmp_path / "venv/bin/surf2vec"), "settings", "train"
    )


@pytest.mark.slow
def test_a_run_beside_a_teams_own_folders_of_the_same_names(wheel: Path, tmp_path: Path) -> None:
    make_environment(tmp_path / "venv", str(wheel))
    for name in ("flows", "tasks", "sql", "trainer", "infra"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('a folder of the team was imported')\n")
    make_whole_root(partial(run_in, tmp_path / "venv", tmp_path, str(tmp_path / "venv/bin/surf2vec"), PYTHONPATH="."))


def test_the_package_names_what_it_offers() -> None:
    assert surf2vec.__version__
    assert all(getattr(surf2vec, name) for name in surf2vec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'runs'"):
        surf2vec.runs  # noqa: B018


@pytest.mark.slow
def test_a_night_needs_no_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_EXTRAS)
    ways = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONSAFEPATH": "1"}
    make_whole_root(partial(run_in, Path(sys.prefix), tmp_path, "-m", "surf2vec.flows.cli", **ways))
