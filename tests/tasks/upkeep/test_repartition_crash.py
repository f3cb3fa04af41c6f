"""A repartition that dies, at any step or anywhere: every vector is there, and the next writer makes the root whole."""

import shutil
import time
from pathlib import Path

import pytest

from surf2vec.tasks.root.run import Root, lock_root
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.system.files import read_json
from tests.faults.exits import run_dying, start
from tests.roots.training import make_trained, rows_by_user
from tests.tasks.upkeep.test_repartition import change, complaints, copy, snapshot

BEFORE, AFTER = 1, 2


def work(path: Path) -> None:
    change(Root(path), AFTER)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Root:
    root = make_trained(tmp_path_factory.mktemp("trained") / "root", BEFORE, num_users=30)
    pin_generation(root.store, "champion")
    return root


def partitions_of(root: Root) -> tuple[int, int]:
    return read_json(root.sources)["partitions"], open_generation(root.store).num_partitions


@pytest.mark.long
def test_a_repartition_that_dies_at_any_step(trained: Root, tmp_path: Path) -> None:
    vectors = rows_by_user(trained)
    undisturbed = copy(trained, tmp_path / "undisturbed")
    change(undisturbed, AFTER)
    wanted = snapshot(undisturbed)
    deaths, commits = 0, []
    for step in range(1, 1000):
        root = copy(trained, tmp_path / str(step))
        code = run_dying(work, root.path, step=step)
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
    assert deaths >= 20
    assert commits == sorted(commits)  # one commit point
    assert commits.count(True) >= 4


@pytest.mark.slow
def test_kill_at_random_moments(trained: Root, tmp_path: Path) -> None:
    vectors = rows_by_user(trained)
    for number, seconds in enumerate((0.02, 0.06, 0.1, 0.15, 0.2)):
        root = copy(trained, tmp_path / str(number))
        process = start(work, root.path)
        time.sleep(seconds)
        process.kill()
        process.join()
        assert rows_by_user(root) == vectors
        change(root, AFTER)
        assert partitions_of(root) == (AFTER, AFTER)
        assert rows_by_user(root) == vectors
        assert complaints(root) == []
