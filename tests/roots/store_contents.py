"""What a store holds, to be compared bit for bit; and what has to be on the disk before a manifest names it."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import surf2vec.trainer.store.writer
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.images import Arrays, Image, read_image
from surf2vec.trainer.store.layout import STORE_MANIFEST, read_rows
from surf2vec.trainer.system.files import read_json


def read_tables(store_dir: Path) -> list[Rows]:
    """Every table of the current generation: users, a micro-partition after the other as far as there are any, then items, those
    of the interest and, if there is one, those of the trail with the weights of its lags.
    """
    generation = open_generation(store_dir)
    users = generation.manifest["users"]
    items = read_item_table(generation)
    trail = (
        [] if generation.trail is None else [generation.trail.outputs, generation.trail.inputs, generation.trail.lags]
    )
    return [*(read_rows(store_dir, users[key]) for key in sorted(users, key=int)), items.outputs, items.inputs, *trail]


def read_item_table(generation: Generation) -> Items:
    """All that training keeps of items, in one piece. Raises DamageError when a file was altered."""
    images = [
        read_image(generation.folder / entry["file"], entry) for entry in generation.manifest["items"]["interest"]
    ]
    return join_blocks([image.arrays for image in images], generation.manifest.get("resident_block", 0))


def join_blocks(blocks: list[Arrays], last: int) -> Items:
    """The item table from its blocks, in order. Rows that several blocks have are those of block `last`."""
    # None of several blocks: what has any is not divided.
    inputs = Rows(blocks[0]["inputs"], blocks[0]["input_squares"])
    if len(blocks) == 1:
        return Items(Rows(blocks[0]["outputs"], blocks[0]["output_squares"]), inputs)
    num_rows = 1 + max(int(block["rows"].max(initial=0)) for block in blocks)
    outputs = Rows(np.empty((num_rows, blocks[0]["outputs"].shape[1]), np.float32), np.empty(num_rows, np.float32))
    for block in [*blocks[:last], *blocks[last + 1 :], blocks[last]]:
        outputs.vectors[block["rows"]], outputs.squares[block["rows"]] = block["outputs"], block["output_squares"]
    return Items(outputs, inputs)


def find_topics(store_dir: Path) -> float:
    """The share of items whose nearest item is of their topic (tests.data.corpora.planted_histories)."""
    items = open_generation(store_dir).read_items()
    unit = items / np.linalg.norm(items, axis=1, keepdims=True).clip(1e-9)
    nearest = np.argsort(-(unit @ unit.T), axis=1)[:, 1]
    return float((nearest % 4 == np.arange(len(items)) % 4).mean())


def count_differences(one: list[Rows], other: list[Rows]) -> tuple[int, int]:
    """Rows compared, and rows of which a bit of the vector or of the optimizer's state differs."""
    assert [len(rows.vectors) for rows in one] == [len(rows.vectors) for rows in other]
    differences = [differing_rows(a, b) for a, b in zip(one, other, strict=True)]
    return sum(map(len, differences)), int(sum(map(np.sum, differences)))


def differing_rows(one: Rows, other: Rows) -> np.ndarray:
    """bool[n]: which rows are not the same bits."""
    pairs = ((one.vectors, other.vectors), (one.squares[:, None], other.squares[:, None]))
    return np.logical_or.reduce([(a.view(np.uint8) != b.view(np.uint8)).any(axis=1) for a, b in pairs])


def assert_same_bits(one: Path, other: Path) -> None:
    num_rows, num_different = count_differences(read_tables(one), read_tables(other))
    assert num_rows > 0
    assert num_different == 0


def watch_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no manifest of a store may count before all that this process wrote of it, and the names, were synced."""
    write_image, fsync, replace = surf2vec.trainer.store.writer.write_image, os.fsync, os.replace
    unsynced: set[tuple[int, int]] = set()
    unsynced_names: dict[tuple[int, int], tuple[int, int]] = {}

    def watched_write(path: Path, image: Image) -> dict[str, Any]:
        about = write_image(path, image)
        unsynced.add(place_of(path.stat()))
        unsynced_names[place_of(path.stat())] = place_of(path.parent.stat())
        return about

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        place = place_of(os.fstat(descriptor))
        unsynced.discard(place)
        for file in [file for file, folder in unsynced_names.items() if folder == place]:
            del unsynced_names[file]

    def watched_replace(source: Any, target: Any, **named: Any) -> None:
        path = Path(target)
        if path.name == STORE_MANIFEST or path.parent.name == "pinned":
            folder = path.parent if path.name == STORE_MANIFEST else path.parent.parent
            paths = [folder / name for name in names_in(read_json(Path(source)))]
            files = [place_of(path.stat()) for path in paths if path.exists()]
            late = len(unsynced.intersection(files))
            assert not late, f"{path} would name {late} files that are not on the disk"
            assert not unsynced_names.keys() & set(files), f"{path} would name files whose names may be lost"
        replace(source, target, **named)

    monkeypatch.setattr(surf2vec.trainer.store.writer, "write_image", watched_write)
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)


def names_in(manifest: dict[str, Any]) -> list[str]:
    """The files that a store's manifest names; none of what is no manifest of this format, which tests write, too."""
    return list(Generation(Path(), manifest).files()) if {"users", "items"} <= manifest.keys() else []


def place_of(about: os.stat_result) -> tuple[int, int]:
    """What tells one file or folder from all others."""
    return about.st_dev, about.st_ino
