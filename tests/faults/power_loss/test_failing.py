"""The disk fails in the middle of a commit: it is said, no commit is reported that is not there, and what is there is whole."""

import errno
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.power_loss.disk import Data, Names, Sync
from tests.faults.power_loss.failing import ERRORS, Failing, fail_once, train_undisturbed
from tests.faults.power_loss.recorder import has_strace
from tests.faults.power_loss.trial import record_command


def fail_at(tmp_path: Path, steps: slice, errors: tuple[int, ...]) -> Counter[str]:
    """Fail at these calls, every other from then on; how often each call said so, by name."""
    undisturbed, expected = train_undisturbed(tmp_path / "undisturbed")
    said: Counter[str] = Counter()
    for number, (name, path) in list(enumerate(undisturbed.done))[steps]:
        for error in errors:
            world = tmp_path / "world"
            shutil.copytree(tmp_path / "undisturbed" / "corpus", world / "corpus")
            disk = Failing(world, number, error, stays=number % 2 == 1)
            message = fail_once(world, disk, expected)
            shutil.rmtree(world)
            if len(disk.done) <= number:  # a training that waited less for its commits makes fewer calls
                continue
            assert message is not None, f"{name} of {path} failed, and nothing was said"
            is_begun = not message.startswith("cannot write to the store")  # whose folder could not be made
            assert not is_begun or "what was committed is whole" in message, (name, path, message)
            said[name] += 1
    return said


def test_a_full_disk_at_each_step_of_the_second_commit(tmp_path: Path) -> None:
    undisturbed, _ = train_undisturbed(tmp_path / "counted")
    ends = [number for number, (name, path) in enumerate(undisturbed.done) if name == "replace"]
    said = fail_at(tmp_path, slice(ends[0] + 2, ends[1] + 2), (errno.ENOSPC,))
    assert said["fsync"] >= 5
    assert min(said[name] for name in ("pwrite", "ftruncate", "write", "replace")) >= 1


@pytest.mark.slow
def test_errors_at_each_step_of_a_training(tmp_path: Path) -> None:
    said = fail_at(tmp_path, slice(None), ERRORS)
    assert sum(said.values()) > 150, said


@pytest.mark.skipif(not has_strace(), reason="strace is not installed: apt-get install strace")
@pytest.mark.slow
def test_all_calls_that_change_the_store_were_failed(tmp_path: Path) -> None:
    """strace sees no write, sync or rename of a commit that is not among those that fail."""
    undisturbed, _ = train_undisturbed(tmp_path / "undisturbed")
    calls = Counter(name for name, _ in undisturbed.done)
    steps = record_command("commit", tmp_path / "world").disk.steps
    assert sum(isinstance(step, Sync) for step in steps) == calls["fsync"]
    resized = sum(isinstance(step, Data) and step.size is not None for step in steps)
    assert resized == calls["ftruncate"] + 2  # those of the lock
    assert sum(isinstance(step, Names) and len(step.changes) == 2 for step in steps) == calls["replace"]
