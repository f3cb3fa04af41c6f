"""A training with a tree, through evaluation and export: users have vectors, items have none, and everybody says so."""

from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.evaluation.evaluate import Question, evaluate, rank_held_out
from surf2vec.tasks.evaluation.scores import score_of
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.queries.word2vec import export_word2vec
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.report.pictures import read_pages
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.model.trees import log_probabilities, make_tree
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.system.files import read_json
from surf2vec.trainer.training.infer import refit_held_out
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import read_item_table


@pytest.fixture(scope="module", params=["huffman", "two_level", "balanced"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    root = Root(tmp_path_factory.mktemp(request.param))
    write_corpus(root.corpus("window"), planted_histories(num_users=400, num_items=80))
    config = TrainConfig(vector_size=16, epochs=30, hs=1, tree=request.param, tree_branching=8, threads=1)
    made = Job(root.corpus("window"), root.store, config, 4 * 10**9)
    train(made)
    return made


def test_planted_topics_are_found_through_the_tree(job: Job) -> None:
    corpus = open_corpus(job.corpus_dir)
    metrics = evaluate(corpus, open_generation(job.store_dir))["metrics"]
    assert metrics["hit_at_20"] > 1.5 * metrics["popularity_hit_at_20"]


def test_ranks_are_those_of_the_probabilities(job: Job) -> None:
    corpus, generation = open_corpus(job.corpus_dir), open_generation(job.store_dir)
    counts = corpus.count_training_tokens()
    tree = make_tree(job.config, counts)
    assert tree is not None
    nodes = read_item_table(generation).outputs.vectors
    users = generation.read_users(0)[:5]
    none = np.empty(0, np.int64)
    answer = rank_held_out(Question(users, np.arange(5), none, none), score_of(generation, counts))
    scores = log_probabilities(tree, nodes, users)
    expected = [1 + (scores[i] > scores[i, i]).sum() for i in range(5)]
    assert answer.ranks.tolist() == expected


def test_a_release_has_users_alone_and_says_so(job: Job, tmp_path: Path) -> None:
    root = Root(job.store_dir.parent)
    generation = refit_held_out(job, open_corpus(job.corpus_dir), {"evaluation": {}})
    folder = root.export("r1")
    export_vectors(Export(job.corpus_dir, folder, "r1", "run-1", "space-1"), generation)
    manifest = read_json(folder / "manifest.json")
    assert manifest["item_files"] == {}
    assert not [name for name in list_files(manifest) if name.startswith("item_vectors")]
    answer = similar_users(root, folder, "user-1", 3)
    assert len(answer["neighbours"]) == 3
    assert answer["items"] == answer["seen"] == []
    assert read_pages(folder).urls == []
    assert export_word2vec(folder, tmp_path / "users.bin", "users")["rows"] == 400
    with pytest.raises(ConfigError, match=r"no item vectors: it was trained with train.hs = 1"):
        export_word2vec(folder, tmp_path / "items.bin", "items")
