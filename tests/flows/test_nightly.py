"""Whole nights: from log files to a registered release, again, killed, and on bad input."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.activity.count import NAMES
from surf2vec.trainer.store.generation import read_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.system.files import read_json
from tests.data.corpora import planted_histories
from tests.flows.test_cli import as_options, call, kill_once
from tests.roots.files import bytes_of, flip
from tests.roots.ingest import write_log

FAST = as_options(("train.epochs=20", "train.vector_size=16", "train.threads=1", "train.alpha=0.1"))
ESSENTIAL = {
    "run_id", "release", "model_version", "alias", "tracking_uri", "users", "items", "events", "rejected", "export_dir",
    "report", "metrics", "seconds",
}  # fmt: skip


def write_logs(path: Path, num_users: int = 200) -> Path:
    """Planted histories as a CSV: users who each visit the pages of one topic."""
    histories = planted_histories(num_users).items()
    visits = ((user, n, item) for user, items in histories for n, item in enumerate(items))
    return write_log(path, *(f"{user},/page/{item},2026-01-0{1 + n // 9}T00:00:{n:02d}Z" for user, n, item in visits))


def run(root: Path, *arguments: str) -> dict[str, Any]:
    result = call("run", "--root", str(root), "--json", *FAST, *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file of a root but for databases and locks."""
    return {name: content for name, content in bytes_of(root).items() if ".db" not in name}


def generation(root: Path) -> int:
    """The newest one of the store, 0 before there is any."""
    path = root / "store" / STORE_MANIFEST
    return read_manifest(path)["generation"] if path.exists() else 0


def count_ended(root: Path, step: str) -> int:
    """In how many runs of a root a step has ended."""
    return sum(step in read_json(path)["steps"] for path in root.glob("runs/*/run.json"))


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("night")
    write_logs(folder / "logs" / "day.csv")
    return folder / "root", run(folder / "root", "--logs", str(folder / "logs" / "*.csv"))


def test_a_night_makes_a_champion(night: tuple[Path, dict[str, Any]]) -> None:
    root, result = night
    assert set(result) >= ESSENTIAL
    assert set(result["seconds"]) >= {"ingest", "corpus", "train", "evaluate", "refit", "export", "register"}
    assert (result["alias"], result["model_version"], result["users"], result["items"]) == ("champion", 1, 200, 60)
    assert result["metrics"]["hit_at_10"] > 1.5 * result["metrics"]["popularity_hit_at_10"]
    users = pq.read_table(Path(result["export_dir"]) / "user_vectors")
    assert users.num_rows == 200
    assert users.schema.field("vector").type.list_size == 16 + len(NAMES)
    items = pq.read_table(Path(result["export_dir"]) / "item_vectors")
    assert set(items.column("url").to_pylist()) == {f"/page/{i}" for i in range(60)}
    assert "user-" not in Path(result["report"]).read_text()
    assert root in Path(result["report"]).parents


def test_the_same_command_again_changes_no_byte(night: tuple[Path, dict[str, Any]]) -> None:
    root, result = night
    before = snapshot(root)
    again = call("run", "--root", str(root), "--json", *FAST, "--logs", str(root.parent / "logs" / "*.csv"))
    assert json.loads(again.stdout) == result
    assert snapshot(root) == before
    (told,) = again.stderr.splitlines()
    assert f"nothing to do: run {result['run_id']}" in told


def test_similar_users_like_the_same_topic(night: tuple[Path, dict[str, Any]]) -> None:
    root, _ = night
    result = json.loads(call("similar", "user-8", "-k", "5", "--root", str(root), "--json").stdout)
    topics = [int(row["user_id"].split("-")[1]) % 4 for row in result["neighbours"]]
    assert len(topics) == 5
    assert topics.count(0) >= 4
    assert len(result["items"]) == 5


def test_a_pull_is_the_export(night: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, result = night
    pulled = call(
        "pull", "models:/surf2vec-users@champion", "--out", str(tmp_path / "out"), "--root", str(root), "--json"
    )
    assert pulled.returncode == 0, pulled.stderr
    exported = bytes_of(Path(result["export_dir"]))
    assert f"Release {result['release']}: a vector of" in exported.pop("README.md").decode()
    assert bytes_of(tmp_path / "out") == exported


def test_doctor_finds_a_whole_root_whole_and_a_flipped_byte(night: tuple[Path, dict[str, Any]]) -> None:
    root, _ = night
    found = call("doctor", "--root", str(root), "--json")
    assert (found.returncode, json.loads(found.stdout)["damage"]) == (0, 0), found.stdout
    path = next((root / "export").rglob("part-*.parquet"))
    whole = flip(path)
    found = call("doctor", "--root", str(root), "--json")
    path.write_bytes(whole)
    assert (found.returncode, json.loads(found.stdout)["damage"]) == (1, 1)
    assert path.name in found.stdout


@pytest.mark.slow
def test_a_killed_night_ends_as_an_undisturbed_one(night: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """kill -9 at several moments of the run; the same command then ends with the very same vectors."""
    one, undisturbed = night
    two, logs = tmp_path / "two", str(one.parent / "logs" / "*.csv")
    arguments = ["run", "--root", str(two), *FAST, "--logs", logs, "--set", "train.commit_seconds=0"]
    kill_once(lambda: generation(two) >= 1, *arguments)
    for step in ("train", "export"):
        kill_once(lambda step=step: count_ended(two, step) == 1, *arguments)
    resumed = run(two, "--logs", logs)
    for kind in ("user_vectors", "item_vectors"):
        assert snapshot(Path(undisturbed["export_dir"]) / kind) == snapshot(Path(resumed["export_dir"]) / kind)
    assert (resumed["run_id"], resumed["model_version"]) == (undisturbed["run_id"], 1)
    assert resumed["metrics"] == undisturbed["metrics"]


@pytest.mark.slow
def test_too_many_rejects_exit_1_and_leave_what_was_there(night: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, _ = night
    before = snapshot(root)
    broken = tmp_path / "broken.csv"
    broken.write_text("user_id,url,ts\n" + "ann,/page/1,yesterday\n" * 50 + "ann,/page/1,2026-01-01T00:00:00Z\n" * 50)
    result = call("run", "--root", str(root), "--json", *FAST, "--logs", str(broken))
    assert result.returncode == 1
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "too_many_rejects"
    assert "50" in error["message"]
    assert "Traceback" not in result.stderr
    after = {name: digest for name, digest in snapshot(root).items() if not name.startswith("rejects/")}
    assert after == {name: digest for name, digest in before.items() if not name.startswith("rejects/")}
