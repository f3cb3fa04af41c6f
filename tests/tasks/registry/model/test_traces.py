"""After any commands of two people in two roots, also killed ones, the registry says what a small model says."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from surf2vec.tasks.registry import mlflow_runs
from tests.tasks.registry.model.traces import explore
from tests.tasks.registry.model.world import DATABASE, World


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        pytest.param(0, 150, marks=pytest.mark.slow),
        *(pytest.param(seed, 250, marks=pytest.mark.long) for seed in range(1, 42)),
    ],
)
def test_traces(tmp_path: Path, seed: int, number: int) -> None:
    in_memory = Path("/dev/shm")  # a disk would be waited for most of the time
    with TemporaryDirectory(dir=in_memory if in_memory.is_dir() else tmp_path) as name:
        folder = Path(name)
        world = World(folder / "world", folder / "made", is_server=seed % 4 == 1)
        mlflow_runs._make_database(world.folder / DATABASE)
        explore(world, seed, number, folder / "saved")
