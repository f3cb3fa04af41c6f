"""What all tests share: where the real logs are."""

import os
from pathlib import Path

import pytest

DEFAULT_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real logs: $SURF2VEC_DATA, else ../shared/data; the test is skipped where there is none."""
    path = Path(os.environ.get("SURF2VEC_DATA", DEFAULT_DATA))
    if not (path / "README.md").exists():
        pytest.skip(f"no real logs: set SURF2VEC_DATA to their folder (looked in {path})")
    return path
