"""What a release changed: the rows that differ and no others, and all of it put together is the newest release."""

import tempfile
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.release.release_reader import KEYS, list_files
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.system.files import digest_file, read_json, verify_file
from tests.roots.release_series import State, export_state, many_users, read_table

NIGHT = {"user-7": 1, "user-50": 1, "new-1": 0, "new-2": 0}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_the_rows_that_differ_and_who_is_gone(tmp_path: Path, dtype: str) -> None:
    root, first = Root(tmp_path), many_users()
    export_state(root, "r1", first, dtype=dtype)
    folder = export_state(root, "r2", first.change(NIGHT, ("user-3", "user-4"), {5: 1, 30: 0}), "r1", dtype=dtype)
    changes = read_json(folder / "manifest.json")["changes"]
    assert changes["since"] == "r1"
    assert changes["since_manifest_sha256"] == digest_file(root.export("r1") / "manifest.json")
    assert [changes[name] for name in ("num_users", "num_items", "num_removed_users", "num_removed_items")] == [
        4,
        2,
        2,
        0,
    ]
    for name, about in list_files(read_json(folder / "manifest.json")).items():
        verify_file(folder / name, about)
    users, items = (read_table(folder / "changes", kind) for kind in ("user", "item"))
    assert users["user_id"].to_list() == sorted(NIGHT)
    assert items["url"].to_list() == ["/page/30", "/page/5"]
    gone = pq.read_table(folder / "changes" / "removed_users.parquet")
    assert gone["user_id"].to_pylist() == ["user-3", "user-4"]
    assert users.equals(read_table(folder).filter(pl.col("user_id").is_in(sorted(NIGHT))))


def test_a_count_is_a_change_and_another_place_too(tmp_path: Path) -> None:
    root = Root(tmp_path)
    export_state(root, "r1", many_users(100))
    folder = export_state(root, "r2", many_users(100).change({"new": 0}), "r1")
    # Everybody visits the first two items, so a new user changes their counts.
    assert read_table(folder / "changes", "item")["url"].to_list() == ["/page/0", "/page/1"]


@pytest.mark.parametrize(
    ("storage", "partitions", "words"),
    [
        ({"dtype": "int8"}, 4, "stored otherwise"),
        ({"pca_dim": 3}, 4, "stored otherwise"),
        ({}, 8, "partitions 4 before and 8 now"),
    ],
)
def test_releases_that_are_not_alike_have_no_changes(tmp_path: Path, storage, partitions: int, words: str) -> None:
    root, lines = Root(tmp_path), []
    export_state(root, "r1", many_users(50))
    folder = export_state(
        root, "r2", many_users(51), "r1", partitions, lambda name, values: lines.append(str(values)), **storage
    )
    assert "changes" not in read_json(folder / "manifest.json")
    assert not (folder / "changes").exists()
    assert words in " ".join(lines)


def test_a_release_of_which_most_changed_has_no_changes(tmp_path: Path) -> None:
    root, first = Root(tmp_path), many_users(200)
    export_state(root, "r1", first)
    most = dict.fromkeys(list(first.users)[:150], 1)
    folder = export_state(root, "r2", first.change(most, items=dict.fromkeys(range(30), 1)), "r1")
    assert "changes" not in read_json(folder / "manifest.json")
    assert not (folder / "changes").exists()


def test_an_older_release_that_is_gone_or_damaged_does_not_stop_a_night(tmp_path: Path) -> None:
    root, first = Root(tmp_path), many_users(50)
    lines: list[str] = []
    export_state(root, "r2", first, "r1", on_event=lambda name, values: lines.append(str(values)))
    part = next((export_state(root, "r3", first) / "user_vectors").iterdir())
    part.write_bytes(b"nothing")
    export_state(root, "r4", first, "r3", on_event=lambda name, values: lines.append(str(values)))
    assert sum("changes are not written: " in line and "cannot be read" in line for line in lines) == 2
    assert not list(root.path.rglob("changes"))


names = st.sampled_from([f"u{n}" for n in range(24)])
nights = st.lists(
    st.tuples(
        st.dictionaries(names, st.integers(0, 3), max_size=8),
        st.lists(names, max_size=6).map(tuple),
        st.dictionaries(st.integers(0, 4), st.integers(0, 3), max_size=3),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=15)
@given(nights, st.sampled_from(["float32", "int8"]))
def test_all_changes_one_after_another_make_the_newest_release(told, dtype: str) -> None:
    with tempfile.TemporaryDirectory() as folder, patch("surf2vec.tasks.export.changes.WORTH_SHARE", 9):
        root = Root(Path(folder))
        state = State({f"u{n}": 0 for n in range(12)} | {f"staying-{n}": 0 for n in range(90)}, [0] * 60)
        newest = export_state(root, "r0", state, dtype=dtype)
        made = {kind: read_table(newest, kind[:-1]) for kind in KEYS}
        for number, (users, gone, items) in enumerate(told, start=1):
            state = state.change(users, gone, items | {len(state.items): 0})
            newest = export_state(root, f"r{number}", state, f"r{number - 1}", dtype=dtype)
            changes = newest / "changes"
            for kind, key in KEYS.items():
                changed = [pl.read_parquet(path) for path in changes.glob(f"{kind[:-1]}_vectors/*.parquet")]
                removed = pl.read_parquet(changes / f"removed_{kind}.parquet")
                over = pl.concat([removed, *(rows.select(key) for rows in changed)])
                made[kind] = pl.concat([made[kind].join(over, on=key, how="anti"), *changed]).sort(key)
        for kind in KEYS:
            assert made[kind].equals(read_table(newest, kind[:-1]))
