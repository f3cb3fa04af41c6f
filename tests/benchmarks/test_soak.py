"""The soak: it finds what grows, each day is of other users, and three nights and two at the same time run whole."""

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from surf2vec.infra.stack import find_postgres
from surf2vec.trainer.errors import ResourceError
from tests.benchmarks.soak import DAY_SECONDS, HORIZON, MOST_GROWTH, judge, open_place, run_nights, write_day
from tests.benchmarks.soak_together import run_together

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")


def nights(*values: float) -> list[dict[str, Any]]:
    return [{"night": number, "files": value} for number, value in enumerate(values)]


def test_a_quantity_that_grows_is_named() -> None:
    step = 2 * MOST_GROWTH / HORIZON * 1000
    case = judge(nights(*(1000 + step * night for night in range(100))), "files", {})
    assert (case["passed"], case["grows"]) == (False, "unsaid")
    assert case["a night"] == pytest.approx(step)
    assert case["low"] <= step <= case["high"]


def test_what_is_said_to_grow_has_no_mark() -> None:
    case = judge(nights(*range(100)), "files", {"files": "a report a night"})
    assert (case["passed"], case["mark"], case["grows"]) == (True, "none", "a report a night")


@pytest.mark.parametrize("first", [0, 500])
def test_what_settles_within_thirty_nights_and_full_nights_are_flat(first: float) -> None:
    settling = [first + 30 * night for night in range(30)]
    weekly = [1000 + 300 * (night % 7 == 0) for night in range(90)]
    case = judge(nights(*settling, *weekly), "files", {})
    assert (case["passed"], case["grows"], case["ratio"]) == (True, "no", 1.0)


def test_a_day_has_users_who_were_there_and_some_who_are_new(tmp_path: Path) -> None:
    for number in (0, 1, 60, 130):
        write_day(tmp_path, date(2026, 1, 1 + number % 28), number)
    first, next_day, later, last = (
        {line.split(",")[0] for line in (tmp_path / f"2026-01-{1 + number % 28:02d}.csv").read_text().splitlines()[1:]}
        for number in (0, 1, 60, 130)
    )
    assert 150 < len(first) < 250
    assert len(first & next_day) > 40
    assert first & later
    assert not first & last


@pytest.mark.long
@needs_gcc
def test_three_nights_without_a_server_that_stays(tmp_path: Path) -> None:
    with open_place(tmp_path, False) as place:
        seen = run_nights(place, 3, 0, tmp_path / "nights.jsonl")
    assert [json.loads(line) for line in (tmp_path / "nights.jsonl").read_text().splitlines()] == seen
    assert [one["kind"] for one in seen] == ["full", "incremental", "incremental"]
    assert min(seen[-1][f"{name} bytes"] for name in ("root", "events", "store", "runs", "mlflow", "artifacts")) > 0
    begun = [json.loads(path.read_text())["created_at"] for path in (place.root / "runs").glob("*/run.json")]
    days = sorted(date.fromisoformat(one[:10]).toordinal() for one in begun)
    assert days == [days[0], days[0] + 1, days[0] + 2], f"a night is {DAY_SECONDS} seconds after the one before"


@pytest.mark.long
@needs_gcc
def test_two_nights_at_the_same_time_on_a_stack() -> None:
    try:
        find_postgres()
    except ResourceError as error:
        pytest.skip(str(error))
    case = run_together(2)
    assert (case["case"], case["passed"]) == ("2 nights at the same time", True)
