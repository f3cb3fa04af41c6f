"""A manifest that waits counts when its root says so, and only then."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.layout import image_of_items, image_of_rows
from surf2vec.trainer.store.upkeep import has_waiting, hold_manifest, settle_manifest
from surf2vec.trainer.store.writer import Writer


def filled(num_rows: int) -> Rows:
    return Rows(np.ones((num_rows, 4), np.float32), np.ones(num_rows, np.float32))


def commit(folder: Path, generation: int) -> None:
    """A generation of two micro-partitions with three users each."""
    folder.mkdir(exist_ok=True)
    writer = Writer(folder, generation, {})
    for partition in range(2):
        writer.write_users(partition, image_of_rows(filled(3)))
    writer.write_items(0, image_of_items(Items(filled(5), filled(0))))
    writer.commit({"partitions": 2, "num_blocks": 1})


def hold(folder: Path) -> dict[str, Any]:
    """Let the second generation wait: one micro-partition with all six users."""
    writer = Writer(folder, 2, {})
    writer.write_users(0, image_of_rows(filled(6)))
    writer.sync()
    manifest = open_generation(folder).manifest | {"generation": 2, "partitions": 1, "users": writer.users}
    hold_manifest(folder, manifest)
    return manifest


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("times", [1, 2])
def test_it_becomes_the_current_one(tmp_path: Path, times: int) -> None:
    commit(tmp_path, 1)
    manifest = hold(tmp_path)
    assert has_waiting(tmp_path)
    assert open_generation(tmp_path).num_partitions == 2
    for _ in range(times):
        settle_manifest(tmp_path, 1)
    assert open_generation(tmp_path).manifest == manifest
    assert files(tmp_path) == ["MANIFEST.json", "items-00000-g000001.safetensors", "users-00000-g000002.safetensors"]


def test_it_goes_when_its_commit_did_not_come(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    before = files(tmp_path)
    hold(tmp_path)
    settle_manifest(tmp_path, 2)
    assert files(tmp_path) == before
    assert not has_waiting(tmp_path)


def test_a_store_that_was_trained_on_meanwhile_stays(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    hold(tmp_path)
    commit(tmp_path, 3)
    settle_manifest(tmp_path, 1)
    assert (open_generation(tmp_path).generation, open_generation(tmp_path).num_partitions) == (3, 2)
    assert not has_waiting(tmp_path)
