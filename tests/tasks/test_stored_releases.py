"""A release that is reduced, narrower and has a quantised index, through everything that reads releases."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import ExportConfig
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.export.reduction import project, read_projection
from surf2vec.tasks.queries.infer import infer
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.queries.word2vec import export_word2vec
from surf2vec.tasks.release.release_reader import decode_vectors, list_files, unit_rows
from surf2vec.tasks.report.pictures import read_pages
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.trainer.errors import ConfigError, DamageError, ResourceError
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.system.files import read_json, verify_file
from tests.roots.ingest import write_log
from tests.roots.releases import VECTOR_SIZE, draw_generation, make_corpus, make_release, read_items
from tests.tasks.queries.test_infer import LITERAL, ask, make_root, read_vectors
from tests.tasks.registry.test_serving_model import ask as predict
from tests.tasks.registry.test_serving_model import load

STORED = {"pca_dim": 5, "dtype": "int8"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    made = Root(tmp_path_factory.mktemp("root"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("surf2vec.tasks.export.export.QUANTISE_ABOVE", 100)
        make_release(made, num_users=700, **STORED)
    make_release(made, "full", num_users=700)
    return made


def read_stored(export_dir: Path) -> dict[str, np.ndarray]:
    """Every user's vector as a reader gets it."""
    tables = [pq.read_table(path) for path in sorted((export_dir / "user_vectors").iterdir())]
    return {
        user_id: vector
        for table in tables
        for user_id, vector in zip(table["user_id"].to_pylist(), decode_vectors(table), strict=True)
    }


def test_users_and_items_are_those_of_the_full_release_projected(root: Root) -> None:
    folder = root.export("r1")
    projection = read_projection(folder / "projection.npy")
    assert projection.shape == (VECTOR_SIZE, 5)
    full, stored = read_stored(root.export("full")), read_stored(folder)
    assert list(stored) == list(full)
    expected = project(np.stack(list(full.values())), projection)
    steps = np.abs(expected).max(axis=1, keepdims=True) / 127
    assert (np.abs(np.stack(list(stored.values())) - expected) <= 0.51 * steps).all()
    urls, items = read_items(folder)
    assert urls == read_items(root.export("full"))[0]
    np.testing.assert_array_equal(items, project(read_items(root.export("full"))[1], projection))


def test_the_manifest_says_how_it_is_stored(root: Root) -> None:
    folder = root.export("r1")
    manifest = read_json(folder / "manifest.json")
    assert manifest["storage"] == {"dtype": "int8", "pca_dim": 5, "noise": 0}
    assert (manifest["vector_size"], manifest["projection"]["from_size"]) == (5, VECTOR_SIZE)
    assert 5 / VECTOR_SIZE < manifest["projection"]["explained_variance"] < 1
    assert manifest["index"]["kind"] == "ivf32-sq8"
    assert manifest["index"]["nprobe"] >= 1
    files = list_files(manifest)
    assert "projection.npy" in files
    for name, about in files.items():
        verify_file(folder / name, about)
    assert not {"storage", "projection"} & set(read_json(root.export("full") / "manifest.json"))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_the_same_vectors_give_the_same_bytes(tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surf2vec.tasks.export.export.QUANTISE_ABOVE", 0)
    first, second = (make_release(Root(tmp_path / name), num_users=300, pca_dim=3, dtype=dtype) for name in "ab")
    for path in first.rglob("*"):
        assert path.is_dir() or path.read_bytes() == (second / path.relative_to(first)).read_bytes()


@pytest.mark.parametrize("user_id", ["user-7", "user-311", "名前"])
def test_similar_and_the_serving_model_find_what_brute_force_finds(root: Root, user_id: str) -> None:
    folder = root.export("r1")
    stored = read_stored(folder)
    others = [other for other in stored if other != user_id]
    cosines = unit_rows(np.stack([stored[other] for other in others])) @ unit_rows(stored[user_id][None])[0]
    nearest = {others[i] for i in np.argsort(-cosines)[:10]}
    urls, items = read_items(folder)
    ranked = [urls[i] for i in np.argsort(-(items @ stored[user_id]), kind="stable")]

    found = similar_users(root, folder, user_id, k=10)
    ids = [one["user_id"] for one in found["neighbours"]]
    assert len(set(ids) & nearest) >= 8
    np.testing.assert_allclose(
        [one["score"] for one in found["neighbours"]], [cosines[others.index(other)] for other in ids], atol=0.02
    )
    assert [one["url"] for one in found["items"]] == [url for url in ranked if url not in found["seen"]][:10]

    row = predict(load(folder), [user_id], k=10, items=5).iloc[0]
    np.testing.assert_array_equal(np.float32(row["vector"]), stored[user_id])
    assert row["neighbours"] == ids
    assert row["items"] == ranked[:5]


def test_word2vec_the_map_and_doctor_read_it(root: Root, tmp_path: Path) -> None:
    folder = root.export("r1")
    stored = read_stored(folder)
    told = export_word2vec(folder, tmp_path / "users.txt", "users", binary=False)
    assert (told["rows"], told["vector_size"]) == (len(stored), 5)
    lines = (tmp_path / "users.txt").read_text(encoding="utf-8").splitlines()[1:]
    vectors = {line.split(" ")[0]: np.array(line.split(" ")[1:], np.float32) for line in lines}
    np.testing.assert_allclose(vectors["user-7"], stored["user-7"], rtol=1e-5)
    assert export_word2vec(folder, tmp_path / "items.bin", "items")["vector_size"] == 5
    assert len(read_pages(folder).urls) == 40
    whole = (folder / "projection.npy").read_bytes()
    assert not [one for one in examine_exports(root) if one.level != "ok"]
    (folder / "projection.npy").write_bytes(whole[:-1] + b"\0")
    assert [one.place for one in examine_exports(root) if one.level == "damage"] == [str(folder / "projection.npy")]
    (folder / "projection.npy").write_bytes(whole)


def examine_exports(root: Root) -> list:
    return [one for one in examine(root) if "/export/" in one.place]


@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"pca_dim": 4}, {"dtype": "float32", "pca_dim": None}])
def test_another_storage_replaces_the_export_and_the_same_leaves_it(tmp_path: Path, change: dict) -> None:
    root = Root(tmp_path)
    corpus_dir = make_corpus(root)
    asked = {"dtype": "int8", "pca_dim": 3}

    def export(storage: dict) -> int:
        job = Export(corpus_dir, root.export("r1"), "r1", "run-1", "space-1", ExportConfig(activity=False, **storage))
        told = export_vectors(job, draw_generation(corpus_dir))
        assert told["vector_size"] == (storage.get("pca_dim") or VECTOR_SIZE)
        assert told["dtype"] == storage["dtype"]
        return (root.export("r1") / "manifest.json").stat().st_mtime_ns

    first = export(asked)
    assert export(asked) == first
    assert export(asked | change) != first


def test_more_numbers_than_there_are_and_too_little_memory_are_refused(tmp_path: Path) -> None:
    root = Root(tmp_path)
    with pytest.raises(ConfigError, match=r"export.pca_dim is 8, but the vectors have 8 dimensions"):
        make_release(root, pca_dim=VECTOR_SIZE)
    corpus_dir = make_corpus(root, window_id="other")
    job = Export(corpus_dir, root.export("r1"), "r1", "run-1", "space-1", memory_bytes=1_000_000)
    with pytest.raises(ResourceError, match=r"exporting a micro-partition of \d+ users needs .* raise --host-memory"):
        export_vectors(job, draw_generation(corpus_dir))
    assert not root.export("r1").exists()


def test_inferred_vectors_are_in_the_releases_space(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    log = write_log(tmp_path / "log.csv", *LITERAL)
    infer(root, "r1", ask(log, tmp_path / "full.parquet"))
    corpus_dir = next((root.path / "corpus").iterdir())
    job = Export(corpus_dir, root.export("r1"), "r1", "r1", "r1", ExportConfig(activity=False, pca_dim=3, dtype="int8"))
    export_vectors(job, open_generation(root.store))
    assert infer(root, "r1", ask(log, tmp_path / "reduced.parquet"))["vector_size"] == 3
    projection = read_projection(root.export("r1") / "projection.npy")
    full, reduced = (read_vectors(tmp_path / f"{name}.parquet") for name in ("full", "reduced"))
    assert pq.read_schema(tmp_path / "reduced.parquet").field("vector").type == pa.list_(pa.float32(), 3)
    for user_id, vector in full.items():
        np.testing.assert_allclose(reduced[user_id], vector @ projection, rtol=1e-5, atol=1e-6)
    (root.export("r1") / "projection.npy").write_bytes(b"nothing")
    with pytest.raises(DamageError, match=r"projection.npy has 7 bytes where its manifest says"):
        infer(root, "r1", ask(log, tmp_path / "none.parquet"))
