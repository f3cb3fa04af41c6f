"""What a disk does to real trainers: full, read-only, damaged. They say what is wrong, and what was committed is whole."""

import dataclasses
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import FORMAT_VERSION, open_generation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus
from tests.faults.small_disk import small_disk
from tests.faults.trainer_kills import budgets, run, start, wait_for_commit
from tests.roots.store_contents import assert_same_bits
from tests.trainer.training.stopping import train_until

CONFIG = TrainConfig(vector_size=64, epochs=8, threads=1, alpha=0.1, negative=5, commit_seconds=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A training that came to its end: 3 MB of users, in one chunk."""
    folder = tmp_path_factory.mktemp("disk")
    write_corpus(folder / "corpus", planted_histories(num_users=10_000), partitions=16)
    job = Job(folder / "corpus", folder / "undisturbed", CONFIG, 4 * 10**9)
    code, errors = run(job)
    assert code == 0, errors
    return job


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "24m") as folder:
        yield folder


def fill(path: Path) -> None:
    """Write to the file until the disk has no room left."""
    with path.open("wb") as file, suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(2**16))


def check_that_it_stopped(code: int, errors: str, reason: str) -> None:
    assert code == 1
    assert "Traceback" not in errors
    assert "error: could not write" in errors
    assert reason in errors
    assert "bytes are free" in errors
    assert "run the same command again; what was committed is whole" in errors


def test_a_full_disk_during_write_back(undisturbed: Job, disk: Path) -> None:
    """Users go through slots; the disk fills behind the first commit. Space comes back, and the training goes on."""
    small_budget = budgets(undisturbed.store_dir)[0]
    job = dataclasses.replace(undisturbed, store_dir=disk / "store", host_memory_bytes=small_budget)
    with start(job) as process:
        wait_for_commit(process, job.store_dir)
        filler = disk / "filler"
        fill(filler)
        errors = process.communicate()[1]
    check_that_it_stopped(process.returncode, errors, "No space left")
    assert 0 < open_generation(job.store_dir).position < 8 * 16
    assert open_generation(job.store_dir).manifest["plan"]["num_chunks"] > 4
    code, errors = run(job)
    assert code == 1, "the disk is still full"
    assert "Traceback" not in errors
    assert "are free" in errors
    filler.unlink()
    train(dataclasses.replace(job, host_memory_bytes=4 * 10**9))
    assert_same_bits(job.store_dir, undisturbed.store_dir)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of other processes are Linux's")
def test_a_write_that_is_cut_off(undisturbed: Job, tmp_path: Path) -> None:
    """As a full disk, where no file system may be mounted: files of this process may have no more than 10,000 bytes."""
    job = dataclasses.replace(undisturbed, store_dir=tmp_path / "store")
    with start(job) as process:
        wait_for_commit(process, job.store_dir)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
        errors = process.communicate()[1]
    check_that_it_stopped(process.returncode, errors, "File too large")
    assert not list(job.store_dir.glob(".*.tmp"))
    assert 0 < open_generation(job.store_dir).position < 8 * 16
    train(job)
    assert_same_bits(job.store_dir, undisturbed.store_dir)


@pytest.mark.slow
def test_a_store_that_becomes_read_only(undisturbed: Job, tmp_path: Path) -> None:
    job = dataclasses.replace(undisturbed, store_dir=tmp_path / "store")
    with start(job, "unprivileged") as process:
        wait_for_commit(process, job.store_dir)
        job.store_dir.chmod(0o555)
        errors = process.communicate()[1]
    check_that_it_stopped(process.returncode, errors, "Permission denied")
    started = time.monotonic()
    code, errors = run(job, "unprivileged")
    assert code == 1
    assert (
        errors
        == f"error: cannot write to the store {job.store_dir}: no write permission; use another folder or permit writing\n"
    )
    assert time.monotonic() - started < 20
    job.store_dir.chmod(0o755)
    train(job)
    assert_same_bits(job.store_dir, undisturbed.store_dir)


@pytest.fixture(scope="module")
def half_way(undisturbed: Job) -> Path:
    """A store whose training was stopped in the middle."""
    store_dir = undisturbed.store_dir.with_name("half")
    assert not train_until(dataclasses.replace(undisturbed, store_dir=store_dir), [4 * 16])
    return store_dir


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def cut_to_nothing(path: Path) -> None:
    path.write_text("[]")


def lower_version(path: Path) -> None:
    """One bit, by which the store would seem to be an earlier version's, to be replaced."""
    text = path.read_text()
    path.write_text(text.replace(f'"format_version": {FORMAT_VERSION}', f'"format_version": {FORMAT_VERSION - 1}'))


@pytest.mark.parametrize(
    ("pattern", "damage", "message"),
    [
        ("users-00015-*", flip_byte, "does not have the checksum"),
        ("users-00015-*", cut_short, "bytes where its manifest says"),
        ("users-00003-*", Path.unlink, "is missing"),
        ("interest-*", flip_byte, "does not have the checksum"),
        ("MANIFEST.json", cut_short, "is not readable as JSON"),
        ("MANIFEST.json", cut_to_nothing, "is not a manifest"),
        ("MANIFEST.json", flip_byte, "it was altered"),
        ("MANIFEST.json", lower_version, "it was altered"),
    ],
)
def test_damage_is_named_and_not_trained_on(
    undisturbed: Job, half_way: Path, tmp_path: Path, pattern: str, damage: Callable[[Path], None], message: str
) -> None:
    """What was damaged stays as it is; with the file brought back, the training goes on."""
    store_dir = tmp_path / "store"
    shutil.copytree(half_way, store_dir)
    (path,) = store_dir.glob(pattern)
    whole = path.read_bytes()
    damage(path)
    found = path.read_bytes() if path.exists() else None
    job = dataclasses.replace(undisturbed, store_dir=store_dir)
    code, errors = run(job)
    assert code == 1
    assert "Traceback" not in errors
    assert f"error: {path} " in errors
    assert message in errors
    assert f"restore a copy, or remove {store_dir / 'MANIFEST.json'} and the files in" in errors
    assert (path.read_bytes() if path.exists() else None) == found
    path.write_bytes(whole)
    train(job)
    assert_same_bits(store_dir, undisturbed.store_dir)


def test_a_damaged_store_without_its_manifest_is_trained_anew(undisturbed: Job, half_way: Path, tmp_path: Path) -> None:
    """The way out that the message names."""
    shutil.copytree(half_way, tmp_path / "store")
    flip_byte(next((tmp_path / "store").glob("users-00015-*")))
    (tmp_path / "store" / "MANIFEST.json").unlink()
    train(dataclasses.replace(undisturbed, store_dir=tmp_path / "store"))
    assert_same_bits(tmp_path / "store", undisturbed.store_dir)
