"""Which case speaks for a benchmark, and how figures are shown."""

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import harness
from tests.benchmarks.harness import run_benchmark, show_figure, worst_case

EPOCHS = 20


def case(ratio: float, mark: str) -> dict[str, Any]:
    return {"case": f"at {ratio}", "ratio": ratio, "mark": mark, "passed": True}


def measure_users(_: Path, users: int = 500) -> list[dict[str, Any]]:
    return [case(users / 10, "none") | {"epochs": EPOCHS}]


def test_the_worst_case_is_one_that_has_a_mark_or_else_the_lowest() -> None:
    assert worst_case([case(0.5, "none"), case(3.0, ">= 2 x"), case(2.5, ">= 2 x")])["ratio"] == 2.5
    assert worst_case([case(0.5, "none"), case(0.4, "none")])["ratio"] == 0.4


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "yes"), (False, "no"), (None, ""), (1234567, "1,234,567"), (0.12346, "0.1235"), (0.0, "0.0000"),
        (-2.5, "-2.5000"), (61.234, "61.23"), (12345.6, "12,346"), (0.0000123, "1.23e-05"), ("PV-DM", "PV-DM"),
        (float("inf"), "inf"),
        ({"train": 1234, "loss": 0.5}, "train 1,234, loss 0.5000"),
    ],
)  # fmt: skip
def test_figures(value: Any, shown: str) -> None:
    assert show_figure(value) == shown


def test_an_option_reaches_the_measurement_and_the_recorded_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr(harness.sys, "argv", ["-m", "--users", "70", "--record", "--json"])
    assert run_benchmark(measure_users) == 0
    assert json.loads(capsys.readouterr().out)["ratio"] == 7
    [row] = csv.DictReader((tmp_path / "results.csv").read_text().splitlines())
    assert row["command"] == "python -m tests.benchmarks.test_harness --users 70 --record --json"
    assert re.fullmatch("[0-9a-f]{12}(-dirty)?|", row["commit"])


def test_a_small_run_takes_other_options_and_constants(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness.sys, "argv", ["-m", "--small", "--json"])
    monkeypatch.setattr(sys.modules[__name__], "EPOCHS", EPOCHS)  # restored afterwards
    assert run_benchmark(measure_users, small={"users": 50, "EPOCHS": 1}) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["ratio"], result["epochs"]) == (5, 1)
