"""A repartition that dies, at any step or anywhere: every event and vector is there, and the same call finishes it."""

import shutil
import time
from pathlib import Path

import pytest

from surf2vec.tasks.root.run import Root
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.system.files import read_json
from tests.faults.exits import run_dying, start
from tests.roots.files import bytes_of
from tests.roots.ingest import read_events, take_in, write_log
from tests.roots.training import make_trained, rows_by_user
from tests.tasks.upkeep.test_repartition import change, complaints, copy

BEFORE, AFTER = 1, 2


def work(path: Path) -> None:
    change(Root(path), AFTER)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Root:
    root = make_trained(tmp_path_factory.mktemp("trained") / "root", BEFORE, num_users=30)
    days = [f"user-1,/page/1,2026-02-0{day}" for day in range(1, 9)]
    take_in(root.path, write_log(root.path.parent / "c.csv", *days), partitions=None)
    pin_generation(root.store, "champion")
    return root


@pytest.mark.long
def test_a_repartition_that_dies_at_any_step(trained: Root, tmp_path: Path) -> None:
    vectors, events = rows_by_user(trained), read_events(trained.path)
    undisturbed = copy(trained, tmp_path / "undisturbed")
    change(undisturbed, AFTER)
    wanted = bytes_of(undisturbed.path)
    deaths, commits = 0, []
    for step in range(1, 1000):
        root = copy(trained, tmp_path / str(step))
        code = run_dying(work, root.path, step=step)
        assert rows_by_user(root) == vectors  # whoever reads now reads all of them
        assert [line for line in complaints(root) if line.startswith("damage")] == []
        commits.append(read_json(root.sources)["partitions"] == AFTER)
        assert read_events(root.path) == events  # of the files that sources.json lists
        change(root, AFTER)
        assert bytes_of(root.path) == wanted
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
    vectors, events = rows_by_user(trained), read_events(trained.path)
    for number, seconds in enumerate((0.02, 0.06, 0.1, 0.15, 0.2)):
        root = copy(trained, tmp_path / str(number))
        process = start(work, root.path)
        time.sleep(seconds)
        process.kill()
        process.join()
        assert (rows_by_user(root), read_events(root.path)) == (vectors, events)
        change(root, AFTER)
        assert read_json(root.sources)["partitions"] == AFTER
        assert rows_by_user(root) == vectors
        assert complaints(root) == []
