"""The wheel has everything that the package needs, and works outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = """
import sys, surf2vec, infra.stack, infra.deploy, flows.demo
from tasks.report.report import PAGES
from sql.runner import connect
assert all(module.__file__.startswith(sys.argv[1]) for module in (surf2vec, infra.stack, flows.demo)), surf2vec.__file__
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
    for command in (["-c", CODE, str(unpacked)], ["-m", "flows.cli", "settings", "train"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
