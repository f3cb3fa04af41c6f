"""A root that grows: a night, more micro-partitions, and a night with one more log."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from surf2vec.operations import doctor, repartition
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.night.night import make_night
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from tests.flows.test_nightly import write_logs

pytestmark = pytest.mark.filterwarnings("default")  # Prefect's and MLflow's own
FAST = ["train.epochs=2", "train.vector_size=8", "train.threads=1", "train.negative=4"]


def run_night(root: Path) -> dict[str, Any]:
    """The night over all logs beside the root, as on every day: nobody tells it how many micro-partitions there are."""
    return make_night(root, [str(root.parent / "logs" / "*.csv")], config=load_config(None, FAST))


def exported_users(result: dict[str, Any]) -> list[str]:
    return sorted(pq.read_table(Path(result["export_dir"]) / "user_vectors")["user_id"].to_pylist())


@pytest.mark.long
def test_a_night_a_split_and_a_night_with_one_more_log(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_logs(tmp_path / "logs" / "monday.csv", num_users=200)
    first = run_night(root)
    assert exported_users(first) == sorted(f"user-{n}" for n in range(200))
    told = repartition(32, root, config=load_config(None, FAST), on_event=ignore_event)
    assert (told["partitions_before"], told["partitions"]) == (8, 32)

    write_logs(tmp_path / "logs" / "tuesday.csv", num_users=300)
    second = run_night(root)
    assert exported_users(second) == sorted(f"user-{n}" for n in range(300))
    assert (second["model_version"], second["alias"]) == (2, "champion")
    assert open_generation(root / "store").num_partitions == 32
    found = doctor(root)
    assert [one for one in found["findings"] if one["level"] != "ok"] == []
    assert exported_users(first) == sorted(f"user-{n}" for n in range(200))  # the release before is as it was
