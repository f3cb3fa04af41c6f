"""A night after another through the flow: who did not change keeps the vector bit for bit, and all stay in one space."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.api import open_release
from surf2vec.operations import doctor
from surf2vec.tasks.evaluation import returns
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.root.run import Root, Run
from tests.data.corpora import planted_histories
from tests.roots.ingest import write_day, write_log

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]  # Prefect's and MLflow's own warnings
FAST = [
    "train.epochs=10", "train.vector_size=16", "train.threads=1", "train.negative=5", "ingest.min_item_users=1",
    "ingest.min_item_events=1", "window_days=9", "gate.newest_day_events=0", "gate.hit_at_10_drop=0.1",
]  # fmt: skip


def first_days(folder: Path) -> dict[str, list[int]]:
    histories = planted_histories(200)
    for day in (1, 2, 3):
        write_day(folder, day, {user: items[day - 1 :: 3] for user, items in histories.items()})
    return histories


def second_day(folder: Path, histories: dict[str, list[int]]) -> tuple[set[str], set[str]]:
    """A fourth day: ten users come back, five are new, one page is; answers who changed and who is new."""
    changed = [f"user-{n}" for n in range(0, 100, 10)]
    new = {f"new-{n}": [n % 4 + 4 * k for k in range(6)] for n in range(5)}
    back = {user: [(histories[user][0] + 4) % 60, 60] for user in changed}
    write_day(folder, 4, back | new)
    return set(changed), set(new)


def run(root: Path, *, full: bool = False) -> dict[str, Any]:
    return make_night(root, [str(root.parent / "logs" / "*.csv")], config=load_config(None, FAST), full=full)


def vectors_of(result: dict[str, Any]) -> dict[str, np.ndarray]:
    found = open_release(result["export_dir"]).user_vectors().collect()
    return dict(zip(found["user_id"], found["vector"].to_numpy(), strict=True))


def count_returns(root: Path, result: dict[str, Any]) -> tuple[int, int] | None:
    """Of the champion's users, how many there were, and how many came back since."""
    found = Run(Root(root), result["run_id"]).record().steps.evaluate.returns
    return found and (found.num_users, found.num_returned)


def assert_alike(users: set[str], before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> None:
    assert min(cosine(before[user], after[user]) for user in users) > 0.9
    lengths = [np.linalg.norm(after[user]) / np.linalg.norm(before[user]) for user in users]
    np.testing.assert_allclose(lengths, 1, rtol=1e-4)


def test_a_night_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "LEAST_USERS", 5)
    root, logs = tmp_path / "root", tmp_path / "logs"
    histories = first_days(logs)
    first = run(root)
    assert first["night"]["kind"] == "full"
    assert "no champion" in first["night"]["full_because"]
    before = vectors_of(first)

    changed, new = second_day(logs, histories)
    second = run(root)
    night, after = second["night"], vectors_of(second)
    assert second["alias"] == "champion", second["gate"]
    assert (night["kind"], night["base"], night["new_users"]) == ("incremental", first["release"], 5)
    assert night["changed"] == len(changed | new)
    assert count_returns(root, second) == (len(before), len(changed))
    assert night["space_id"] == first["night"]["space_id"]
    assert set(after) == set(before) | new
    assert {user for user in before if np.array_equal(before[user], after[user])} == set(before) - changed
    items = open_release(second["export_dir"]).item_vectors().collect()
    assert items["url"][-1] == "https://a.org/s0/60", "new items come after those there were"
    assert [one for one in doctor(root)["findings"] if one["level"] != "ok"] == []

    assert run(root) == second, "the same command again"
    write_log(logs / "day-05.csv", "lonely,https://a.org/s0/0,2026-01-04T10:00:00Z")
    third = run(root)
    assert third["unchanged_since"] == second["release"]
    assert third["release"] == second["release"]

    full = run(root, full=True)
    assert full["night"]["kind"] == "full"
    assert "--full" in full["night"]["full_because"]
    assert full["night"]["space_id"] == first["night"]["space_id"]
    assert full["night"]["alignment"] > 0.5
    turned = vectors_of(full)
    cosines = [cosine(after[user], turned[user]) for user in after]
    assert np.median(cosines) > 0.8
    write_day(logs, 6, {"user-1": [1, 5, 9, 13]})
    sixth = run(root)
    assert sixth["night"]["base"] == full["release"]

    write_day(logs, 12, {user: items for user, items in histories.items() if user.endswith("7")})
    last = run(root, full=True)
    assert last["night"]["kind"] == "full"
    before, after = vectors_of(sixth), vectors_of(last)
    assert set(after) == set(before), "who has no events in the window stays for retain_days"
    away = set(before) - {user for user in histories if user.endswith("7")} - changed - new - {"user-1"}
    assert len(away) > 150
    assert_alike(away, before, after)
    assert [one for one in doctor(root)["findings"] if one["level"] != "ok"] == []


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
