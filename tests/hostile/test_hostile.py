"""A few of each hostile input, by fixed seeds; `python -m tests.benchmarks.hostile` has thousands."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.logs import Found, check_changed, check_written
from tests.hostile.pages import check_pages
from tests.hostile.releases import check_releases
from tests.hostile.urls import check_long, check_urls

SEED = 7


def test_urls() -> None:
    found = check_urls(6_000, SEED, batch=500)
    check_long(found)
    assert found.faults == []
    assert found.items > 2_500
    assert found.opened > 500


@pytest.mark.parametrize("check", [check_written, check_changed])
def test_logs(tmp_path: Path, check: Callable[[Path, int, Found], None]) -> None:
    found = Found()
    for seed in range(2, 8):
        (tmp_path / str(seed)).mkdir()
        check(tmp_path / str(seed), seed, found)
    assert found.faults == []
    assert found.files == 6
    assert found.lines + found.refused > 0
    assert found.events + found.rejected + found.left_out == found.lines


@pytest.mark.slow
def test_releases_that_lie(tmp_path: Path) -> None:
    found = check_releases(tmp_path)
    assert found.faults == []
    assert found.refused > 60
    for how in ("open", "pull"):  # not only because the registry has another digest of the manifest
        assert "which is outside the export" in found.refusals[f"{how}: a name with .."]


@pytest.mark.slow
def test_a_night_of_hostile_ids_and_pages_is_inert(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_pages(tmp_path)
    assert found.faults == []
    assert found.seen > 0
