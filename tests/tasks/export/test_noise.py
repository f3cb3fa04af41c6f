"""Noise on vectors: fixed for a user and the last pages, under a key that only the root has."""

import stat
from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.config import ExportConfig
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.export.noise import open_noise_key
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import columns_of
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.releases import read_users

KEY = b"a key of the root"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    root = Root(tmp_path_factory.mktemp("root"))
    histories = planted_histories(num_users=300, num_items=40)
    write_corpus(root.corpus("window"), histories, max_users=0)
    changed = {user: [*pages, 1, 2] if user < sorted(histories)[100] else pages for user, pages in histories.items()}
    write_corpus(root.corpus("tomorrow"), changed, max_users=0)
    train(Job(root.corpus("window"), root.store, TrainConfig(vector_size=16, epochs=2, threads=1), 4 * 10**9))
    return root


def draw(root: Root, noise: float, release: str = "r1", window: str = "window", key: bytes = KEY) -> np.ndarray:
    config = ExportConfig(activity=False, noise=noise)
    job = Export(root.corpus(window), root.export(release), release, release, "space-1", config, noise_key=key)
    export_vectors(job, open_generation(root.store))
    return np.stack(list(read_users(job.export_dir).values()))


def free_columns(generation: Generation) -> list[np.ndarray]:
    """The columns of interest and trail without the constants at the end of each."""
    biases = generation.config.num_biases
    return [np.arange(start, stop - biases[part]) for part, (start, stop) in columns_of(generation).items()]


def test_each_part_has_noise_of_the_length_that_is_set(root: Root) -> None:
    exact, noisy, parts = draw(root, 0), draw(root, 0.5), free_columns(open_generation(root.store))
    assert len(parts) == 2
    for part in parts:
        shares = np.linalg.norm((noisy - exact)[:, part], axis=1) / np.linalg.norm(exact[:, part], axis=1)
        assert np.sqrt(np.mean(shares**2)) == pytest.approx(0.5, rel=0.1)
    constants = np.delete(np.arange(exact.shape[1]), np.concatenate(parts))
    assert (noisy[:, constants] == exact[:, constants]).all()


def test_noise_does_not_average_out_over_releases(root: Root) -> None:
    noise = draw(root, 0.5) - draw(root, 0)
    assert (draw(root, 0.5, "r2") - draw(root, 0, "r3") == noise).all()
    assert draw(root, 1.0) - draw(root, 0) == pytest.approx(2 * noise, abs=1e-5)  # the same, only longer
    tomorrow = draw(root, 0.5, "r2", "tomorrow") - draw(root, 0, "r3", "tomorrow")
    is_same = (tomorrow == noise).all(axis=1)
    assert is_same.sum() == 200  # those with new pages have new noise
    free = np.concatenate(free_columns(open_generation(root.store)))
    other = draw(root, 0.5, key=b"another key") - draw(root, 0)
    assert (other[:, free] != noise[:, free]).mean() > 0.999


def test_a_root_has_a_key_of_its_own_that_stays(tmp_path: Path) -> None:
    one, other = Root(tmp_path / "one"), Root(tmp_path / "other")
    for root in (one, other):
        root.path.mkdir()
    assert len(open_noise_key(one)) == 32
    assert open_noise_key(one) == open_noise_key(one) != open_noise_key(other)
    assert stat.S_IMODE((one.path / "noise.key").stat().st_mode) == 0o600
