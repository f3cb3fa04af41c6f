"""The file that paths are summed up from: with it every user of an export gets the path that the export has."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.config import ExportConfig
from tasks.export.export import Export, export_vectors, list_files, read_export
from tasks.export.path_inputs import open_path_sums
from tasks.export.vector_files import decode_vectors
from tasks.export.without_users import erase_from_export
from tasks.root.run import Root
from tasks.users.user_set import want_users
from tests.path_releases import STORED, corpus_of, histories_of, make_path_root
from tests.releases import make_release, read_items, read_users
from tests.trained import MEMORY_BYTES
from trainer.errors import DamageError, InputError
from trainer.store.generation import open_generation
from trainer.system.files import describe_file, verify_file, write_manifest_json


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_path_root(tmp_path_factory.mktemp("made") / "root")


def test_the_file_has_the_input_vectors_in_the_order_of_the_items(root: Root) -> None:
    manifest = read_export(root.export("whole"))
    generation = open_generation(root.store)
    assert generation.path is not None
    table = pq.read_table(root.export("whole") / "path_inputs.parquet")
    assert table["url"].to_pylist() == read_items(root.export("whole"))[0]
    np.testing.assert_array_equal(decode_vectors(table), generation.path.inputs.vectors)
    about = manifest["path"]
    np.testing.assert_array_equal(np.float32(about["lags"]), generation.path.lags.vectors[:5, 0])
    assert (about["rows"], about["bias"], about["weight"]) == (len(table), [0.0] * 7 + [0.5], 0.6)
    assert "path_inputs.parquet" in list_files(manifest)
    verify_file(root.export("whole") / "path_inputs.parquet", about)


@pytest.mark.parametrize("release", STORED)
def test_the_pages_of_every_user_give_the_vector_of_the_export(root: Root, release: str) -> None:
    folder, histories = root.export(release), histories_of(root)
    users = read_users(folder)
    sums = open_path_sums(folder)
    last = np.stack([users[user] for user in histories])
    blank = last.copy()
    blank[:, sums.columns] = np.nan
    renewed, is_known = sums.renew(blank, list(histories.values()))
    assert is_known.all()
    np.testing.assert_allclose(
        renewed, last, rtol=2e-3 if release == "narrow" else 1e-5, atol=2e-4 if release == "narrow" else 1e-6
    )
    strangers, _ = sums.renew(np.zeros_like(last), list(histories.values()))
    np.testing.assert_array_equal(strangers[:, sums.columns], renewed[:, sums.columns])
    assert not np.delete(strangers, np.arange(last.shape[1])[sums.columns], axis=1).any(), "no interest"


def test_a_reduced_release_has_parts_and_ranks_by_them(root: Root) -> None:
    manifest = read_export(root.export("reduced"))
    (first, middle), (start, end) = manifest["parts"]["interest"], manifest["parts"]["path"]
    assert (first, middle, end) == (0, start, 10)
    whole, reduced = (read_users(root.export(name)) for name in ("whole", "reduced"))
    projection = np.load(root.export("reduced") / "projection.npy")
    for columns, span in ((slice(0, 8), slice(0, middle)), (slice(8, 16), slice(middle, 10))):
        np.testing.assert_allclose(
            reduced["user-3"][span], whole["user-3"][columns] @ projection[columns, span], rtol=1e-4, atol=1e-6
        )


def test_it_stays_when_a_user_is_forgotten(root: Root, tmp_path: Path) -> None:
    erased = erase_from_export(root.export("whole"), want_users(["user-3"]), MEMORY_BYTES, {}, tmp_path / "out")
    assert erased["path"] == read_export(root.export("whole"))["path"]
    assert open_path_sums(tmp_path / "out").renew(np.zeros((1, 16), np.float32), [["/page/1"]])[1].all()


def test_a_damaged_file_and_a_release_without_one_are_refused(root: Root, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(root.export("whole"), tmp_path / "copy"))
    content = bytearray((folder / "path_inputs.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "path_inputs.parquet").write_bytes(content)
    with pytest.raises(DamageError, match=r"path_inputs.parquet .*surf2vec pull"):
        open_path_sums(folder)
    with pytest.raises(
        InputError, match="release r1 cannot sum up pages: its vectors have no path, or an earlier version"
    ):
        open_path_sums(make_release(Root(tmp_path / "root")))
    with pytest.raises(InputError, match="there is no export in"):
        open_path_sums(tmp_path / "nowhere")


def test_a_projection_that_mixes_parts_stays_and_nothing_is_summed_up(root: Root, tmp_path: Path) -> None:
    older = Path(shutil.copytree(root.export("reduced"), tmp_path / "older"))
    mixed = np.linalg.qr(np.random.default_rng(0).standard_normal((16, 10)))[0].astype(np.float32)
    np.save(older / "projection.npy", mixed, allow_pickle=False)
    manifest = read_export(older)
    manifest["projection"] |= describe_file(older / "projection.npy")
    write_manifest_json(older / "manifest.json", manifest)
    job = Export(
        corpus_of(root).folder, tmp_path / "new", "new", "run", "space-1", ExportConfig(pca_dim=10), space_dir=older
    )
    export_vectors(job, open_generation(root.store))
    new = read_export(tmp_path / "new")
    assert {"parts", "path"} & set(new) == set()
    np.testing.assert_array_equal(np.load(tmp_path / "new" / "projection.npy"), mixed)
