"""Which days and sources a window has, and what its id depends on."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.window import CorpusRequest, select_window
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.system.files import verify_all
from tests.data.event_files import Event, moment, write_events

EVENTS = [
    Event("ann", "/a", moment(1), "monday.csv"),
    Event("ann", "/b", moment(2), "tuesday.csv"),
    Event("bob", "/a", moment(4), "tuesday.csv"),
    Event("bob", "/b", 5, "undated.csv"),
]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return write_events(tmp_path, EVENTS)


def days_of(root: Root, since: int | None, until: int | None, window_days: int | None) -> list[int]:
    window = select_window(root, *(day and date(2026, 1, day) for day in (since, until)), window_days)
    assert any(file.day is None for file in window.files)
    return [day.day for day in window.days]


@pytest.mark.parametrize(
    ("since", "until", "window_days", "days"),
    [
        (None, None, None, [1, 2, 4]),
        (2, None, None, [2, 4]),
        (None, 2, None, [1, 2]),
        (2, 2, None, [2]),
        (None, None, 1, [4]),
        (None, None, 3, [2, 4]),
        (None, 3, 2, [2]),
        (1, None, 1, [1, 2, 4]),
        (5, None, None, []),
    ],
)
def test_days_of_a_window(
    root: Root, since: int | None, until: int | None, window_days: int | None, days: list[int]
) -> None:
    assert days_of(root, since, until, window_days) == days


def test_the_id_depends_on_what_goes_in_and_on_nothing_else(root: Root, tmp_path: Path) -> None:
    def identify(root: Root = root, max_users: int = 20_000, days: int | None = None, **cleaning: Any) -> str:
        cleaned = IngestConfig(**cleaning)
        return CorpusRequest(cleaned, EvaluateConfig(max_users=max_users), window_days=days).name(root)

    names = [
        identify(),
        identify(days=1),
        identify(min_item_users=1),
        identify(max_users=5),
        identify(write_events(tmp_path / "partitions", EVENTS, partitions=8)),
        identify(write_events(tmp_path / "rules", EVENTS, rules={"granularity": "host"})),
        identify(write_events(tmp_path / "key", EVENTS, user_key_fingerprint="0123")),
        identify(write_events(tmp_path / "fewer", EVENTS[:3])),
    ]
    assert len(set(names)) == len(names)
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in names)
    assert identify(days=30) == identify(granularity="prefix:3") == names[0]
    assert identify(write_events(tmp_path / "same", EVENTS)) == names[0]


def test_an_empty_window_says_which_days_there_are(tmp_path: Path) -> None:
    root = write_events(tmp_path, EVENTS[:3])
    with pytest.raises(
        InputError, match=r"from 2026-02-01 to the last day: it has events from 2026-01-01 to 2026-01-04"
    ):
        select_window(root, date(2026, 2, 1), None, None)
    with pytest.raises(InputError, match="from the first day to the last day: it has no events at all"):
        select_window(write_events(tmp_path / "none", []), None, None, None)


def test_nothing_ingested_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing was ingested"):
        select_window(open_root(tmp_path), None, None, None)


def test_a_missing_or_cut_events_file_is_named(root: Root) -> None:
    window = select_window(root, None, None, None)
    verify_all(window.files)
    path = window.files[0].path
    path.write_bytes(path.read_bytes()[:-1])
    cut = rf"{path} has [\d,]+ bytes where its manifest says .*; pass the log .* to `surf2vec run --logs` again"
    with pytest.raises(DamageError, match=cut):
        verify_all(window.files)
    path.unlink()
    with pytest.raises(DamageError, match="is missing"):
        verify_all(window.files)
