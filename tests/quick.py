"""Run the quick tests, `python -m tests.quick [OPTIONS OF PYTEST]`: those that need neither a heavy package nor another process.

There is no list of them. A test file is left out if importing it imports one of HEAVY, directly or through our modules. In the
others a test that imports one of HEAVY while it runs, or starts a process, is skipped at that moment.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {
    *("faiss", "fastapi", "gensim", "implicit", "lancedb", "mlflow", "moto", "numba"),
    *("optuna", "prefect", "qdrant_client", "ray", "sklearn", "torch", "triton"),
}


@cache
def find_file(module: str) -> Path | None:
    """Return the file of one of our modules; None for another's, and for a name in a module."""
    path = ROOT.joinpath(*module.split("."))
    if path.parts[len(ROOT.parts)] not in ("surf2vec", "tests"):
        return None
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def list_imports(nodes: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that these statements import, without those that functions import when they are called."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif (
            not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and "TYPE_CHECKING" not in ast.unparse(node)[:20]
        ):
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from list_imports(getattr(node, field, []))


@cache
def read_imports(file: Path) -> frozenset[str]:
    """Return the names that a file imports when it is imported."""
    return frozenset(list_imports(ast.parse(file.read_text()).body))


def find_heavy(file: Path) -> set[str]:
    """Return those of HEAVY that importing this file imports."""
    heavy: set[str] = set()
    seen, left = {file}, [file]
    while left:
        for name in read_imports(left.pop()):
            heavy |= {name.partition(".")[0]} & HEAVY
            parents = name.split(".")
            files = {find_file(".".join(parents[:end])) for end in range(1, len(parents) + 1)} - {None} - seen
            seen |= files
            left += files
    return heavy


class Quick:
    """The plugin of pytest, and the finder that refuses heavy modules."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out files that import one of HEAVY."""
        return bool(find_heavy(collection_path)) if collection_path.name.startswith("test_") else None

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Skip the test that imports one of HEAVY."""
        if name in HEAVY:
            pytest.skip(f"imports {name}", allow_module_level=True)
        return None


def refuse_process(*_: Any, **__: Any) -> None:
    pytest.skip("starts a process", allow_module_level=True)


def main() -> int:
    """Run the quick tests; return the exit code of pytest."""
    quick = Quick()
    sys.meta_path.insert(0, quick)  # type: ignore[arg-type]
    subprocess.Popen.__init__ = refuse_process  # type: ignore[method-assign]
    options = ["-q", "-m", "not slow and not long", "-p", "no:cacheprovider", *sys.argv[1:]]
    code = pytest.main(
        [*options, *([] if any("tests" in option for option in options) else [str(ROOT / "tests")])], [quick]
    )
    loaded = sorted(HEAVY & set(sys.modules))
    print(f"imported all the same: {loaded}" if loaded else "no heavy package was imported")
    return int(code) or bool(loaded)


if __name__ == "__main__":
    sys.exit(main())
