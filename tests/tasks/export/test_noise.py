"""Noise on trails: fixed for a user and the last pages, under a key that only the root has."""

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
    config = ExportConfig(activity=False, trail_noise=noise)
    job = Export(root.corpus(window), root.export(release), release, release, "space-1", config, noise_key=key)
    export_vectors(job, open_generation(root.store))
    return np.stack(list(read_users(job.export_dir).values()))


def trail_of(generation: Generation) -> slice:
    return slice(generation.config.interest_size, generation.vector_size - generation.config.num_biases["trail"])


def test_only_trails_have_noise_as_long_as_is_set(root: Root) -> None:
    exact, noisy, trail = draw(root, 0), draw(root, 0.5), trail_of(open_generation(root.store))
    shares = np.linalg.norm((noisy - exact)[:, trail], axis=1) / np.linalg.norm(exact[:, trail], axis=1)
    assert np.sqrt(np.mean(shares**2)) == pytest.approx(0.5, rel=0.1)
    assert (np.delete(noisy, np.r_[trail], axis=1) == np.delete(exact, np.r_[trail], axis=1)).all()


def test_noise_does_not_average_out_over_releases(root: Root) -> None:
    noise = draw(root, 0.5) - draw(root, 0)
    assert (draw(root, 0.5, "r2") - draw(root, 0, "r3") == noise).all()
    assert (draw(root, 1.0) - draw(root, 0) == pytest.approx(2 * noise, abs=1e-5))  # the same, only longer
    tomorrow = draw(root, 0.5, "r2", "tomorrow") - draw(root, 0, "r3", "tomorrow")
    is_same = (tomorrow == noise).all(axis=1)
    assert is_same.sum() == 200  # those with new pages have new noise
    other = draw(root, 0.5, key=b"another key") - draw(root, 0)
    assert not (other[:, trail_of(open_generation(root.store))] == noise[:, trail_of(open_generation(root.store))]).any()


def test_a_root_has_a_key_of_its_own_that_stays(tmp_path: Path) -> None:
    one, other = Root(tmp_path / "one"), Root(tmp_path / "other")
    for root in (one, other):
        root.path.mkdir()
    assert len(open_noise_key(one)) == 32
    assert open_noise_key(one) == open_noise_key(one) != open_noise_key(other)
    assert stat.S_IMODE((one.path / "noise.key").stat().st_mode) == 0o600
