"""A corpus without some users: also with holes, and without the rows that a night trained."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.forgetting.erase import erase_from_corpus, find_rows
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.user_set import want_users
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.store.tokens import CHANGED, Corpus, open_corpus
from surf2vec.trainer.system.files import describe_file, write_json
from tests.data.corpora import write_corpus
from tests.roots.files import flip

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
        for user_id, (start, end) in zip(corpus.read_ids(partition).to_pylist(), spans, strict=True):
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


def test_a_damaged_corpus_is_refused(root: Root) -> None:
    old = open_corpus(root.corpus("old"))
    rows = find_rows(old, want_users(GOING))
    path = old.folder / f"p{min(rows):05d}.tokens.npy"
    flip(path)
    with pytest.raises(DamageError, match=path.name):
        erase_from_corpus(root, old, rows)
    assert [folder.name for folder in (root.path / "corpus").iterdir()] == ["old"]


def test_holes_stay_and_the_rows_of_the_night_are_left_out(root: Root) -> None:
    """As an incremental night leaves it: a hole in a micro-partition, and `changed/` with rows of the whole corpus."""
    folder = root.corpus("old")
    old = open_corpus(folder)
    partition = min(find_rows(old, want_users(["user-3"])))
    ids = old.read_ids(partition).to_pylist()
    hole = 1 if ids[0] == "user-3" else 0
    path = folder / f"p{partition:05d}.users.parquet"
    hashes = [0 if row == hole else value for row, value in enumerate(pq.read_table(path)["hash"].to_pylist())]
    names = [None if row == hole else user_id for row, user_id in enumerate(ids)]
    pq.write_table(pa.table({"user_id": names, "hash": pa.array(hashes, pa.uint64())}), path)
    told = {
        "num_users": 23,
        "holes": [int(number == partition) for number in range(4)],
        "base": "older",
        "num_changed": 3,
    }
    files = old.manifest["files"] | {path.name: describe_file(path)}
    write_json(folder / "manifest.json", old.manifest | told | {"files": files})
    write_corpus(folder / CHANGED, {"user-3": HISTORIES["user-3"]}, partitions=4, num_items=5)

    old = open_corpus(folder)
    new = erase_from_corpus(root, old, find_rows(old, want_users(["user-3"])))
    assert new.manifest["num_users"] == 22
    assert new.read_ids(partition).to_pylist() == [name for name in names if name != "user-3"]
    assert (new.manifest["base"], "num_changed" in new.manifest) == ("older", False)
    assert not (new.folder / CHANGED).exists()
