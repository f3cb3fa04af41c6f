"""A root whose corpus continued another one, holes and idle users and all: what reads corpora goes on with it."""

import shutil
from datetime import date
from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import EvaluateConfig, ExportConfig, IngestConfig, PublishConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import Base, CorpusRequest
from surf2vec.tasks.evaluation.evaluate import evaluate, measure_loss, rank_choosing
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.queries.infer import Inference, infer
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.root.run import Root, lock_root
from surf2vec.tasks.tuning.tune import write_tuning_corpus
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.tasks.upkeep.gc import collect_garbage
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation, write_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.training.infer import refit_held_out
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.roots.ingest import write_log
from tests.roots.releases import read_users
from tests.roots.training import MEMORY_BYTES, SETTINGS, rows_by_user

CONFIG, EVALUATE = IngestConfig(), EvaluateConfig()
TRAIN = TrainConfig(**SETTINGS)


def days_of(user: int) -> list[int]:
    """The days on which a user comes: of the first sixty a third only on day 1, a third on day 2, a third again on day 3."""
    return [3] if user >= 60 else [[1], [2], [1, 3]][user % 3]


def visits(user: int) -> list[int]:
    """The pages of a user's day, in order; on the third day it is the other way round."""
    return [(7 * user + n) % 20 for n in range(3 + user % 4)]


def build(root: Root, since: int, until: int, base: Base | None = None) -> Corpus:
    days = date(2026, 1, since), date(2026, 1, until)
    told = build_corpus(root, CorpusRequest(CONFIG, EVALUATE, *days, base=base), MEMORY_BYTES, 1)
    return open_corpus(root.corpus(told["window_id"]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Corpus, Corpus]:
    """Days 1 and 2, and day 3 on top: who came only on day 1 left, who came on day 2 is idle; of 80 who changed 60 are new.

    The store is trained on the whole, but its manifest says on the changed rows, as after a night.
    """
    folder = tmp_path_factory.mktemp("made")
    lines = [
        f"user-{user},/page/{item},2026-01-0{day}T00:{n:02d}:00Z"
        for user in range(120)
        for day in days_of(user)
        for n, item in enumerate(visits(user)[:: -1 if day == 3 else 1])
    ]
    root = Root(folder / "root")
    root.path.mkdir()
    ingest(root, [str(write_log(folder / "log.csv", *lines))], CONFIG, 4, MEMORY_BYTES, 1, ignore_event)
    base = build(root, 1, 2)
    corpus = build(root, 3, 3, Base(base.manifest["window_id"], retain_days=1))
    assert corpus.manifest["num_left"] == sum(corpus.holes) == 20
    train(Job(corpus.folder, root.store, TRAIN, MEMORY_BYTES))
    manifest = open_generation(root.store).manifest
    write_manifest(root.store, STORE_MANIFEST, manifest | {"window_id": f"{manifest['window_id']}/changed"})
    return root, base, corpus


@pytest.fixture
def root(made: tuple[Root, Corpus, Corpus], tmp_path: Path) -> Root:
    return Root(Path(shutil.copytree(made[0].path, tmp_path / "root")))


def users_there(corpus: Corpus) -> set[str]:
    return {user for p in range(corpus.num_partitions) for user in corpus.read_ids(p).to_pylist() if user is not None}


def export(root: Root, corpus: Corpus, **storage: str | int) -> Path:
    asked = Export(
        root.corpus(corpus.folder.name), root.export("r1"), "r1", "r1", "r1", ExportConfig(activity=False, **storage)
    )
    told = export_vectors(asked, open_generation(root.store))
    assert told["num_users"] == corpus.num_users == 100
    return root.export("r1")


def test_an_export_has_who_is_there_in_order_and_nobody_else(made: tuple[Root, Corpus, Corpus], root: Root) -> None:
    corpus = made[2]
    folder = export(root, corpus)
    users, rows = read_users(folder), rows_by_user(root)
    assert set(users) == set(rows) == users_there(corpus)
    assert all(rows[user].startswith(vector.tobytes()) for user, vector in users.items())
    for path in (folder / "user_vectors").iterdir():
        ids = pq.read_table(path)["user_id"].to_pylist()
        assert ids == sorted(ids, key=str.encode)
    assert faiss.read_index(str(folder / "index/users.faiss")).ntotal == 100


def test_an_export_of_a_full_night_is_in_order(made: tuple[Root, Corpus, Corpus], root: Root) -> None:
    """Its users without events come last in the corpus, but a lookup finds only who is at the place of the id."""
    corpus = build(root, 3, 3, Base(made[1].folder.name, retain_days=1, is_full=True))
    shutil.rmtree(root.store)
    train(Job(corpus.folder, root.store, TRAIN, MEMORY_BYTES))
    for path in (export(root, corpus) / "user_vectors").iterdir():
        ids = pq.read_table(path)["user_id"].to_pylist()
        assert ids == sorted(ids, key=str.encode)
    assert set(read_users(root.export("r1"))) == users_there(corpus)


def test_a_reduced_export_is_fitted_and_measured_without_holes(made: tuple[Root, Corpus, Corpus], root: Root) -> None:
    corpus = made[2]
    generation = open_generation(root.store)
    folder = export(root, corpus, pca_dim=2, dtype="float16")
    vectors = np.stack([np.frombuffer(row[: 4 * TRAIN.vector_size], np.float32) for row in rows_by_user(root).values()])
    expected = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors)[1][:, ::-1][:, :2]
    found = np.load(folder / "projection.npy")
    np.testing.assert_allclose(np.abs(np.sum(found * expected, axis=0)), 1, atol=1e-4)
    assert 0 <= measure_loss(corpus, generation, folder, 1)["export_hit_at_10"] <= 1


def test_similar_knows_the_idle_and_not_who_left(made: tuple[Root, Corpus, Corpus], root: Root) -> None:
    folder = export(root, made[2])
    idle = similar_users(root, folder, "user-1", 5)
    assert idle["seen"] == []
    assert len(idle["neighbours"]) == len(idle["items"]) == 5
    assert similar_users(root, folder, "user-2", 5)["seen"] != []
    with pytest.raises(InputError, match="not among the 100 users"):
        similar_users(root, folder, "user-0", 5)


def test_infer_finds_the_generation_of_the_changed_rows(
    made: tuple[Root, Corpus, Corpus], root: Root, tmp_path: Path
) -> None:
    export(root, made[2])
    pin_generation(root.store, "r1")
    log = write_log(tmp_path / "new.csv", "zoe,/page/1,2026-01-04T00:00:00Z", "zoe,/page/5,2026-01-04T00:01:00Z")
    asked = Inference([str(log)], tmp_path / "new.parquet", CONFIG, TRAIN, MEMORY_BYTES)
    assert infer(root, "r1", asked)["users"] == 1


def test_doctor_finds_no_fault_and_names_one(made: tuple[Root, Corpus, Corpus], root: Root) -> None:
    assert [f"{f.place}: {f.message}" for f in examine(root) if f.level != "ok"] == []
    folder = root.corpus(made[2].folder.name)
    (folder / "changed" / "stray").write_text("")
    (folder / "changed" / "p00001.rows.npy").unlink()
    found = {f.level: f"{f.place}: {f.message}" for f in examine(root) if f.level != "ok"}
    assert "p00001.rows.npy" in found["damage"]
    assert "stray" in found["warning"]


def test_gc_keeps_the_corpus_of_the_changed_rows(made: tuple[Root, Corpus, Corpus], root: Root) -> None:
    newest = build(root, 2, 3)
    with lock_root(root, "test"):
        removed = collect_garbage(root, PublishConfig(), dry_run=False)["removed"]
    assert [entry["place"] for entry in removed] == [str(root.corpus(made[1].folder.name))]
    assert newest.folder.exists()
    assert open_corpus(root.corpus(made[2].folder.name) / "changed").num_users == 80


def test_a_search_samples_it(made: tuple[Root, Corpus, Corpus], tmp_path: Path) -> None:
    corpus = made[2]
    sample = write_tuning_corpus(corpus, 1000, tmp_path / "sample")
    assert 60 < sample.num_users <= corpus.num_users  # without those whose only token is held out
    assert None not in sample.read_ids(0).to_pylist()
    assert train(Job(sample.folder, tmp_path / "store", TRAIN, MEMORY_BYTES))["tokens_per_second"]
    assert len(rank_choosing(sample, open_generation(tmp_path / "store"))) == sample.manifest["num_choosing"] > 0


def test_changed_rows_are_trained_ranked_and_fitted_again(made: tuple[Root, Corpus, Corpus], tmp_path: Path) -> None:
    whole = made[2]
    changed = open_corpus(whole.folder / "changed")
    job = Job(changed.folder, tmp_path / "store", TRAIN, MEMORY_BYTES)
    train(job)
    generation = open_generation(job.store_dir)
    assert generation.manifest["window_id"] == f"{whole.folder.name}/changed"
    assert [len(generation.read_users(p)) for p in range(4)] == changed.users.tolist()
    told = evaluate(changed, generation)
    assert told["num_users"] == changed.manifest["num_held_out"] == whole.manifest["num_held_out"] > 0
    assert refit_held_out(job, changed, {"evaluation": told}).manifest["stage"] == "refitted"
