"""A store is whole at every moment: what is committed can be read, and what was altered is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from surf2vec.trainer.errors import ConfigError, DamageError, ResourceError
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.store.generation import FORMAT_VERSION, open_generation
from surf2vec.trainer.store.images import Image
from surf2vec.trainer.store.layout import Delta, image_of_items, image_of_rows, rows_in
from surf2vec.trainer.store.writer import (
    Writer,
    examine_store,
    lock_store,
    open_pinned,
    pin_generation,
    remove_unreferenced,
    unpin_generations,
)
from tests.roots.store_contents import read_item_table

SIZES = {"partitions": 2, "num_items": 3, "num_blocks": 1, "vector_size": 4, "config": {"vector_size": 4}}


def filled(num_rows: int, value: float) -> Rows:
    return Rows(np.full((num_rows, 4), value, np.float32), np.full(num_rows, value, np.float32))


def commit(folder: Path, value: float, generation: int) -> None:
    """Commit two micro-partitions and an item table whose vectors are all `value`."""
    folder.mkdir(exist_ok=True)
    writer = Writer(folder, generation)
    for partition in range(2):
        writer.write("users", partition, image_of_rows(filled(5, value)))
    writer.write("interest", 0, image_of_items(Items(filled(3, value), filled(0, value))))
    writer.commit(SIZES | {"position": generation})


def test_what_was_committed_is_read(tmp_path: Path) -> None:
    commit(tmp_path, 1.5, 1)
    generation = open_generation(tmp_path)
    assert (generation.generation, generation.position, generation.vector_size) == (1, 1, 4)
    np.testing.assert_array_equal(generation.read_users(1), np.full((5, 4), 1.5, np.float32))
    np.testing.assert_array_equal(generation.read_items(), np.full((3, 4), 1.5, np.float32))


def test_a_commit_removes_the_generation_before_it_unless_pinned(tmp_path: Path) -> None:
    commit(tmp_path, 1, 1)
    pin_generation(tmp_path, "champion")
    commit(tmp_path, 2, 2)
    commit(tmp_path, 3, 3)
    generations = sorted({path.stem.split("-g")[1] for path in tmp_path.glob("*.safetensors")})
    assert generations == ["000001", "000003"]
    unpin_generations(tmp_path, keep=set())
    assert remove_unreferenced(tmp_path) > 0
    assert {path.stem.split("-g")[1] for path in tmp_path.glob("*.safetensors")} == {"000003"}


def test_files_without_a_manifest_count_for_nothing(tmp_path: Path) -> None:
    commit(tmp_path, 1, 1)
    Writer(tmp_path, 2).write("users", 0, image_of_rows(filled(5, 2)))
    np.testing.assert_array_equal(open_generation(tmp_path).read_users(0), np.full((5, 4), 1, np.float32))
    assert [level for level, _, _ in examine_store(tmp_path)] == ["ok", "warning"]


def test_a_file_is_written_over_until_it_counts(tmp_path: Path) -> None:
    commit(tmp_path, 1, 1)
    writer = Writer(tmp_path, 2, open_generation(tmp_path).manifest)
    places = set()
    for value, num_rows in ((2, 9000), (3, 10), (4, 9000)):
        writer.write("users", 0, image_of_rows(filled(num_rows, value)))
        places.add((tmp_path / writer.entries["users", 0]["file"]).stat().st_ino)
        np.testing.assert_array_equal(rows_in(writer.read("users", 0)).vectors, filled(num_rows, value).vectors)
    assert len(places) == 1
    np.testing.assert_array_equal(open_generation(tmp_path).read_users(0), np.full((5, 4), 1, np.float32))


def test_what_a_killed_run_left_is_not_written_over(tmp_path: Path) -> None:
    """It may have a second name, in a release of a store whose manifest was taken away since."""
    Writer(tmp_path, 1).write("users", 0, image_of_rows(filled(5, 1)))
    (tmp_path / "second").hardlink_to(tmp_path / "users-00000-g000001.safetensors")
    before = (tmp_path / "second").read_bytes()
    commit(tmp_path, 2, 1)
    assert (tmp_path / "second").read_bytes() == before
    np.testing.assert_array_equal(open_generation(tmp_path).read_users(0), np.full((5, 4), 2, np.float32))


@pytest.mark.parametrize(
    ("sync", "told"),
    [("sync_paths", "are not on the disk"), ("sync_path", "names may be lost")],
    ids=["files", "folder"],
)
def test_a_manifest_that_names_what_may_be_lost_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, told: str
) -> None:
    """Of the watch over all tests (tests/conftest.py)."""
    monkeypatch.setattr(f"surf2vec.trainer.store.writer.{sync}", lambda _: 0)
    with pytest.raises(AssertionError, match=told):
        commit(tmp_path, 1, 1)


def test_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 1, 1)
    path = next(tmp_path.glob("users-00001-*"))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError, match=r"users-00001-g000001.safetensors does not have the checksum"):
        open_generation(tmp_path).read_users(1)
    assert "damage" in [level for level, _, _ in examine_store(tmp_path)]


def test_a_missing_file_and_an_altered_manifest_are_refused(tmp_path: Path) -> None:
    commit(tmp_path, 1, 1)
    next(tmp_path.glob("interest-*")).unlink()
    with pytest.raises(DamageError, match="interest-00000-g000001.safetensors is missing"):
        open_generation(tmp_path).read_items()
    manifest = tmp_path / "MANIFEST.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"position": 1', '"position": 2'))
    with pytest.raises(DamageError, match="MANIFEST.json does not say what was written"):
        open_generation(tmp_path)
    manifest.write_text(whole[:-20])
    with pytest.raises(DamageError, match="not readable as JSON"):
        open_generation(tmp_path)
    manifest.write_text(json.dumps({"format_version": 99}))
    with pytest.raises(DamageError, match=f"not a manifest of format {FORMAT_VERSION}"):
        open_generation(tmp_path)


def test_a_store_where_a_file_is_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot write to the store"), lock_store(tmp_path / "file" / "store"):
        pass


def test_bfloat16_is_stored_as_such_and_read_as_float32(tmp_path: Path) -> None:
    vectors = np.array([[1.0, -2.5, 0.15625, 3e30]], dtype=np.float32)  # all are bfloat16 numbers, or near
    halves = (vectors.view(np.uint32) >> 16).astype(np.uint16)
    writer = Writer(tmp_path, 1)
    writer.write("users", 0, image_of_rows(Rows(halves, np.array([7], np.float32))))
    path = tmp_path / "users-00000-g000001.safetensors"
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("vectors").dtype == torch.bfloat16
    rows = rows_in(writer.read("users", 0))
    np.testing.assert_array_equal(rows.vectors, halves)
    np.testing.assert_allclose(rows.widened(), vectors, rtol=2**-8)
    assert rows.squares.tolist() == [7]


def test_the_way_back_to_an_older_generation_writes_no_vectors(tmp_path: Path) -> None:
    commit(tmp_path, 1, 1)
    pin_generation(tmp_path, "best")
    commit(tmp_path, 2, 2)
    Writer(tmp_path, 3).commit_again(open_pinned(tmp_path, "best"), SIZES | {"position": 2})
    generation = open_generation(tmp_path)
    assert generation.generation == 3
    assert (generation.read_items() == 1).all()
    assert (generation.read_users(1) == 1).all()


def test_a_tree_has_no_item_vectors(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 1)
    writer.write("interest", 0, image_of_items(Items(filled(3, 1), filled(0, 1))))
    generation = writer.commit(SIZES | {"config": {"hs": 1}})
    with pytest.raises(ConfigError, match=r"train.hs = 1"):
        generation.read_items()


def test_item_blocks_are_read_as_one_table(tmp_path: Path) -> None:
    """Two blocks that share row 3, which is as the resident one has it; a block that was not trained yet is none."""
    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    writer = Writer(tmp_path, 1)

    def image(rows: list[int], shared: float) -> Image:
        own = table[rows].copy()
        own[0] += shared
        return image_of_items(Items(Rows(own, own[:, 0]), filled(0, 0)), np.array(rows, np.uint32))

    writer.write("interest", 1, image([3, 1, 4], shared=7))
    half = writer.commit(SIZES | {"num_blocks": 2})
    assert [entry is None for entry in half.manifest["items"]["interest"]] == [True, False]
    writer.write("interest", 0, image([3, 0, 2], shared=0))
    generation = writer.commit(SIZES | {"num_blocks": 2, "num_items": 5})
    for start in range(6):
        for stop in range(start, 6):
            np.testing.assert_array_equal(generation.read_items(start, stop), table[start:stop])
    np.testing.assert_array_equal(generation.read_items(), table)
    whole = read_item_table(generation)
    np.testing.assert_array_equal(whole.outputs.vectors, table)
    np.testing.assert_array_equal(whole.outputs.squares, table[:, 0])
    assert {path.name for path in tmp_path.glob("interest-*")} == {
        "interest-00000-g000002.safetensors",
        "interest-00001-g000001.safetensors",
    }


def test_a_delta_is_read_with_the_file_it_belongs_to_and_stays_in_its_place(tmp_path: Path) -> None:
    commit(tmp_path, 1, 1)
    pin_generation(tmp_path, "champion")
    base = open_generation(tmp_path)
    writer = Writer(tmp_path, 2, base.manifest)
    for value in (2, 3):
        writer.write_delta(0, Delta(np.array([1, 6], np.uint32), filled(2, value)))
        writer.commit(SIZES | {"position": 2})
    changed = open_generation(tmp_path)
    assert changed.read_users(0)[:, 0].tolist() == [1, 3, 1, 1, 1, 0, 3]
    assert changed.read_users(1)[:, 0].tolist() == [1] * 5
    assert open_pinned(tmp_path, "champion").read_users(0)[:, 0].tolist() == [1] * 5
    assert sorted(path.name for path in tmp_path.glob("delta-*")) == ["delta-00000-g000003.safetensors"]
    damaged = next(tmp_path.glob("delta-*"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DamageError, match="delta-00000"):
        changed.read_users(0)
