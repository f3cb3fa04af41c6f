"""A release with activity: columns of its own behind the others, which rank and find neighbours as if it were not there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.api import Release
from surf2vec.tasks.activity.count import NAMES, read_activity
from surf2vec.tasks.activity.scale import scale_activity
from surf2vec.tasks.config import ExportConfig
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.export.without_users import erase_from_export
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.queries.word2vec import export_word2vec
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import unit_rows
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.user_set import want_users
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.store.tokens import open_corpus
from tests.roots.releases import draw_generation, export_release, make_corpus, read_items, read_users

WHO = "user-7"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Path]:
    root = Root(tmp_path_factory.mktemp("made"))
    corpus_dir = make_corpus(root)
    generation = draw_generation(corpus_dir)
    export_release(root, "without", corpus_dir, generation)
    export_release(root, "with", corpus_dir, generation, activity=True)
    return root, corpus_dir


def scaled_of(corpus_dir: Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    corpus = open_corpus(corpus_dir)
    return {
        user: row
        for partition in range(corpus.num_partitions)
        for user, row in zip(
            corpus.read_ids(partition).to_pylist(),
            scale_activity(read_activity(corpus, partition), manifest["activity"]["quantiles"]),
            strict=True,
        )
    }


def test_activity_stands_behind_the_other_parts_and_items_have_zeros(made: tuple[Root, Path]) -> None:
    root, corpus_dir = made
    plain, manifest = read_users(root.export("without")), open_folder(root.export("with")).manifest
    size = len(plain[WHO])
    assert manifest["parts"] == {"interest": [0, size], "activity": [size, size + len(NAMES)]}
    assert manifest["vector_size"] == size + len(NAMES)
    scaled, users = scaled_of(corpus_dir, manifest), read_users(root.export("with"))
    assert users.keys() == plain.keys()
    for user, vector in users.items():
        np.testing.assert_array_equal(vector, np.append(plain[user], scaled[user]))
    before, items = read_items(root.export("without"))[1], read_items(root.export("with"))[1]
    np.testing.assert_array_equal(items, np.hstack([before, np.zeros((len(items), len(NAMES)), np.float32)]))


def test_rankings_and_neighbours_are_the_same_to_the_bit(made: tuple[Root, Path], tmp_path: Path) -> None:
    root, _ = made
    for user in list(read_users(root.export("with")))[:20]:
        one, other = (similar_users(root, root.export(name), user, 10) for name in ("without", "with"))
        assert one == other
    for which in ("users", "items"):
        for name in ("without", "with"):
            export_word2vec(root.export(name), tmp_path / name, which)
        assert (tmp_path / "without").read_bytes() == (tmp_path / "with").read_bytes()


def test_who_asks_for_activity_gets_it(made: tuple[Root, Path]) -> None:
    root, _ = made
    release = Release(root.export("with"), root)
    activity = dict(release.user_vectors("activity").collect().iter_rows())
    units = {user: unit_rows(np.array([row], np.float32))[0] for user, row in activity.items()}
    cosines = {user: float(unit @ units[WHO]) for user, unit in units.items() if user != WHO}
    nearest = sorted(cosines, key=cosines.__getitem__, reverse=True)[:4]
    found = similar_users(root, release.folder, WHO, 4, "activity")
    assert [one["user_id"] for one in found["neighbours"]] == nearest
    assert [one["score"] for one in found["neighbours"]] == pytest.approx([cosines[user] for user in nearest], abs=1e-6)
    assert found["items"] == []
    with pytest.raises(InputError, match="'activity': this release has 'interest'"):
        similar_users(root, root.export("without"), WHO, 4, "activity")
    with pytest.raises(InputError, match="'trail': this release has 'activity' or 'interest'"):
        release.user_vectors("trail")


def test_quantiles_stay_with_the_space_and_when_users_are_forgotten(made: tuple[Root, Path], tmp_path: Path) -> None:
    root, _ = made
    first = open_folder(root.export("with")).manifest
    others = make_corpus(root, num_users=30, window_id="later")
    job = Export(others, tmp_path / "r2", "r2", "r2", "space-1", space_dir=root.export("with"))
    export_vectors(job, draw_generation(others))  # type: ignore[arg-type]
    assert open_folder(tmp_path / "r2").manifest["activity"] == first["activity"]
    export_vectors(replace(job, space_dir=None), draw_generation(others, 2))  # type: ignore[arg-type]
    assert open_folder(tmp_path / "r2").manifest["activity"] != first["activity"]
    erased = erase_from_export(root.export("with"), want_users([WHO]), 10**9, {"release": "less"}, tmp_path / "less")
    assert (erased["activity"], erased["parts"]) == (first["activity"], first["parts"])
    left, all_users = read_users(tmp_path / "less"), read_users(root.export("with"))
    assert {user: row.tobytes() for user, row in left.items()} == {
        user: row.tobytes() for user, row in all_users.items() if user != WHO
    }


@pytest.mark.parametrize("storage", [{"pca_dim": 3}, {"pca_dim": 3, "dtype": "int8"}, {"dtype": "float16"}])
def test_a_smaller_release_has_it_behind_the_rest(
    made: tuple[Root, Path], tmp_path: Path, storage: dict[str, Any]
) -> None:
    _, corpus_dir = made
    config = ExportConfig(**storage)
    job = Export(corpus_dir, tmp_path / "small", "small", "small", "space-1", config)
    export_vectors(job, draw_generation(corpus_dir))  # type: ignore[arg-type]
    release = Release(tmp_path / "small")
    scaled, columns = scaled_of(corpus_dir, release.manifest), release.manifest["parts"]["activity"]
    assert columns[0] == storage.get("pca_dim", columns[0]) == columns[1] - len(NAMES)
    for user, row in release.user_vectors("activity").collect().iter_rows():
        np.testing.assert_allclose(row, scaled[user], atol=0.03 if config.dtype == "int8" else 1e-3)
