"""The demo's numbers on literal vectors, and what it prints of literal nights."""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.flows import demo
from surf2vec.flows.demo import measure_neighbours, nearest_rows
from surf2vec.tasks.sample.logs import interests_of_keys, keys_of
from surf2vec.tasks.sample.world import TOPICS
from surf2vec.trainer.errors import ResourceError

EAST_NORTH = np.array([[1, 0], [9, 1], [0, 2], [1, 7], [3, 0]], np.float32)


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


class PerfectRelease:
    """A release whose vectors are the planted interests; of users with odd numbers they are longer from night to night."""

    def __init__(self, seed: int, night: int) -> None:
        numbers, self.manifest = (
            np.arange(400),
            {
                "release": f"r{night}",
                "vector_size": 32,
                "bias_columns": [],
                "parts": {"interest": [0, 24], "trail": [24, 32]},
            },
        )
        keys = keys_of(numbers, seed)
        noise = np.random.default_rng(0).normal(0, 0.01, (400, 32))
        directions = np.eye(32)[interests_of_keys(keys, seed)[:, 0]] * (1 + night * (numbers % 2))[:, None]
        vectors = pl.Series((directions + noise).astype(np.float32), dtype=pl.Array(pl.Float32, 32))
        self.users = pl.LazyFrame({"user_id": [f"{key:016x}" for key in keys], "vector": vectors})
        hosts = {"cooking": "kitchen-table", "football": "corner-flag", "cars": "fourth-gear"}
        rows = [
            (f"https://{host}.example/p{n}", TOPICS.index(topic)) for topic, host in hosts.items() for n in range(8)
        ]
        pages = pl.Series(np.eye(32, dtype=np.float32)[[topic for _, topic in rows]], dtype=pl.Array(pl.Float32, 32))
        self.items = pl.LazyFrame({"url": [url for url, _ in rows], "vector": pages})

    def user_vectors(self) -> pl.LazyFrame:
        return self.users

    def item_vectors(self) -> pl.LazyFrame:
        return self.items


def literal_night(night: int, is_held: bool) -> dict[str, Any]:
    """What a night returns."""
    rule = {"rule": "events", "tonight": "0.5", "limit": "≥ 0.6", "verdict": "held", "reason": "0.1 past the limit"}
    verdict = "Held by events: the champion keeps serving." if is_held else "Passed 1 rules; 0 not checked."
    return {
        "release": f"r{night}", "model_version": night + 1, "alias": None, "tracking_uri": "sqlite:////x/mlflow.db",
        "export_dir": "/x/export", "report": "runs/x/report.html", "funnel": [], "notes": [],
        "facts": {"Users": ["400", "77 changed since r0"], "Gate": [verdict, ""]},
        "metrics": {"hit_at_10": 0.25, "popularity_hit_at_10": 0.05},
        "gate": {"verdict": "held" if is_held else "passed", "passes": not is_held, "table": [rule]},
    }  # fmt: skip


def run_demo(folder: Path, monkeypatch: pytest.MonkeyPatch, nights: list[dict[str, Any]]) -> None:
    answers = iter(nights)
    monkeypatch.setattr(demo.surf2vec, "run", lambda logs, root: next(answers), raising=False)
    opened = lambda root, release="r1": PerfectRelease(4, int(release[1:]))  # noqa: E731
    monkeypatch.setattr(demo.surf2vec, "open_release", opened, raising=False)
    demo.demo(folder, 50, 4)


def test_demo_prints_what_a_perfect_export_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # a second demo begins anew
        run_demo(tmp_path, monkeypatch, [literal_night(night, night == 2) for night in range(3)])
    printed = " ".join(capfd.readouterr().out.split())
    assert float(printed.partition("main interest, by interest")[2].split("%")[0]) > 95
    for text in (
        "vectors random popularity", "25.0%, by popularity 5.0%", "runs/x/report.html", "400, 77 changed since r0",
        "mlflow ui --backend-store-uri sqlite:////x/mlflow.db", "surf2vec similar ", "surf2vec run --root my-root",
        "50.0% have the same interest", "held: 0.1 past the limit", "Release r1 keeps serving",
    ):  # fmt: skip
        assert text in printed, text
    *whole, half = sorted((tmp_path / "delivered").glob("*.csv"))
    assert len(whole) + 1 == demo.DAYS
    assert all(path.read_bytes() == (tmp_path / "logs" / path.name).read_bytes() for path in whole)
    lines, all_lines = (
        len((tmp_path / place / half.name).read_bytes().splitlines()) for place in ("delivered", "logs")
    )
    assert lines == pytest.approx(all_lines / 2, abs=1)


def test_a_demo_with_nobody_to_evaluate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_demo(tmp_path, monkeypatch, [literal_night(night, night == 2) | {"metrics": {}} for night in range(3)])
    assert "Held-out" not in capfd.readouterr().out


def test_a_night_that_the_gate_judges_otherwise_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo.sys, "argv", ["demo", "--root", str(tmp_path), "--users", "50"])
    monkeypatch.setattr(demo.surf2vec, "run", mock.Mock(side_effect=ResourceError("disk [full]")), raising=False)
    assert (demo.main(), "disk [full]" in capfd.readouterr().err) == (1, True)
    monkeypatch.setattr(demo.surf2vec, "run", lambda logs, root: literal_night(0, True), raising=False)
    assert (demo.main(), "verdict was 'held'" in capfd.readouterr().err) == (3, True)
