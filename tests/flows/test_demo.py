"""The demo's numbers on literal vectors, and what it prints for a literal export."""

import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.flows import demo
from surf2vec.flows.demo import Vectors, measure_neighbours, nearest_rows, read_vectors, share_unmoved, spread_rows
from surf2vec.tasks.sample.logs import interests_of_keys, keys_of
from surf2vec.tasks.sample.world import TOPICS, write_ids

EAST_NORTH = np.array([[1, 0], [9, 1], [0, 2], [1, 7], [3, 0]], np.float32)


def test_nearest_rows_are_by_cosine_not_by_length() -> None:
    assert nearest_rows(EAST_NORTH, np.array([0, 2]), 2).tolist() == [[4, 1], [3, 1]]


def test_nearest_rows_with_fewer_others_than_asked_or_at_the_same_place() -> None:
    assert nearest_rows(EAST_NORTH, np.arange(5), 10).shape == (5, 4)
    alike = nearest_rows(np.ones((4, 2), np.float32), np.arange(4), 2)
    assert all(row not in found for row, found in enumerate(alike.tolist()))


@given(st.integers(2, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_nearest_rows_are_the_largest_cosines(num_rows: int, num: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((num_rows, 3)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for row, found in enumerate(nearest_rows(vectors, np.arange(num_rows), num)):
        assert row not in found
        assert len(set(found.tolist())) == len(found) == min(num, num_rows - 1)
        others = np.delete(unit @ unit[row], row)
        np.testing.assert_allclose((unit @ unit[row])[found], np.sort(others)[::-1][: len(found)], atol=1e-6)


def test_measure_neighbours_of_separate_groups() -> None:
    labels = np.array([0, 0, 1, 1, 0])
    found, chance, everybody = measure_neighbours(EAST_NORTH, labels, np.arange(5), 1)
    assert found == 1
    # Three users have 2 of 4 others with their label, two have 1 of 4.
    assert chance == pytest.approx((3 * 2 / 4 + 2 * 1 / 4) / 5)
    # The mean (2.8, 2) is nearest to row 1, of label 0: right for three users in five.
    assert everybody == pytest.approx(3 / 5)


def test_random_vectors_find_no_more_than_chance() -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 10, 2_000)
    found, chance, _ = measure_neighbours(rng.standard_normal((2_000, 8)), labels, np.arange(2_000), 10)
    assert found == pytest.approx(chance, abs=0.01)


@pytest.mark.parametrize(("num_rows", "num_wanted", "rows"), [(3, 5, [0, 1, 2]), (10, 4, [0, 2, 5, 7]), (0, 4, [])])
def test_spread_rows(num_rows: int, num_wanted: int, rows: list[int]) -> None:
    assert spread_rows(num_rows, num_wanted).tolist() == rows


def fake_command(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program called `surf2vec` beside the interpreter that the demo believes to run in."""
    path = folder / "surf2vec"
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(demo.sys, "executable", str(folder / "python"))


def test_run_job_answers_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    fake_command(
        tmp_path, monkeypatch, "import sys, json\nprint('50 %', file=sys.stderr)\nprint(json.dumps(sys.argv[1:]))"
    )
    assert demo.run_job(["surf2vec", "run", "--root", "r"]) == (
        0,
        ["run", "--root", "r"],
    )
    assert capfd.readouterr().err == "50 %\n"


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("print('{\"error\": {\"code\": \"resources\", \"message\": \"disk [full]\"}}'); raise SystemExit(1)", 1, "disk [full]"),
        ("raise SystemExit(3)", 3, "no JSON came back"),
        ("import os; os.kill(os.getpid(), 9)", 1, "no JSON came back"),
        ("print('hello')", 1, "no JSON came back"),
    ],
)  # fmt: skip
def test_a_failed_run_is_shown_and_its_exit_code_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, script: str, code: int, message: str
) -> None:
    fake_command(tmp_path, monkeypatch, script)
    assert demo.demo(tmp_path / "demo", 50, 1) == code
    assert message in capfd.readouterr().out.replace("\n", " ")


def write_vectors(path: Path, name: str, names: list[str], vectors: np.ndarray) -> None:
    """A part of an export, as the contract has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), vectors.shape[1])
    pq.write_table(pa.table({name: pa.array(names), "vector": values}), path)


def test_read_vectors_of_all_parts(tmp_path: Path) -> None:
    write_vectors(tmp_path / "part-00003.parquet", "user_id", ["c"], EAST_NORTH[4:])
    write_vectors(tmp_path / "part-00000.parquet", "user_id", ["a", "b"], EAST_NORTH[:2])
    names, values = read_vectors(tmp_path, "user_id")
    assert names == ["a", "b", "c"]
    np.testing.assert_array_equal(values, EAST_NORTH[[0, 1, 4]])


def held_night(export: Path) -> dict[str, Any]:
    """What the command prints of a night that the gate holds."""
    return {
        "export_dir": str(export),
        "report": "runs/x/report.html",
        "metrics": {"hit_at_10": 0.25, "popularity_hit_at_10": 0.05},
        "users": 400,
        "release": "aaaa",
        "model_version": 3,
        "alias": "challenger",
        "training": {"train_seconds": 12.5},
        "tracking_uri": "sqlite:////x/mlflow.db",
        "night": {"space_id": "space-1", "changed": 77, "new_users": 11},
        "facts": {"Gate": ["Held by events: the champion keeps serving.", ""]},
        "gate": {
            "verdict": "held",
            "passes": False,
            "held_by": ["events"],
            "table": [{"rule": "events", "tonight": "0.5", "limit": ">= 0.6", "verdict": "held: 0.1 past the limit"}],
        },
    }


def test_demo_prints_what_a_perfect_export_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Vectors that are the planted interests: users and pages of a topic point the same way."""
    seed, numbers = 4, np.arange(400)
    rng = np.random.default_rng(0)
    directions = np.eye(len(TOPICS), dtype=np.float32)
    interests = interests_of_keys(keys_of(numbers, seed), seed)
    users = directions[interests[:, 0]] + rng.normal(0, 0.01, (400, len(TOPICS))).astype(np.float32)
    urls = [f"https://kitchen-table.example/recipes/p{i}" for i in range(8)]
    urls += [f"https://corner-flag.example/matches/p{i}" for i in range(8)]
    urls += ["https://fourth-gear.example/reviews/x"]
    topics = [TOPICS.index("cooking")] * 8 + [TOPICS.index("football")] * 8 + [TOPICS.index("cars")]
    export = tmp_path / "export"
    write_vectors(
        export / "user_vectors/part-00000.parquet", "user_id", write_ids(keys_of(numbers, seed)).to_list(), users
    )
    write_vectors(export / "item_vectors/part-00000.parquet", "url", urls, directions[topics])
    (export / "manifest.json").write_text("{}")
    result = held_night(export)
    answers = iter([(0, result), (0, result), (3, result)] * 2)
    monkeypatch.setattr(demo, "run_job", lambda command: next(answers))
    assert demo.demo(tmp_path / "demo", 50, seed) == 0
    assert "--json" not in capfd.readouterr().out
    assert demo.demo(tmp_path / "demo", 50, seed) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert float(printed.partition("main interest")[2].split("%")[0]) > 95
    assert "vectors random popularity" in printed
    assert "25.0%, by popularity 5.0%" in printed
    for text in (
        "open runs/x/report.html in a browser", "mlflow ui --backend-store-uri sqlite:////x/mlflow.db", str(export),
        "seconds of training", "12.5", "surf2vec similar ", "surf2vec run --root my-root",
        "100.0% have the same interest", "held: 0.1 past the limit", "release aaaa keeps serving",
    ):  # fmt: skip
        assert text in printed
    assert len(list((tmp_path / "demo/logs").glob("*.csv"))) == demo.DAYS
    *whole, half = sorted((tmp_path / "demo/delivered").glob("*.csv"))
    assert all(path.read_bytes() == (tmp_path / "demo/logs" / path.name).read_bytes() for path in whole)
    lines, all_lines = (
        len((tmp_path / place / half.name).read_bytes().splitlines()) for place in ("demo/delivered", "demo/logs")
    )
    assert lines == pytest.approx(all_lines / 2, abs=1)


def test_only_users_of_both_nights_with_the_same_bits_are_unmoved() -> None:
    values = np.random.default_rng(3).standard_normal((60, 8)).astype(np.float32)
    before = Vectors([f"u{n}" for n in range(60)], values)
    moved = values[::-1].copy()
    moved[0] *= 2  # longer: the same direction, another vector
    after = Vectors(["new", *before.names[::-1]], np.concatenate((values[:1], moved)))
    assert share_unmoved(before, after) == pytest.approx(59 / 60)
