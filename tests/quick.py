"""Run the quick tests, `python -m tests.quick [OPTIONS OF PYTEST]`: those that need neither a heavy package nor another process.

There is no list of them. What imports one of HEAVY is skipped at that moment: a test file while it is collected, directly or
through our modules, or a test while it runs. So is a test that starts a process.
"""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {
    *("faiss", "fastapi", "gensim", "implicit", "lancedb", "mlflow", "moto", "numba"),
    *("optuna", "prefect", "qdrant_client", "ray", "sklearn", "torch", "triton"),
}


class RefuseHeavy:
    """A finder that skips the file or the test that imports one of HEAVY."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name in HEAVY:
            pytest.skip(f"imports {name}", allow_module_level=True)
        return None


def refuse_process(*_: Any, **__: Any) -> None:
    pytest.skip("starts a process", allow_module_level=True)


def main() -> int:
    """Run the quick tests; return the exit code of pytest."""
    sys.meta_path.insert(0, RefuseHeavy())  # type: ignore[arg-type]
    subprocess.Popen.__init__ = refuse_process  # type: ignore[method-assign]
    options = ["-q", "-m", "not slow and not long", "-p", "no:cacheprovider", *sys.argv[1:]]
    code = pytest.main([*options, *([] if any("tests" in option for option in options) else [str(ROOT / "tests")])])
    loaded = sorted(HEAVY & set(sys.modules))
    print(f"imported all the same: {loaded}" if loaded else "no heavy package was imported")
    return int(code) or bool(loaded)


if __name__ == "__main__":
    sys.exit(main())
