"""Which tests `make quick` runs: none that imports a heavy package or starts a process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.quick import ROOT, find_heavy

TESTS = {
    "test_some.py": """
        def test_plain(): pass
        def test_imports_later(): import mlflow
        def test_starts_a_process(): import subprocess; subprocess.run(["true"])
    """,
    "test_heavy.py": "from surf2vec.tasks.registry import tracking\ndef test_never(): assert False",
}


def test_a_test_that_needs_more_is_skipped_and_its_file_not_imported(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    for name, text in TESTS.items():
        (folder / name).write_text(text.replace("\n        ", "\n"))
    command = [sys.executable, "-m", "tests.quick", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 2 skipped" in done.stdout
    assert "no heavy package was imported" in done.stdout


def test_what_a_file_imports_through_our_modules_counts() -> None:
    heavy = {name: find_heavy(ROOT / "tests" / name) for name in ("flows/test_nightly.py", "sql/test_runner.py")}
    assert "mlflow" in heavy["flows/test_nightly.py"]
    assert heavy["sql/test_runner.py"] == set()
