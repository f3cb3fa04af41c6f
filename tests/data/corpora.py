"""Small corpora in the layout that `tasks/corpus/build.py` writes, made from literal histories."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.trainer.store.tokens import Corpus, held_out_keys, open_corpus
from surf2vec.trainer.system.files import describe_file, write_json

RULES = {
    "version": 2,
    "timezone": "UTC",
    "granularity": "page",
    "prefix_depth": None,
    "keep_query": [],
    "mask_secrets": True,
}


def user_hash(user_id: str) -> int:
    """The hash of a user as DuckDB's md5_number_lower gives it."""
    return int.from_bytes(hashlib.md5(user_id.encode()).digest()[8:], "little")


def held_out_position(history: Sequence[int]) -> int:
    """Place of the newest event whose item is new to the user, at place 1 or later; -1 where there is none."""
    return max((i for i in range(1, len(history)) if history[i] not in history[:i]), default=-1)


def write_corpus(
    folder: Path,
    histories: Mapping[str, Sequence[int]],
    partitions: int = 4,
    num_items: int = 0,
    max_users: int = 20_000,
) -> Corpus:
    """A corpus with these histories: user id → item numbers, oldest first."""
    folder.mkdir(parents=True)
    files, users, tokens, keys = {}, [], [], [np.empty(0, np.uint64)]
    for partition in range(partitions):
        ids = sorted(user for user in histories if user_hash(user) % partitions == partition)
        lengths = [len(histories[user]) for user in ids]
        hashes = np.array([user_hash(user) for user in ids], dtype=np.uint64)
        held_out = np.array([held_out_position(histories[user]) for user in ids], dtype=np.int32)
        keys.append(held_out_keys(hashes)[held_out >= 0])
        arrays = {
            "offsets": np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            "tokens": np.array([item for user in ids for item in histories[user]], dtype=np.int32),
            "held_out": held_out,
            "activity": make_activity(hashes),
        }
        name = f"p{partition:05d}"
        last_days = np.full(len(ids), np.iinfo(np.int32).min, dtype=np.int32)  # undated
        table = {"user_id": pa.array(ids, pa.string()), "hash": hashes, "last_day": last_days}
        pq.write_table(pa.table(table), folder / f"{name}.users.parquet")
        for kind, array in arrays.items():
            np.save(folder / f"{name}.{kind}.npy", array)
        users.append(len(ids))
        tokens.append(int(sum(lengths)))
    sorted_keys = np.sort(np.concatenate(keys))
    num_held_out = min(max_users, len(sorted_keys))
    num_items = num_items or 1 + max(max(history) for history in histories.values())
    counts = np.bincount([item for history in histories.values() for item in history], minlength=num_items)
    vocabulary = {"item_ix": np.arange(num_items, dtype=np.int32), "url": [f"/page/{i}" for i in range(num_items)]}
    pq.write_table(pa.table(vocabulary | {"count": counts, "users": counts}), folder / "vocabulary.parquet")
    files = {path.name: describe_file(path) for path in sorted(folder.iterdir())}
    manifest = (
        {"format_version": 2, "window_id": folder.name, "partitions": partitions}
        | {"num_users": sum(users), "num_items": num_items, "num_tokens": sum(tokens), "users": users}
        | {"tokens": tokens, "holes": [0] * partitions, "base": None}
        | {"held_out_key_max": int(sorted_keys[num_held_out - 1]) if num_held_out else -1}
        | {"num_held_out": num_held_out, "since": None, "until": None, "undated": True, "has_order": True}
        | {"funnel": [], "files": files, "made_from": {"rules": RULES}}
    )
    write_json(folder / "manifest.json", manifest)
    return open_corpus(folder)


def make_activity(hashes: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Activity of these users, float32[n, 28], drawn by their hashes."""
    rows = [np.random.default_rng(one).standard_normal(28, np.float32) for one in hashes.tolist()]
    return np.array(rows, np.float32).reshape(-1, 28)


def describe_anew(corpus: Corpus) -> Corpus:
    """The corpus after a test wrote some of its files anew: its manifest says what they are now."""
    files = {name: describe_file(corpus.folder / name) for name in corpus.manifest["files"]}
    write_json(corpus.folder / "manifest.json", corpus.manifest | {"files": files})
    return open_corpus(corpus.folder)


def planted_histories(
    num_users: int = 200, num_items: int = 60, topics: int = 4, length: int = 12
) -> dict[str, list[int]]:
    """Users who each visit the items of one topic (item % topics): what vectors should find."""
    rng = np.random.default_rng(7)
    return {
        f"user-{user}": (
            rng.integers(0, num_items // topics, rng.integers(2, length)) * topics + user % topics
        ).tolist()
        for user in range(num_users)
    }
