"""The load test: it finds an answer that is wrong or mixed, and a short run ends with none."""

from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.root.run import Root
from tests.benchmarks.load import PUBLISH, STRANGER, K, Readings, make_exports, operate, read_steps
from tests.roots.ingest import take_in, write_log
from tests.roots.nights import PASSED, make_night
from tests.tasks.registry.test_serving_model import ask, load

IDS = ["user-1", "user-7", STRANGER]


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Readings, dict[str, list[dict[str, Any]]]]:
    """Two releases, and what each gives."""
    root = Root(tmp_path_factory.mktemp("load"))
    releases = make_exports(root, 2)
    return Readings(releases), {
        name: ask(load(root.export(name)), IDS, k=K, items=K).to_dict("records") for name in releases
    }


def test_an_answer_is_of_one_release(readings: tuple[Readings, dict[str, list[dict[str, Any]]]]) -> None:
    got, rows = Readings(readings[0].releases), readings[1]
    for name in ("r1", "r2", "r2"):
        got.judge(IDS, rows[name])
    assert (got.given, got.faults) == ({"r1": 1, "r2": 2}, [])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one, other: [one[0], other[1], one[2]],
        lambda one, other: [one[1], one[0], one[2]],
        lambda one, other: [one[0] | {"neighbours": other[0]["neighbours"]}, *one[1:]],
        lambda one, other: [one[0] | {"scores": other[0]["scores"]}, *one[1:]],
        lambda one, other: [one[0] | {"items": one[0]["items"][::-1]}, *one[1:]],
        lambda one, other: [one[0] | {"vector": other[0]["vector"]}, *one[1:]],
        lambda one, other: [one[0], one[1], one[2] | {"vector": one[0]["vector"]}],
        lambda one, other: one[:2],
    ],
    ids=["two releases", "swapped", "neighbours", "scores", "order of items", "vector", "stranger", "too few"],
)
def test_a_wrong_or_mixed_answer_is_a_fault(
    spoil: Any, readings: tuple[Readings, dict[str, list[dict[str, Any]]]]
) -> None:
    got = Readings(readings[0].releases)
    got.judge(IDS, spoil(readings[1]["r1"], readings[1]["r2"]))
    assert len(got.faults) == 1
    assert not got.given


@pytest.mark.slow
def test_each_step_says_which_release_served_after_it(tmp_path: Path) -> None:
    """A service that starts between a rollback and the next promotion has the older release."""
    root, log = Root(tmp_path / "root"), tmp_path / "operations.jsonl"
    take_in(root.path, write_log(tmp_path / "log.csv", "user-1,https://a.org/1,2026-01-01T00:00:00Z"))
    make_exports(root, 2)
    make_night(root, "r1", PASSED, PUBLISH)
    operate(root.path, 2, log)
    told = [(step["step"], step["release"]) for step in read_steps(log)]
    assert told == [("register", "r2"), ("rollback", "r1"), ("promote", "r2"), ("gc", "r2")]
