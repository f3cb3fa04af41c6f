"""The file that trails are summed up from: with it every user of an export gets the trail that the export has."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from surf2vec.api import Release
from surf2vec.tasks.export.without_users import erase_from_export
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import decode_vectors, list_files
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.user_set import want_users
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.system.files import verify_file
from surf2vec.trainer.training.vectors import TRAIL_WEIGHT
from tests.roots.releases import make_release, read_items, read_users
from tests.roots.trail_releases import histories_of, make_trail_root
from tests.roots.training import MEMORY_BYTES


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_trail_root(tmp_path_factory.mktemp("made") / "root")


def test_the_file_has_the_input_vectors_in_the_order_of_the_items(root: Root) -> None:
    manifest = open_folder(root.export("whole")).manifest
    generation = open_generation(root.store)
    assert generation.trail is not None
    table = pq.read_table(root.export("whole") / "trail_inputs.parquet")
    assert table["url"].to_pylist() == read_items(root.export("whole"))[0]
    np.testing.assert_array_equal(decode_vectors(table), generation.trail.inputs.vectors)
    about = manifest["trail"]
    np.testing.assert_array_equal(np.float32(about["lags"]), generation.trail.lags.vectors[:5, 0])
    assert (about["rows"], about["bias"], about["weight"]) == (len(table), [0.0] * 7 + [0.5], TRAIL_WEIGHT)
    assert "trail_inputs.parquet" in list_files(manifest)
    verify_file(root.export("whole") / "trail_inputs.parquet", about)


@pytest.mark.parametrize("release", ["whole", "narrow"])
def test_the_pages_of_every_user_give_the_vector_of_the_export(root: Root, release: str) -> None:
    folder, histories = root.export(release), histories_of(root)
    users = read_users(folder)
    sums = open_folder(folder).trail_sums
    last = np.stack([users[user] for user in histories])
    blank = last.copy()
    blank[:, sums.columns] = np.nan
    renewed, is_known, _ = Release(folder).renew(blank, list(histories.values()))
    assert is_known.all()
    np.testing.assert_allclose(
        renewed, last, rtol=2e-3 if release == "narrow" else 1e-5, atol=2e-4 if release == "narrow" else 1e-6
    )
    strangers, _, _ = Release(folder).renew(np.zeros_like(last), list(histories.values()))
    np.testing.assert_array_equal(strangers[:, sums.columns], renewed[:, sums.columns])
    assert not np.delete(strangers, np.arange(last.shape[1])[sums.columns], axis=1).any(), "no interest"


def test_a_release_of_the_trail_alone(tmp_path: Path) -> None:
    root = make_trail_root(tmp_path / "root", "trail")
    manifest, histories = open_folder(root.export("whole")).manifest, histories_of(root)
    assert (manifest["trail"]["columns"], manifest["trail"]["weight"]) == ([0, 16], 1.0)
    for release in ("whole", "reduced"):
        users = read_users(root.export(release))
        last = np.stack([users[user] for user in histories])
        renewed, _, _ = Release(root.export(release)).renew(np.zeros_like(last), list(histories.values()))
        np.testing.assert_allclose(renewed, last, rtol=1e-4, atol=1e-5)


def test_it_stays_when_a_user_is_forgotten(root: Root, tmp_path: Path) -> None:
    erased = erase_from_export(root.export("whole"), want_users(["user-3"]), MEMORY_BYTES, {}, tmp_path / "out")
    assert erased["trail"] == open_folder(root.export("whole")).manifest["trail"]
    assert Release(tmp_path / "out").renew(np.zeros((1, 16), np.float32), [["/page/1"]])[1].all()


def test_a_damaged_file_and_a_release_without_one_are_refused(root: Root, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(root.export("whole"), tmp_path / "copy"))
    content = bytearray((folder / "trail_inputs.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "trail_inputs.parquet").write_bytes(content)
    with pytest.raises(DamageError, match=r"trail_inputs.parquet .*surf2vec pull"):
        _ = open_folder(folder).trail_sums
    with pytest.raises(InputError, match="release r1 cannot sum up pages: its vectors have no trail"):
        _ = open_folder(make_release(Root(tmp_path / "root"))).trail_sums
    with pytest.raises(InputError, match="there is no export in"):
        open_folder(tmp_path / "nowhere")
