"""Reading a corpus: what training sees of each user, and what it must not see."""

from pathlib import Path

import numpy as np
import pytest

from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.store.tokens import open_corpus, whole_window
from surf2vec.trainer.system.memory import PAGE_BYTES, make_pages
from tests.data.corpora import user_hash, write_corpus

HISTORIES = {"ann": [0, 1, 0, 2, 2, 1], "bob": [3, 3], "cid": [1, 2], "dot": [4]}


def test_training_ends_before_the_held_out_event(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", HISTORIES, partitions=1)
    histories = corpus.read(0)
    ids = corpus.read_ids(0).to_pylist()
    seen = {
        user: histories.tokens[histories.starts[row] : histories.ends[row]].tolist() for row, user in enumerate(ids)
    }
    assert seen == {"ann": [0, 1, 0], "bob": [3, 3], "cid": [1], "dot": [4]}
    assert histories.held_out_items().tolist() == [2, 2]
    assert histories.hashes.tolist() == [user_hash(user) for user in ids]


def test_training_counts_leave_out_what_is_withheld(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", HISTORIES, partitions=2)
    assert corpus.count_training_tokens().tolist() == [2, 2, 0, 2, 1]


def test_what_is_withheld_begins_with_the_held_out_item(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", HISTORIES, partitions=1)
    assert corpus.read(0).withheld_items().tolist() == [2, 2, 1, 2]  # ann's from the first 2 on, cid's last


def test_the_window_of_changed_rows_is_that_of_the_whole() -> None:
    assert whole_window("0123456789abcdef/changed") == whole_window("0123456789abcdef") == "0123456789abcdef"


def test_at_most_so_many_users_are_held_out(tmp_path: Path) -> None:
    histories = {f"u{i}": [i % 7, (i + 1) % 7] for i in range(100)}
    for max_users in (0, 1, 37, 1000):
        corpus = write_corpus(tmp_path / str(max_users), histories, partitions=4, max_users=max_users)
        held_out = sum(int(corpus.read(p).is_held_out.sum()) for p in range(4))
        assert held_out == min(max_users, 100)


def test_empty_micro_partitions_read_as_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", {"ann": [0, 1]}, partitions=8)
    assert sum(corpus.read(p).num_users for p in range(8)) == 1


def test_damage_is_named(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", HISTORIES, partitions=1)
    path = tmp_path / "c" / "p00000.tokens.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(
        DamageError, match=r"p00000.tokens.npy has \d+ bytes where its manifest says \d+; remove .* and run the same"
    ):
        corpus.read(0)
    with pytest.raises(DamageError, match="manifest.json is missing"):
        open_corpus(tmp_path)


def test_tokens_are_memory_mapped_or_read_to_pages(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", HISTORIES, partitions=8)
    pages = make_pages(3 * PAGE_BYTES)
    for partition in range(8):
        mapped, read = corpus.read(partition).tokens, corpus.read(partition, pages).tokens
        assert isinstance(mapped, np.memmap)
        assert not isinstance(read, np.memmap)
        assert np.shares_memory(read, pages) == (len(read) > 0)
        assert (read.dtype, read.tolist()) == (mapped.dtype, mapped.tolist())


def test_tokens_that_the_pages_do_not_hold_get_their_own(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", {"ann": list(range(5000))}, partitions=1)
    pages = make_pages(PAGE_BYTES)
    tokens = corpus.read(0, pages).tokens
    assert tokens.tolist() == list(range(5000))
    assert not np.shares_memory(tokens, pages)
