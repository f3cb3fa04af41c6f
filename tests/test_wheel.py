"""The wheel has everything that the package needs, and works outside the checkout; a night needs no extra."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    tree, unpacked = tmp_path / "tree", tmp_path / "unpacked"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(tree),
    ]
    subprocess.run(pip, check=True, timeout=300)
    [wheel] = tmp_path.glob("surf2vec-*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        file.extractall(unpacked)
    packages = ("flows", "infra", "sql", "tasks", "trainer")
    needed = {
        name for name in filter(None, tracked.split("\0")) if name.startswith(tuple(f"{one}/" for one in packages))
    }
    assert {name for name in needed - names if not name.endswith(("README.md", ".gitignore"))} == set()
    assert not any(name.startswith("tests/") for name in names)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(unpacked),
        "PYTHONSAFEPATH": "1",
    }
    for command in (["-c", CODE, str(unpacked)], ["-m", "surf2vec.flows.cli", "settings", "train"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_night_needs_no_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_EXTRAS)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }  # fmt: skip

    def surf2vec(*arguments: str) -> str:
        command = [sys.executable, "-m", "surf2vec.flows.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    surf2vec("sample-logs", "--users", "300", "--out", "logs")
    surf2vec("run", "--root", "root", "--logs", "logs/*.csv")
    assert "0 damaged, 0 warnings" in surf2vec("doctor", "--root", "root")
