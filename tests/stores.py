"""What a store holds, to be compared bit for bit."""

from pathlib import Path

import numpy as np

from trainer.rows import Rows
from trainer.store import open_generation, read_rows


def read_tables(store_dir: Path) -> list[Rows]:
    """Every table of the current generation: users, a micro-partition after the other as far as there are any, then items."""
    generation = open_generation(store_dir)
    users = generation.manifest["users"]
    items = generation.read_item_table()
    return [*(read_rows(store_dir, users[key]) for key in sorted(users, key=int)), items.outputs, items.inputs]


def find_topics(store_dir: Path) -> float:
    """The share of items whose nearest item is of their topic (tests.corpora.planted_histories)."""
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
