"""Items begin from a word2vec-format file or a gensim model, and a training is told apart by what it began from."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.gensim.warm_start import apply_warm_start, read_warm_start, warm_start_of
from surf2vec.trainer.gensim.word2vec_format import write_word2vec
from surf2vec.trainer.kernels.first_rows import begin_items
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus

CONFIG = TrainConfig(parts="interest", vector_size=8, epochs=1, threads=1)


@pytest.fixture
def corpus_dir(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "corpus", planted_histories())
    return tmp_path / "corpus"


def write_vectors(path: Path, names: list[str], vector_size: int = 8) -> np.ndarray:
    vectors = np.random.default_rng(1).normal(size=(len(names), vector_size)).astype(np.float32)
    write_word2vec(path, [(names, vectors)], len(names), vector_size)
    return vectors


def test_rows_are_matched_by_url(corpus_dir: Path, tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path / "v.bin", ["/elsewhere", "/page/7", "/page/0"])
    items = begin_items(dataclasses.replace(CONFIG, dm=1), 60, 60)
    assert apply_warm_start(items, corpus_dir, read_warm_start(tmp_path / "v.bin")) == 2
    for rows in (items.outputs, items.inputs):
        np.testing.assert_array_equal(rows.vectors[[7, 0]], vectors[1:])
        assert rows.squares[[7, 0]].tolist() == [1, 1]
    assert (items.outputs.vectors[1:7] == 0).all()


def test_a_training_begins_from_a_file_and_knows_which(corpus_dir: Path, tmp_path: Path) -> None:
    names = [f"/page/{i}" for i in range(60)]
    vectors = write_vectors(tmp_path / "v.bin", names)
    config = dataclasses.replace(CONFIG, items_from=str(tmp_path / "v.bin"), alpha=1e-6, min_alpha=0, item_l2=0)
    messages: list[str] = []
    job = Job(corpus_dir, tmp_path / "store", config, 4 * 10**9)
    first = train(job, lambda name, values: messages.append(values.get("message", "")))
    assert "60 of 60 items begin from the vectors given" in messages
    np.testing.assert_allclose(open_generation(job.store_dir).read_items(), vectors, atol=1e-3)
    assert train(job)["generation"] == first["generation"]
    write_word2vec(tmp_path / "v.bin", [(names, vectors + 1)], 60, 8)
    assert train(job)["generation"] > first["generation"]  # the same path, another file: another training


@pytest.mark.parametrize("dm", [0, 1])
def test_a_gensim_model_in_memory(corpus_dir: Path, tmp_path: Path, dm: int) -> None:
    from gensim.models.doc2vec import Doc2Vec, TaggedDocument

    documents = [TaggedDocument([f"/page/{i}" for i in h], [u]) for u, h in planted_histories().items()]
    model = Doc2Vec(documents, dm=dm, vector_size=8, min_count=1, epochs=1, workers=1, seed=1)
    items = begin_items(dataclasses.replace(CONFIG, dm=dm), 60, 60)
    assert apply_warm_start(items, corpus_dir, warm_start_of(model)) == len(model.wv)
    row = model.wv.key_to_index["/page/5"]
    np.testing.assert_array_equal(items.outputs.vectors[5], model.syn1neg[row])
    if dm:
        np.testing.assert_array_equal(items.inputs.vectors[5], model.wv.vectors[row])
    job = Job(corpus_dir, tmp_path / "store", CONFIG, 4 * 10**9, warm_start=warm_start_of(model))
    assert train(job)["generation"] == 1


def test_a_model_without_negative_sampling_gives_its_words() -> None:
    from gensim.models import Word2Vec

    model = Word2Vec([["a", "b"]], vector_size=4, min_count=1, hs=1, negative=0, epochs=1, workers=1)
    for start in (warm_start_of(model), warm_start_of(model.wv)):
        assert start.inputs is None
        assert start.outputs.names == model.wv.index_to_key
        np.testing.assert_array_equal(start.outputs.vectors, model.wv.vectors)
    with pytest.raises(ConfigError, match="a dict is no model of gensim"):
        warm_start_of({})


def test_what_does_not_fit_is_refused(corpus_dir: Path, tmp_path: Path) -> None:
    write_vectors(tmp_path / "wide.bin", ["/page/1"], vector_size=16)
    write_vectors(tmp_path / "other.bin", ["/elsewhere"])
    for name, message in (
        ("wide", "have 16 dimensions and train.vector_size is 8"),
        ("other", "none of the 60 items of the corpus is among the 1 vectors"),
        ("missing", "cannot read"),
    ):
        config = dataclasses.replace(CONFIG, items_from=str(tmp_path / f"{name}.bin"))
        with pytest.raises(ConfigError, match=message):
            train(Job(corpus_dir, tmp_path / "store", config, 4 * 10**9))
    with pytest.raises(ConfigError, match=r"a tree \(train.hs = 1\) has none"):
        TrainConfig(parts="interest", hs=1, items_from="v.bin")
