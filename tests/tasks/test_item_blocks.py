"""An item table in several blocks, through the steps after training: what is read a part at a time is what is read whole."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import ExportConfig
from surf2vec.tasks.evaluation import scores as scores_module
from surf2vec.tasks.evaluation.evaluate import evaluate, join_sides, measure_loss, questions, rank_held_out
from surf2vec.tasks.evaluation.scores import score_of
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.release.release_reader import decode_vectors
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.model.trees import log_probabilities, make_tree
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.layout import image_of_items, image_of_rows
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import Writer
from surf2vec.trainer.training.infer import refit_held_out
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import BothParts
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.releases import read_items
from tests.roots.scores import score_by_vectors
from tests.roots.store_contents import read_item_table
from tests.servers.python import run_python
from tests.trainer.training.stopping import PLAN, divided

NUM_BLOCKS = 3
TREES = [
    {"hs": 1, "tree": "huffman"},
    {"hs": 1, "tree": "two_level"},
    {"hs": 1, "tree": "balanced", "tree_branching": 4},
]


def train_in_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> Job:
    write_corpus(folder / "corpus", planted_histories(num_users=400, num_items=80), partitions=8)
    config = TrainConfig(vector_size=16, epochs=12, threads=1, negative=5, **settings)  # type: ignore[arg-type]
    job = Job(folder / "corpus", folder / "store", config, 4 * 10**9)
    monkeypatch.setattr(PLAN, divided(3, NUM_BLOCKS))
    train(job)
    return job


def test_ranks_and_vectors_are_those_of_the_table_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train_in_blocks(tmp_path, monkeypatch)
    corpus, generation = open_corpus(job.corpus_dir), open_generation(job.store_dir)
    items = np.hstack((read_item_table(generation).outputs.vectors, generation.trail.outputs.vectors))
    monkeypatch.setattr(scores_module, "GRAIN_ITEMS", 7)
    monkeypatch.setattr(scores_module, "PIECE_BYTES", 1)
    [(question,)] = join_sides((one,) for one, _ in questions(corpus, BothParts(generation, corpus)))
    streamed, whole = score_of(generation, corpus.count_training_tokens()), score_by_vectors(items)
    assert streamed.num_pieces == whole.num_pieces == 12
    ours, theirs = rank_held_out(question, streamed), rank_held_out(question, whole)
    np.testing.assert_array_equal(ours.ranks, theirs.ranks)
    np.testing.assert_array_equal(ours.top, theirs.top)
    evaluation = evaluate(corpus, generation)
    assert evaluation["metrics"]["hit_at_20"] > 1.5 * evaluation["metrics"]["popularity_hit_at_20"]
    refitted = refit_held_out(job, corpus, {"evaluation": evaluation})
    config = ExportConfig(dtype="int8", pca_dim=15)
    plain = ExportConfig(activity=False)
    told = export_vectors(Export(job.corpus_dir, tmp_path / "export", "r1", "run-1", "space-1", plain), refitted)
    assert told["num_items"] == 80
    np.testing.assert_array_equal(read_items(tmp_path / "export")[1], items)
    export_vectors(Export(job.corpus_dir, tmp_path / "small", "r2", "run-1", "space-1", config), refitted)
    loss = measure_loss(corpus, refitted, tmp_path / "small", threads=1)
    assert loss["export_hit_at_10"] == pytest.approx(evaluation["metrics"]["hit_at_10"], abs=0.08)
    assert abs(loss["export_hit_at_10_loss"]) < 0.05


@pytest.mark.parametrize("settings", TREES, ids=str)
def test_ranks_down_a_tree_are_those_of_the_whole_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    job = train_in_blocks(tmp_path, monkeypatch, **settings)
    corpus, generation = open_corpus(job.corpus_dir), open_generation(job.store_dir)
    counts = corpus.count_training_tokens()
    tree = make_tree(job.config, counts)
    assert tree is not None
    nodes = read_item_table(generation).outputs.vectors
    [(question,)] = join_sides((one,) for one, _ in questions(corpus, generation))
    expected = log_probabilities(tree, nodes, question.vectors)
    scores = score_of(generation, counts)
    assert scores.num_pieces == NUM_BLOCKS
    found = np.full_like(expected, np.nan)
    for piece in scores.pieces():
        found[:, piece.items] = piece.score(question.vectors)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    expected[question.seen_rows, question.seen_items] = -np.inf
    own = np.take_along_axis(expected, question.items[:, None], axis=1)
    ranks = 1 + (expected > own).sum(axis=1) + ((expected == own).sum(axis=1) - 1) / 2
    np.testing.assert_allclose(rank_held_out(question, scores).ranks, ranks, atol=1)  # a tie but for rounding
    metrics = evaluate(corpus, generation)["metrics"]
    assert metrics["hit_at_20"] > 1.5 * metrics["popularity_hit_at_20"]
    refit_held_out(job, corpus, {"evaluation": {}})


BIG_ITEMS, BIG_SIZE, BIG_BLOCKS = 1_000_000, 300, 10
ROOM_BYTES = 400 * 10**6  # beside what the process holds at first; the table has 1,204 MB
CHILD = """
import json, sys, threading, time
from pathlib import Path
from surf2vec.tasks.evaluation.evaluate import evaluate
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.training.infer import refit_held_out
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.training.warm_up import warm_up
from surf2vec.trainer.store.generation import open_generation

folder = Path(sys.argv[1])
generation = open_generation(folder / "store")
warm_up(pick_kernel("cpu", generation.config), generation.config)
budget = private_bytes() + int(sys.argv[2])
peaks = [0]

def watch():
    while True:
        peaks[0] = max(peaks[0], private_bytes())
        time.sleep(0.002)

threading.Thread(target=watch, daemon=True).start()
job = Job(folder / "corpus", folder / "store", generation.config, budget)
corpus = open_corpus(job.corpus_dir)
told = evaluate(corpus, generation, memory_bytes=budget)
refitted = refit_held_out(job, corpus, {"evaluation": told})
export_vectors(Export(job.corpus_dir, folder / "export", "r1", "run-1", "space-1", memory_bytes=budget), refitted)
print(json.dumps({"peak_bytes": peaks[0], "budget_bytes": budget, "num_users": told["num_users"]}))
"""


@pytest.mark.slow
def test_a_table_several_times_the_budget_goes_through_evaluation_refit_and_export(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", planted_histories(), partitions=4, num_items=BIG_ITEMS)
    (tmp_path / "store").mkdir()
    config = TrainConfig(parts="interest", vector_size=BIG_SIZE, epochs=1, threads=1, negative=5)
    writer, rng = Writer(tmp_path / "store", 1), np.random.default_rng(1)
    for partition, num_users in enumerate(corpus.users.tolist()):
        vectors = rng.standard_normal((num_users, BIG_SIZE), np.float32)
        writer.write("users", partition, image_of_rows(Rows(vectors, np.ones(num_users, np.float32))))
    none = Rows(np.zeros((0, BIG_SIZE), np.float32), np.zeros(0, np.float32))
    rows = rng.standard_normal((BIG_ITEMS // BIG_BLOCKS, BIG_SIZE), np.float32)
    blocks = ItemBlocks(config, corpus.count_training_tokens(), BIG_BLOCKS)
    for block in range(BIG_BLOCKS):
        places = blocks.rows(block)
        assert places is not None
        items = Items(Rows(rows[places // BIG_BLOCKS], np.ones(len(places), np.float32)), none)
        writer.write("interest", block, image_of_items(items, places))
    writer.commit(
        {
            "partitions": 4, "num_items": BIG_ITEMS, "num_blocks": BIG_BLOCKS, "vector_size": BIG_SIZE, "recency": 0.0,
            "config": dataclasses.asdict(config), "resident_block": 0, "stage": "trained", "position": 0, "window_id": "corpus",
        }
    )  # fmt: skip
    told = json.loads(run_python("-c", CHILD, str(tmp_path), str(ROOM_BYTES)))
    assert told["num_users"] == corpus.manifest["num_held_out"]
    assert told["peak_bytes"] <= told["budget_bytes"]
    with pq.ParquetFile(tmp_path / "export" / "item_vectors" / "part-00000.parquet") as file:
        assert file.metadata.num_rows == BIG_ITEMS
        first = decode_vectors(file.read_row_group(0, columns=["vector"]))
    np.testing.assert_array_equal(first[:, :BIG_SIZE], rows[np.arange(len(first)) // BIG_BLOCKS])
