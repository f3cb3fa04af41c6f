"""What the doctor finds in a corpus whose files are whole but do not fit each other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.upkeep.doctor import find_misfits
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.system.files import describe_file
from tests.data.corpora import user_hash

IDS = ["bob", None, "ann", "cid"]
Parts = dict[str, Any]


def make_whole() -> Parts:
    return {
        "ids": list(IDS), "hashes": [user_hash(user) if user else 0 for user in IDS], "offsets": [0, 2, 2, 3, 3],
        "tokens": [0, 1, 2],
    }  # fmt: skip


def make_changed() -> Parts:
    return {"ids": ["ann"], "hashes": [user_hash("ann")], "offsets": [0, 1], "tokens": [2], "rows": [2]}


def write(folder: Path, parts: Parts) -> Corpus:
    """One micro-partition of these users and tokens, as part of a corpus that continues another."""
    folder.mkdir()
    users = {"user_id": pa.array(parts["ids"], pa.string()), "hash": pa.array(parts["hashes"], pa.uint64())}
    pq.write_table(pa.table(users), folder / "p00000.users.parquet")
    num_users = len(parts["ids"])
    kinds = {"offsets": np.int64, "tokens": np.int32, "rows": np.uint32, "held_out": np.int32}
    arrays = {"held_out": [-1] * num_users} | {name: parts[name] for name in kinds if name in parts}
    for name, array in arrays.items():
        np.save(folder / f"p00000.{name}.npy", np.array(array, dtype=kinds[name]))
    files = {path.name: describe_file(path) for path in folder.iterdir()}
    manifest = {
        "partitions": 1, "users": [num_users], "holes": [parts["ids"].count(None)], "tokens": [len(parts["tokens"])],
        "num_items": 3, "held_out_key_max": -1, "base": "0123456789abcdef", "files": files,
    }  # fmt: skip
    return Corpus(folder, manifest)


def misfits(tmp_path: Path, whole: Parts, changed: Parts) -> list[str]:
    return list(find_misfits(write(tmp_path / "whole", whole), write(tmp_path / "changed", changed)))


def test_what_fits_is_no_misfit(tmp_path: Path) -> None:
    assert misfits(tmp_path, make_whole(), make_changed()) == []


@pytest.mark.parametrize(
    ("alter", "found"),
    [
        (lambda whole, changed: whole["offsets"].__setitem__(1, 3), "offsets that fall"),
        (lambda whole, changed: whole["tokens"].__setitem__(0, 3), "tokens outside of the vocabulary"),
        (lambda whole, changed: whole["hashes"].__setitem__(1, 7), "a hole"),
        (lambda whole, changed: whole["offsets"].__setitem__(1, 1), "a hole"),
        (lambda whole, changed: whole["ids"].__setitem__(3, "bob"), "users out of order, or twice"),
        (lambda whole, changed: changed["rows"].__setitem__(0, 0), "the changed rows are not those of the corpus"),
        (lambda whole, changed: changed["rows"].__setitem__(0, 4), "the changed rows are not those of the corpus"),
        (lambda whole, changed: changed["tokens"].__setitem__(0, 1), "the changed rows are not those of the corpus"),
        (lambda whole, changed: changed.pop("rows"), "the changed rows are not those of the corpus"),
    ],
)
def test_misfits_are_told(tmp_path: Path, alter: Callable[[Parts, Parts], Any], found: str) -> None:
    whole, changed = make_whole(), make_changed()
    alter(whole, changed)
    told = misfits(tmp_path, whole, changed)
    assert any(line.startswith("micro-partition 0: ") and found in line for line in told), told
