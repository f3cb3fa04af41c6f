"""The corpus of a search has only what training sees; it asks for the newest new item of that."""

from pathlib import Path

import numpy as np

from surf2vec.tasks.tuning.tune import write_tuning_corpus
from tests.data.corpora import planted_histories, write_corpus


def test_it_has_no_token_that_evaluation_holds_out(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", planted_histories(num_users=600), partitions=4, max_users=400)
    sample = write_tuning_corpus(corpus, 1000, tmp_path / "sample")
    assert 500 < sample.num_users <= 600  # without those whose only token is held out
    assert sample.num_evaluated == 0
    assert sample.manifest["num_choosing"] == int(sample.read(0).is_choosing.sum())
    assert sample.num_items == corpus.num_items
    assert sample.num_partitions == 1  # few users need no more
    whole = [corpus.read(partition) for partition in range(4)]
    part, ids = sample.read(0), sample.read_users(0)["user_id"].to_pylist()
    found = {name: (p, row) for p in range(4) for row, name in enumerate(corpus.read_users(p)["user_id"].to_pylist())}
    for name, start, end, stop in zip(ids, part.starts, part.ends, part.offsets[1:], strict=True):
        histories, row = whole[found[name][0]], found[name][1]
        seen = histories.tokens[histories.starts[row] : histories.ends[row]].tolist()
        assert part.tokens[start:stop].tolist() == seen
        if end < stop:
            assert part.tokens[end] not in part.tokens[start:end]


def test_it_has_everybody_and_asks_some(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", planted_histories(num_users=50), partitions=2, max_users=0)
    sample = write_tuning_corpus(corpus, 20, tmp_path / "sample")
    assert sample.num_users == corpus.num_users
    assert sample.manifest["num_choosing"] == 20 == int(sample.read(0).is_choosing.sum())
    assert np.array_equal(sample.count_training_tokens() > 0, corpus.count_training_tokens() > 0)
