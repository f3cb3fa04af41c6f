"""Which tests `make quick` runs: none that imports a heavy package or starts a process."""

from pathlib import Path

from tests.servers.python import run_python

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
    printed = run_python("-m", "tests.quick", "--rootdir", str(folder), str(folder))
    assert "1 passed, 3 skipped" in printed
    assert "no heavy package was imported" in printed
