"""Which tests `make quick` runs: none that imports a heavy package or starts a process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.quick import ROOT

TESTS = {
    "test_some.py": """
        def test_plain(): pass
        def test_imports_later(): import mlflow
        def test_starts_a_process(): import subprocess; subprocess.run(["true"])
    """,
    "test_heavy.py": "from surf2vec.tasks.registry import tracking\ndef test_never(): assert False",
}


def test_what_needs_more_is_skipped_directly_or_through_our_modules(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    for name, text in TESTS.items():
        (folder / name).write_text(text.replace("\n        ", "\n"))
    command = [sys.executable, "-m", "tests.quick", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 3 skipped" in done.stdout
    assert "no heavy package was imported" in done.stdout
