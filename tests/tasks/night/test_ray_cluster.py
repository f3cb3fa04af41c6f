"""A night on a real Ray cluster of two nodes: the bytes of one machine, also when workers are killed; and who is refused."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.night.ray_cluster import check_address, check_node, digest_code, open_fan_out
from surf2vec.tasks.root.run import open_root
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.fan_out import HERE
from tests.flows.test_cli import COMMAND, as_options
from tests.roots.files import bytes_of
from tests.roots.store_contents import assert_same_bits
from tests.servers.ray_nodes import RAY, Cluster, open_cluster

FAST = (
    "train.epochs=1", "train.vector_size=16", "train.threads=1", "evaluate.max_users=500", "gate.newest_day_events=0",
    "nightly.full_every_days=3650", "resources.host_memory=2GB",
)  # fmt: skip
needs_ray = pytest.mark.skipif(not Path(RAY).exists(), reason="Ray is not installed: pip install -e '.[ray]'")


@pytest.fixture
def logs(data_dir: Path, tmp_path: Path) -> Path:
    """The first days of people walking through Wikipedia, a real log, in four files, each too large to be staged with others;
    some of what comes next lies beside.
    """
    log = pl.read_parquet(data_dir / "wikispeedia_unfinished.parquet").sort("ts").head(13_000)
    draw = random.Random(1)
    log = log.with_columns(pl.Series("note", [draw.randbytes(500).hex() for _ in range(len(log))]))
    (tmp_path / "logs").mkdir()
    for number in range(4):
        log[number:12_000:4].write_parquet(tmp_path / "logs" / f"{number}.parquet")
    log[12_000:].write_parquet(tmp_path / "next.parquet")
    return tmp_path / "logs" / "*.parquet"


def start_night(root: Path, logs: Path, env: Mapping[str, str], *settings: str) -> subprocess.Popen[str]:
    arguments = ["run", "--root", root.name, "--json", "--logs", str(logs), *as_options([*FAST, *settings])]
    return subprocess.Popen(
        [*COMMAND, *arguments], env=os.environ | env, cwd=root.parent, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def kill_workers(cluster: Cluster, night: subprocess.Popen[str], num_kills: int) -> int:
    """kill -9 workers in the middle of a part while the night lasts; returns how many."""
    killed: set[int] = set()
    while night.poll() is None:
        for worker in cluster.workers() if len(killed) < num_kills else []:
            if worker.pid not in killed:
                killed.add(worker.pid)
                worker.kill()
                break
        time.sleep(0.5)
    return len(killed)


def count_parts(address: str, root: Path) -> int:
    with open_fan_out(ResourcesConfig(ray_address=address), open_root(root)) as fan_out:
        return fan_out.num_parts


def run_alone(root: Path, logs: Path) -> dict[str, Any]:
    return make_night(root, [str(logs)], config=load_config(None, list(FAST)))


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # MLflow's own
@pytest.mark.parametrize("num_nights", [1, pytest.param(2, marks=pytest.mark.long)])
def test_nights_whose_workers_are_killed_are_the_nights_of_one_machine(
    tmp_path: Path, logs: Path, num_nights: int
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    with open_cluster() as cluster:
        alone = run_alone(one, logs)
        night = start_night(many, logs, cluster.env, f"resources.ray_address={cluster.address}")
        num_killed = kill_workers(cluster, night, 2)
        told, errors = night.communicate()
        assert night.returncode == 0, errors
        assert num_killed == 2
        for part in ("stage_part", "clean_part", "write_part", "refit_part", "write_users"):
            assert f"{part}: " in errors
        assert json.loads(told)["metrics"] == alone["metrics"]
        assert_same_bits(one / "store", many / "store")

        if num_nights == 2:
            (tmp_path / "next.parquet").rename(logs.parent / "4.parquet")
            alone = run_alone(one, logs)
            night = start_night(many, logs, cluster.env, f"resources.ray_address={cluster.address}")
            told, errors = night.communicate()
            assert night.returncode == 0, errors
            assert json.loads(told)["night"]["kind"] == alone["night"]["kind"] == "incremental"
            assert json.loads(told)["metrics"] == alone["metrics"]
    assert cluster.processes() == []
    whole, divided = (bytes_of(root, "sources.json", "events", "corpus", "export") for root in (one, many))
    assert whole.keys() == divided.keys()
    assert [name for name in whole if whole[name] != divided[name]] == []
    assert_same_bits(one / "store", many / "store")
    assert list((many / ".tmp").iterdir()) == []


@needs_ray
def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"nothing answers at resources\.ray_address 127\.0\.0\.1:9 .*HOST:6379"
    with pytest.raises(ConfigError, match=message):
        count_parts("127.0.0.1:9", tmp_path)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ConfigError, match="Ray requires no token"):
        count_parts("auto", tmp_path)
    for address in ("nowhere", "ray://127.0.0.1:10001", "host:port"):
        with pytest.raises(ConfigError, match="nothing answers"):
            check_address(address)


def test_without_ray_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray is not installed: pip install -c constraints\.txt -e '\.\[ray\]'"):
        count_parts("auto", tmp_path)


def test_one_machine_is_the_default(tmp_path: Path) -> None:
    with open_fan_out(ResourcesConfig(), open_root(tmp_path)) as fan_out:
        assert fan_out is HERE


def test_a_node_that_is_not_set_up_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ConfigError, match="Ray requires no token"):
        check_node(tmp_path, digest_code())
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(ConfigError, match="another version of surf2vec"):
        check_node(tmp_path, "0" * 16)
    with pytest.raises(ConfigError, match=f"does not see the root {tmp_path}"):
        check_node(tmp_path, digest_code())
    (tmp_path / ".tmp").mkdir()
    check_node(tmp_path, digest_code())
