"""What all tests share: where the real logs are, that no property is judged by how busy the machine is, and that no store
names a file that may be lost."""

import gc
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import junkdrawer

from tests.roots.store_contents import watch_commits

BENCHMARKS = "tests/benchmarks/test_programs.py::"
DEFAULT_DATA = Path(__file__).parents[2] / "shared" / "data"
settings.register_profile("unhurried", settings.default, deadline=None)
settings.load_profile("unhurried")
# Python 3.11.7 raises SystemError where the garbage collector calls Python while a thread makes a syntax tree and another makes
# one then, as numpy.load does (python/cpython#106905). Hypothesis would time the collector by such a callback.
junkdrawer.gc_cumulative_time()
gc.callbacks.clear()
# A shell starts background jobs with Ctrl-C ignored. Processes that tests start would inherit that, and tests send it to them.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("MLFLOW_TRACKING_URI", None)  # a root of a test that knows no registry yet would publish there


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real logs: $SURF2VEC_DATA, else ../shared/data. Where there is none the test is skipped.

    With $SURF2VEC_REQUIRE_DATA set, as in CI, it fails instead.
    """
    path = Path(os.environ.get("SURF2VEC_DATA", DEFAULT_DATA))
    if not (path / "README.md").exists():
        message = f"no real logs: set SURF2VEC_DATA to their folder (looked in {path})"
        if os.environ.get("SURF2VEC_REQUIRE_DATA"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file of slow tests alone when those are not wanted: they import the most."""
    if collection_path.suffix != ".py" or not config.option.markexpr.startswith("not slow"):
        return None
    return bool(re.search(r"^pytestmark = .*\.mark\.(slow|long)", collection_path.read_text(), re.MULTILINE)) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process runs a file's tests, as they share what its fixtures made. Only benchmarks are distributed one by one."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # a machine with a card has little but torch

    scheduler = LoadFileScheduling(config, log)
    find_file = scheduler._split_scope
    scheduler._split_scope = lambda nodeid: nodeid if BENCHMARKS in nodeid else find_file(nodeid)
    return scheduler


@pytest.fixture(autouse=True)
def only_synced_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a test commits in its own process."""
    watch_commits(monkeypatch)


@pytest.fixture
def large_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each log is a batch of its own, and divided, however small it is."""
    from surf2vec.tasks.ingest import batches

    monkeypatch.setattr(batches, "SMALL_LOG_BYTES", 0)
