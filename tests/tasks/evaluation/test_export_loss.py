"""What a narrower release loses: measured on what training had seen, not on what the refit has seen since."""

from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.config import ExportConfig
from surf2vec.tasks.evaluation.evaluate import Question, evaluate, measure_loss, questions, rank_held_out
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.export.reduction import project, read_projection
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.training.infer import FrozenItems, infer_vectors, refit_held_out
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import BothParts, join_parts, read_item_vectors
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.scores import score_by_vectors

Trained = tuple[Corpus, Generation, float]


def make_trained(root: Root, **settings: object) -> Trained:
    write_corpus(root.corpus("window"), planted_histories(num_users=600, num_items=80))
    config = TrainConfig(vector_size=16, epochs=20, threads=1, **settings)  # type: ignore[arg-type]
    job = Job(root.corpus("window"), root.store, config, 4 * 10**9)
    train(job)
    corpus = open_corpus(job.corpus_dir)
    before = evaluate(corpus, open_generation(job.store_dir))
    refit_held_out(job, corpus, {"evaluation": before})
    return corpus, open_generation(job.store_dir), before["metrics"]["hit_at_10"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return make_trained(Root(tmp_path_factory.mktemp("root")))


def loss(trained: Trained, folder: Path, **storage: object) -> dict[str, float]:
    corpus, generation, _ = trained
    job = Export(corpus.folder, folder, "r1", "run-1", "space-1", ExportConfig(**storage), noise_key=b"k")  # type: ignore[arg-type]
    export_vectors(job, generation)
    return measure_loss(corpus, generation, folder, threads=1)


def test_a_release_in_full_loses_nothing_and_is_not_measured(trained: Trained, tmp_path: Path) -> None:
    assert loss(trained, tmp_path / "r1") == {}


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_narrower_numbers_lose_next_to_nothing(trained: Trained, tmp_path: Path, dtype: str) -> None:
    measured = loss(trained, tmp_path / "r1", dtype=dtype)
    assert abs(measured["export_hit_at_10_loss"]) < 0.02
    # Held-out users inferred anew find about what the trained ones found, not what those find that have seen the answer.
    assert measured["export_hit_at_10"] == pytest.approx(trained[2], abs=0.05)


def test_the_loss_is_that_of_ranking_by_the_projected_vectors(trained: Trained, tmp_path: Path) -> None:
    measured = loss(trained, tmp_path / "r1", pca_dim=1)
    assert measured["export_hit_at_10_loss"] > 0.05  # four topics do not go into one number
    corpus, generation, _ = trained
    projection = read_projection(tmp_path / "r1" / "projection.npy")
    frozen = FrozenItems(generation, corpus.count_training_tokens(), 1)
    items, hits = read_item_vectors(generation), []
    for partition, (question, _) in enumerate(questions(corpus, BothParts(generation, corpus))):
        histories = corpus.read(partition)
        vectors = []
        for row in np.flatnonzero(histories.is_held_out):
            seen = histories.tokens[histories.starts[row] : histories.ends[row]]
            offsets = np.array([0, len(seen)])
            interest = infer_vectors(frozen, seen, offsets, histories.hashes[row : row + 1]).vectors
            vectors.append(join_parts(generation, interest, seen, offsets[:1], offsets[1:])[0])
        for basis in (np.eye(16, dtype=np.float32), projection):
            asked = Question(project(np.stack(vectors), basis), question.items, question.seen_rows, question.seen_items)
            ranks = rank_held_out(asked, score_by_vectors(project(items, basis))).ranks
            hits.append((basis is projection, ranks <= 10))
    full, reduced = (np.concatenate([hit for is_ours, hit in hits if is_ours == side]).mean() for side in (False, True))
    assert measured["export_hit_at_10"] == pytest.approx(reduced)
    assert measured["export_hit_at_10_loss"] == pytest.approx(full - reduced)


def test_noise_costs_the_more_the_more_there_is(trained: Trained, tmp_path: Path) -> None:
    little, much = (loss(trained, tmp_path / "r1", noise=noise)["export_hit_at_10_loss"] for noise in (0.1, 20))
    assert abs(little) < 0.05 < much


def test_a_tree_is_measured_through_its_nodes(tmp_path: Path) -> None:
    trained = make_trained(Root(tmp_path), hs=1)
    measured = loss(trained, tmp_path / "r1", pca_dim=15, dtype="float16")
    assert abs(measured["export_hit_at_10_loss"]) < 0.05
    assert measured["export_hit_at_10"] == pytest.approx(trained[2], abs=0.08)


def test_nobody_held_out_nothing_measured(tmp_path: Path) -> None:
    root = Root(tmp_path)
    write_corpus(root.corpus("window"), planted_histories(), max_users=0)
    job = Job(root.corpus("window"), root.store, TrainConfig(vector_size=4, epochs=1), 4 * 10**9)
    train(job)
    assert loss((open_corpus(job.corpus_dir), open_generation(job.store_dir), 0.0), tmp_path / "r1", dtype="int8") == {}
