"""A corpus without some users: also with holes, and with the rows that a night trained."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.forgetting.erase import erase_from_corpus, find_rows
from tasks.root.run import Root
from tasks.users.user_set import want_users
from tests.corpora import write_corpus
from trainer.errors import DamageError
from trainer.store.tokens import CHANGED, Corpus, open_corpus
from trainer.system.files import describe_file, write_json

HISTORIES = {f"user-{i}": [i % 5, (i + 1) % 5, (i + 2) % 5][: 2 + i % 2] for i in range(24)}
GOING = ["user-3", "user-17"]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    write_corpus(tmp_path / "corpus" / "old", HISTORIES, partitions=4)
    return Root(tmp_path)


def histories(corpus: Corpus) -> dict[str, list[int]]:
    found = {}
    for partition in range(corpus.num_partitions):
        part = corpus.read(partition)
        spans = zip(part.offsets[:-1].tolist(), part.offsets[1:].tolist(), strict=True)
        for user_id, (start, end) in zip(corpus.read_user_ids(partition), spans, strict=True):
            found[user_id] = part.tokens[start:end].tolist()
    return found


def test_rows_go_and_counts_follow(root: Root) -> None:
    old = open_corpus(root.corpus("old"))
    new = erase_from_corpus(root, old, find_rows(old, want_users([*GOING, "stranger"])))
    assert histories(new) == {user_id: tokens for user_id, tokens in HISTORIES.items() if user_id not in GOING}
    manifest = new.manifest
    assert manifest["num_users"] == sum(manifest["users"]) == 22
    assert manifest["num_tokens"] == sum(manifest["tokens"]) == sum(map(len, HISTORIES.values())) - 6
    assert manifest["num_held_out"] == sum(new.read(p).is_held_out.sum() for p in range(4)) == 22
    assert manifest["window_id"] == new.folder.name != "old"
    for name, about in manifest["files"].items():
        assert describe_file(new.folder / name) == about
    assert histories(old) == HISTORIES
    assert erase_from_corpus(root, old, find_rows(old, want_users(GOING))).folder == new.folder


def test_nobody_is_found_where_nobody_is(root: Root) -> None:
    assert find_rows(open_corpus(root.corpus("old")), want_users(["stranger"])) == {}


def test_a_damaged_corpus_is_refused(root: Root) -> None:
    old = open_corpus(root.corpus("old"))
    rows = find_rows(old, want_users(GOING))
    path = old.folder / f"p{min(rows):05d}.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamageError, match=path.name):
        erase_from_corpus(root, old, rows)
    assert [folder.name for folder in (root.path / "corpus").iterdir()] == ["old"]


def test_holes_and_the_rows_of_the_night_move_with_the_others(root: Root) -> None:
    """As an incremental night leaves it: a hole in a micro-partition, and `changed/` with rows of the whole corpus."""
    folder = root.corpus("old")
    old = open_corpus(folder)
    partition = min(find_rows(old, want_users(["user-3"])))
    ids = old.read_user_ids(partition)
    place = ids.index("user-3")
    hole = 0 if place else 1
    users = pq.read_table(folder / f"p{partition:05d}.users.parquet")
    names = pa.array([None if row == hole else user_id for row, user_id in enumerate(ids)])
    hashes = [0 if row == hole else value for row, value in enumerate(users["hash"].to_pylist())]
    path = folder / f"p{partition:05d}.users.parquet"
    pq.write_table(pa.table({"user_id": names, "hash": pa.array(hashes, pa.uint64())}), path)
    manifest = old.manifest | {"num_users": 23, "files": old.manifest["files"] | {path.name: describe_file(path)}}
    write_json(folder / "manifest.json", manifest)
    left = [place, *(row for row in range(len(ids)) if row not in (place, hole))][:3]
    rows = sorted(left)
    trained = {ids[row]: HISTORIES[ids[row]] for row in rows}
    changed = write_corpus(folder / CHANGED, trained, partitions=4, num_items=5)
    files = dict(changed.manifest["files"])
    for number in range(4):
        np.save(folder / CHANGED / f"p{number:05d}.rows.npy", np.array(rows if number == partition else [], np.uint32))
    counts = np.bincount([item for history in HISTORIES.values() for item in history], minlength=5)
    np.save(folder / CHANGED / "counts.npy", counts)  # somewhat more than training saw, but all the same
    files |= {path.name: describe_file(path) for path in (folder / CHANGED).glob("*.npy")}
    write_json(folder / CHANGED / "manifest.json", changed.manifest | {"files": files})

    old = open_corpus(folder)
    new = erase_from_corpus(root, old, find_rows(old, want_users(["user-3"])))
    assert new.manifest["num_users"] == 22
    assert new.read_user_ids(partition) == [name for name in names.to_pylist() if name != "user-3"]
    after = open_corpus(new.folder / CHANGED)
    moved = np.load(after.folder / f"p{partition:05d}.rows.npy").tolist()
    assert [new.read_user_ids(partition)[row] for row in moved] == after.read_user_ids(partition)
    assert histories(after) == {user_id: tokens for user_id, tokens in trained.items() if user_id != "user-3"}
    lost = np.load(changed.folder / "counts.npy") - np.load(after.folder / "counts.npy")
    assert lost.tolist() == np.bincount(HISTORIES["user-3"][:-1], minlength=5).tolist()  # the last was held out
    assert new.manifest["num_changed"] == len(trained) - 1
    assert after.manifest["window_id"] == f"{new.folder.name}/changed"
    for name, about in after.manifest["files"].items():
        assert describe_file(after.folder / name) == about
