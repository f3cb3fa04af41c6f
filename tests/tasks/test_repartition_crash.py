"""A repartition that dies, at any step or anywhere: every vector is there, and the next writer makes the root whole."""

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.run import Root, lock_root
from tests.tasks.test_repartition import change, complaints, copy, snapshot
from tests.trained import make_trained, rows_by_user
from trainer.files import read_json
from trainer.store import open_generation, pin_generation

BEFORE, AFTER = 2, 4
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.tasks.test_repartition"])


def die_at(path: Path, step: int) -> None:
    """Repartition, but leave without a word before the call `step` of those that change the disk."""
    left = step

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)
            return real(*arguments, **named)

        return call

    os.replace, np.save = dying(os.replace), dying(np.save)
    Path.unlink, shutil.rmtree = dying(Path.unlink), dying(shutil.rmtree)  # type: ignore[method-assign]
    change(Root(path), AFTER)
    os._exit(0)


def run_dying(root: Root, step: int) -> int | None:
    process = _processes.Process(target=die_at, args=(root.path, step))
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Root:
    root = make_trained(tmp_path_factory.mktemp("trained") / "root", BEFORE, num_users=30)
    pin_generation(root.store, "champion")
    return root


def partitions_of(root: Root) -> tuple[int, int]:
    return read_json(root.sources)["partitions"], open_generation(root.store).num_partitions


@pytest.mark.slow
def test_a_repartition_that_dies_at_any_step(trained: Root, tmp_path: Path) -> None:
    vectors = rows_by_user(trained)
    undisturbed = copy(trained, tmp_path / "undisturbed")
    change(undisturbed, AFTER)
    wanted = snapshot(undisturbed)
    deaths, commits = 0, []
    for step in range(1, 1000):
        root = copy(trained, tmp_path / str(step))
        code = run_dying(root, step)
        assert rows_by_user(root) == vectors  # whoever reads now reads all of them
        assert [line for line in complaints(root) if line.startswith("damage")] == []
        commits.append(read_json(root.sources)["partitions"] == AFTER)
        if step % 2:  # the next writer makes it whole again, if only by going back
            with lock_root(root, "test"):
                assert partitions_of(root) == ((AFTER, AFTER) if commits[-1] else (BEFORE, BEFORE))
            assert rows_by_user(root) == vectors
        change(root, AFTER)
        assert snapshot(root) == wanted
        shutil.rmtree(root.path)
        if code == 0:
            break
        assert code == 9
        deaths += 1
    assert deaths >= 30
    assert commits == sorted(commits)  # one commit point
    assert commits.count(True) >= 4


@pytest.mark.slow
def test_kill_at_random_moments(trained: Root, tmp_path: Path) -> None:
    vectors = rows_by_user(trained)
    for number, seconds in enumerate((0.02, 0.06, 0.1, 0.15, 0.2)):
        root = copy(trained, tmp_path / str(number))
        process = _processes.Process(target=die_at, args=(root.path, 10**9))
        process.start()
        time.sleep(seconds)
        process.kill()
        process.join()
        assert rows_by_user(root) == vectors
        change(root, AFTER)
        assert partitions_of(root) == (AFTER, AFTER)
        assert rows_by_user(root) == vectors
        assert complaints(root) == []
