"""Backfill: a night a day in order, holes said, resumed where it was killed, and the page of the nights."""

import json
import re
import signal
import subprocess
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.night.config import PipelineConfig
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.night.night import list_days, make_past_nights
from surf2vec.tasks.report.nights import write_nights_report
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.errors import InputError
from tests.data.corpora import planted_histories
from tests.flows.test_cli import COMMAND, as_options, call
from tests.roots.ingest import take_in, write_log

FAST = as_options(("train.epochs=2", "train.vector_size=8", "train.threads=1", "train.negative=4"))


def write_days(folder: Path, days: tuple[int, ...]) -> Path:
    """A log a day; everybody opens two pages of their topic on each."""
    for n, day in enumerate(days):
        lines = [
            f"{user},/page/{item},2026-01-{day:02d}T00:00:{k:02d}Z"
            for user, items in planted_histories(120, length=20).items()
            for k, item in enumerate(items[2 * n : 2 * n + 2] or items[:2])
        ]
        write_log(folder / f"d{day}.csv", *lines)
    return folder


def backfill(root: Path, *arguments: str) -> dict[str, Any]:
    result = call("backfill", "--root", str(root), "--json", *FAST, *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.long
@pytest.mark.usefixtures("_prefect")  # as flows
def test_nights_in_order_killed_and_gone_on(tmp_path: Path) -> None:
    logs, root = write_days(tmp_path / "logs", (1, 3)), tmp_path / "root"
    arguments = ["--logs", f"{logs}/*.csv", "--since", "2026-01-01", "--until", "2026-01-03"]
    with subprocess.Popen(
        [*COMMAND, "backfill", "--root", str(root), "--json", *FAST, *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        while not list(root.glob("runs/*/report.html")) and process.poll() is None:
            time.sleep(0.1)
        time.sleep(1.0)
        process.send_signal(signal.SIGKILL)
    done_before = {path: path.read_bytes() for path in root.glob("runs/*/run.json") if b'"report"' in path.read_bytes()}
    told = backfill(root, *arguments)
    nights = {night["day"]: night for night in told["nights"]}
    assert list(nights) == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert nights["2026-01-02"]["skipped"] == "no events on this day"
    assert [nights[day]["model_version"] for day in ("2026-01-01", "2026-01-03")] == [1, 2]
    assert done_before == {path: path.read_bytes() for path in done_before}
    assert root / "runs" / nights["2026-01-01"]["run_id"] / "run.json" in done_before
    page = Path(told["report"]).read_text()
    assert page.count("<svg") >= 2
    assert "user-" not in page


@pytest.mark.long
def test_neither_a_hole_nor_a_day_of_few_events_keeps_a_night_of_the_past_back(tmp_path: Path) -> None:
    logs = write_days(tmp_path / "logs", (1, 2, 3, 4, 6, 7))
    few = (logs / "d7.csv").read_text().splitlines()[:30]
    (logs / "d7.csv").write_text("\n".join(few) + "\n")
    told = backfill(
        tmp_path / "root", "--logs", f"{logs}/*.csv", "--since", "2026-01-04", "--set", "gate.cosine_median=-1"
    )
    nights = {night["day"]: night for night in told["nights"]}
    assert "no events" in nights["2026-01-05"]["skipped"]
    assert [nights[f"2026-01-0{day}"]["alias"] for day in (4, 6, 7)] == ["champion"] * 3


def test_a_straggler_has_its_night_and_those_after_it_run_anew(tmp_path: Path) -> None:
    root, ran = Root(tmp_path / "root"), []

    def run_night(root: Path, logs: list[str], until: date, config: PipelineConfig) -> dict[str, Any]:
        ran.append(until.day)
        run = Run(Root(root), f"r{len(ran)}")
        run.update(
            request=NightContext(run.root, None, until, config).request()[1], steps={"report": {"report": "page"}}
        )
        return {"run_id": run.run_id}

    def backfill() -> list[str]:
        return [one["run_id"] for one in make_past_nights(root.path, [], make_night=run_night)["nights"]]

    take_in(root.path, write_days(tmp_path / "logs", (1, 2, 3)) / "*.csv")
    assert backfill() == ["r1", "r2", "r3"]
    Run(root, "r2").forget_steps()  # as `surf2vec gc` does if it removes its release
    assert backfill() == ["r1", "r2", "r3"]
    assert ran == [1, 2, 3]
    take_in(root.path, write_log(tmp_path / "late.csv", "user-1,/page/5,2026-01-02T10:00:00Z"))
    assert backfill() == ["r1", "r4", "r5"]
    assert ran == [1, 2, 3, 2, 3]


def test_days_between_the_first_and_the_last_with_events(tmp_path: Path) -> None:
    write_log(tmp_path / "d.csv", "u,/a,2026-01-01", "u,/b,2026-01-03", "v,/b,2026-01-03")
    take_in(tmp_path / "root", tmp_path / "d.csv")
    root = Root(tmp_path / "root")
    assert list(list_days(root, None, None).values()) == [1, 0, 2]
    assert list(list_days(root, date(2026, 1, 3), date(2026, 1, 4))) == [date(2026, 1, 3), date(2026, 1, 4)]
    with pytest.raises(InputError, match="it has events from 2026-01-01 to 2026-01-03"):
        list_days(root, date(2026, 2, 1), date(2026, 2, 3))


def test_days_want_times(tmp_path: Path) -> None:
    log = write_log(tmp_path / "d.csv", "u,/a", "u,/b", header="user_id,url")
    take_in(tmp_path / "root", log, columns={"time": ()})
    with pytest.raises(InputError, match="nights of past days need logs with times"):
        list_days(Root(tmp_path / "root"), None, None)


def night(day: str, **values: Any) -> dict[str, Any]:
    metrics = {"hit_at_10": 0.25, "popularity_hit_at_10": 0.125, "gate_cosine_p1": 0.99}
    told = {
        "day": day,
        "events": 100,
        "window_id": "w",
        "run_id": "r",
        "model_version": 3,
        "alias": "champion",
        "users": 40,
    }
    return told | {"items": 9, "metrics": metrics, "seconds": {"ingest": 90.0, "train": 2.0, "export": 1.0}} | values


def test_the_page_of_nights(tmp_path: Path) -> None:
    held = night("2026-01-03", alias="challenger", gate={"passes": False, "held_by": ["hit_at_10"]}, metrics={})
    skipped = {"day": "2026-01-02", "events": 0, "skipped": "no events <on> this day"}
    for name in ("a.html", "b.html"):
        write_nights_report([night("2026-01-01"), skipped, held], tmp_path / name)
    page = (tmp_path / "a.html").read_text()
    assert page == (tmp_path / "b.html").read_text()
    for words in ("0.250", "0.990", "3.00 s", "held by hit_at_10", "no events &lt;on&gt; this day", "cosine p1"):
        assert words in page
    assert page.count("<svg") == 4
    write_nights_report([skipped], tmp_path / "none.html")
    assert "No night was run" in (tmp_path / "none.html").read_text()


def test_the_page_tells_days_and_of_more_than_a_year_months(tmp_path: Path) -> None:
    for last, label in (("2026-01-31", r">01 Jan<"), ("2027-03-01", r">Jan 2026<")):
        write_nights_report([night("2026-01-01"), night("2026-01-20"), night(last)], tmp_path / "page.html")
        assert re.search(label, (tmp_path / "page.html").read_text())
