"""A disk that fails: EIO or ENOSPC from the nth write, sync or rename of a training, once or from then on."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.system.files import read_json
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.slots import Slots
from tests.faults.power_loss.commands import check_commits, make_job, prepare_commit, read_commit, same_plans

ERRORS = (errno.EIO, errno.ENOSPC)
CALLS = ("pwrite", "ftruncate", "fsync", "replace")  # all by which a commit writes, but for text, see `_write_text`


@dataclass
class Failing:
    """Fails the call number `at` below a folder with `error`, and if it `stays` all after it. done: (call, path) so far."""

    folder: Path
    at: int = -1
    error: int = 0
    stays: bool = False
    done: list[tuple[str, str]] = field(default_factory=list)
    commits: int = 0

    def step(self, name: str, path: str) -> None:
        if not Path(path).is_relative_to(self.folder):  # numba keeps compiled code, too
            return
        self.done.append((name, path))
        number = len(self.done) - 1
        if number == self.at or (self.stays and number > self.at >= 0):
            raise OSError(self.error, os.strerror(self.error), path)

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *arguments: Any, **named: Any) -> Any:
            self.step(name, os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(arguments[0]))
            return real(first, *arguments, **named)

        return call


_commit = Slots._commit


def _commit_counted(slots: Slots, disk: Failing, *arguments: Any) -> None:
    _commit(slots, *arguments)
    disk.commits += 1


def _write_text(path: Path, disk: Failing, text: str, **named: Any) -> int:
    """Half of a text is on the disk when the rest fails."""
    with open(path, "w", **named) as file:
        file.write(text[: len(text) // 2])
        file.flush()
        disk.step("write", str(path))
        return file.write(text[len(text) // 2 :])


@contextmanager
def failing(disk: Failing) -> Iterator[None]:
    """Let the disk of this process fail as said."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.multiple(os, **{name: disk.wrap(name, getattr(os, name)) for name in CALLS}))
        patches.enter_context(mock.patch.object(Path, "write_text", partialmethod(_write_text, disk)))
        patches.enter_context(mock.patch.object(Slots, "_commit", partialmethod(_commit_counted, disk)))
        yield


def train_undisturbed(world: Path) -> tuple[Failing, Any]:
    """The calls of a training that nothing disturbs, and what it ends with."""
    disk = Failing(world)
    prepare_commit(world)
    with same_plans(), failing(disk):
        train(make_job(world))
    return disk, read_commit(world)


def fail_once(world: Path, disk: Failing, expected: Any) -> str | None:
    """Train on a disk that fails, then on one that does not; the message of the failure, or None where nothing was said.

    Raises AssertionError where a commit was reported that is not there, what is there is not whole, or the end differs.
    """
    message = None
    with same_plans(), failing(disk):
        try:
            train(make_job(world))
        except ResourceError as error:
            message = str(error)
    check_commits(world, disk.commits)
    manifest = world / "store" / "MANIFEST.json"
    if message is None and manifest.exists():
        assert read_json(manifest)["stage"] != "training", "a training that was cut off said nothing"
    with same_plans():
        train(make_job(world))
    assert read_commit(world) == expected
    return message
