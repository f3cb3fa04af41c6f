"""Thirty nights of real logs on the whole stack: PostgreSQL, Prefect and its worker, MLflow, S3; some of them sabotaged.

The days of `entree.parquet` are delivered one a night, and each night is a run of the deployment `nightly`, as the schedule would
start it. What is done to them:

    killed      kill -9 of the worker and the run in the middle of training; a new worker, and Retry
    half        half of the day is delivered: the gate has to hold the release back
    straggler   the other half comes the next night, and a few lines of an older day with it
    away        the MLflow server is killed while it trains, and started again once the run waits for it
    forgotten   users are forgotten; a late file has them again

After each night the champion has to be the newest release that the gate let through; after all of them the events have to be the
union of what was delivered, without those of the forgotten users. --record writes the record of the nights to replay.md.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from surf2vec.infra.deploy import Patience, apply_automations, deploy
from surf2vec.infra.stack import Stack
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.promotion import find_champion
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.system.files import read_json
from tests.benchmarks.harness import make_case, run_benchmark, run_surf2vec
from tests.infra.nights import Nights, wait_until

FIRST_DAY, WINDOW_DAYS = date(1997, 2, 13), 60
SABOTAGE = {5: "killed", 11: "half", 12: "straggler", 17: "away", 23: "forgotten"}
CONFIG: dict[str, Any] = {
    "window_days": WINDOW_DAYS,
    "train": {"threads": 2, "vector_size": 32, "epochs": 40, "commit_seconds": 1},
    # About 260 events a day, very uneven: what is usual for a day is known only roughly.
    "gate": {"newest_day_events": 0.5, "missing_days": 3},
}
NOTES = Path(__file__).with_name("replay.md")


@dataclass
class Replay:
    """The nights so far: what was delivered, what the gate held, and a line a night."""

    nights: Nights
    root: Root
    logs: Path
    events: pl.DataFrame
    tracking_uri: str
    delivered: list[pl.DataFrame] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    expected: str | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)

    def of_days(self, first: date, last: date) -> pl.DataFrame:
        return self.events.filter(pl.col("ts").dt.date().is_between(first, last)).sort("ts", "user_id")

    def deliver(self, name: str, rows: pl.DataFrame) -> None:
        """A file appears among the logs."""
        rows.write_csv(self.logs / f"{name}.csv")
        self.delivered.append(rows)

    def night(self, number: int) -> None:
        """Deliver a day, sabotage what is to be sabotaged, wait for the run's end, look at what serves."""
        day, what = FIRST_DAY + timedelta(days=WINDOW_DAYS + number), SABOTAGE.get(number, "")
        rows = self.of_days(day, day)
        if what == "half":
            rows = rows.head(len(rows) // 2)
        self.deliver(f"day-{day}", rows)
        if what == "straggler":
            yesterday = self.of_days(day - timedelta(days=1), day - timedelta(days=1))
            self.deliver(f"late-{day}", yesterday.tail(len(yesterday) - len(yesterday) // 2))
        if what == "forgotten":
            self.forget(rows)
        started = time.monotonic()
        run = self.nights.start(
            "nightly/nightly", root=str(self.root.path), logs=[str(self.logs / "*.csv")],
            config=CONFIG | {"publish": {"tracking_uri": self.tracking_uri}},
        )  # fmt: skip
        if what == "killed":
            self.kill_worker(run)
        if what == "away":
            self.take_mlflow_away(run)
        self.nights.wait_for_state(run, "Completed", seconds=400)
        self.look(number, day, what, round(time.monotonic() - started, 1))

    def kill_worker(self, run: Any) -> None:
        """The machine dies in the middle of training; another worker comes, and a person clicks Retry."""
        self.nights.wait_for_step(run, "train", "Running", seconds=200)
        worker = self.nights.stack.services["worker"]
        processes = self.nights.find_processes(run)
        assert worker.process
        assert processes
        worker.process.kill()
        for process in processes:
            process.kill()
        worker.stop()
        self.nights.restart("worker")
        self.nights.wait_for_state(run, "Crashed", seconds=200)
        self.nights.retry(run)

    def take_mlflow_away(self, run: Any) -> None:
        """The registry dies while vectors are trained, and is back a while after the run began to wait for it."""
        self.nights.wait_for_step(run, "train", "Running", "Completed", seconds=200)
        mlflow = self.nights.stack.services["mlflow"]
        assert mlflow.process
        mlflow.process.kill()
        mlflow.stop()
        wait_until(
            lambda: "AwaitingRetry" in (self.nights.step_state(run, "gate"), self.nights.step_state(run, "register")),
            200, lambda: "no step waits for MLflow",
        )  # fmt: skip
        self.nights.restart("mlflow")

    def forget(self, rows: pl.DataFrame) -> None:
        """Three users of the window leave for good; then a late file has them again."""
        self.forgotten = pl.concat(self.delivered)["user_id"].unique().sort().sample(3, seed=1).to_list()
        ids = self.root.path / "ids.txt"
        ids.write_text("\n".join(self.forgotten))
        told = run_surf2vec("forget", "--ids-file", str(ids), "--root", str(self.root.path), "--set",
                        f"publish.tracking_uri={self.tracking_uri}")  # fmt: skip
        assert told["found"] == 0, told
        self.expected = find_champion(self.root, PublishConfig(tracking_uri=self.tracking_uri))
        late = rows.head(3).with_columns(user_id=pl.Series(self.forgotten[:3])) if len(rows) >= 3 else rows
        self.deliver("late-forgotten", late)

    def look(self, number: int, day: date, what: str, seconds: float) -> None:
        """What serves now has to be the newest release that the gate let through."""
        records = [read_json(path) for path in self.root.path.glob("runs/[!.]*/run.json")]
        nights = [record for record in records if "corpus" in record["steps"]]
        record = max(nights, key=lambda one: (one["steps"]["corpus"]["until"], one["created_at"]))
        steps = record["steps"]
        gate = steps.get("gate", {})
        if gate.get("passes"):
            self.expected = record["run_id"]
        champion = find_champion(self.root, PublishConfig(tracking_uri=self.tracking_uri))
        assert champion == self.expected, (number, champion, self.expected)
        assert what != "half" or not gate["passes"], "a day that was delivered by half came through the gate"
        metrics = gate.get("metrics", {})
        line = (
            {"night": number, "day": str(day), "what": what}
            | {"kind": steps.get("settle", {}).get("kind", "unchanged")}
            | {"trained": steps["corpus"].get("num_changed", steps["corpus"]["num_users"])}
            | {"held_by": ", ".join(gate.get("held_by", []))}
            | {"hit_at_10": steps.get("evaluate", {}).get("metrics", {}).get("hit_at_10")}
            | {"cosine_p1": metrics.get("gate_cosine_p1"), "cosine_median": metrics.get("gate_cosine_median")}
            | {"train_seconds": steps.get("train", {}).get("seconds"), "seconds": seconds}
        )
        self.lines.append(line)
        print(json.dumps(line), file=sys.stderr, flush=True)

    def count_lost(self) -> tuple[int, int]:
        """Events that are in the root, and those that should be: every line delivered, but for users who were forgotten."""
        files = list(self.root.events.glob("day=*/*.parquet"))
        there = pl.concat([pl.read_parquet(path, columns=["user_id", "url", "ts"]) for path in files])
        wanted = pl.concat(self.delivered).filter(~pl.col("user_id").is_in(self.forgotten))
        assert not set(there["user_id"].unique()) & set(self.forgotten), "a forgotten user is back"
        keys = ["user_id", "ts"]
        assert (
            there.select(keys)
            .sort(keys)
            .equals(wanted.select(there.select(keys).columns).cast(there.select(keys).schema).sort(keys))
        )
        return len(there), len(wanted)


def measure_replay(data: Path, nights: int = 30) -> list[dict[str, Any]]:
    """All nights on one stack; the case says whether every one ended as it has to."""
    with tempfile.TemporaryDirectory(prefix="replay.", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with Stack(folder / "stack", try_s3=True).running() as stack:
            settings = stack.client_environment
            replay = begin(stack, folder, data)
            with (
                temporary_settings(
                    {
                        PREFECT_API_URL: settings["PREFECT_API_URL"],
                        PREFECT_API_AUTH_STRING: settings["PREFECT_API_AUTH_STRING"],
                    }
                ),
            ):
                deploy(replay.root.path, str(replay.logs / "*.csv"), "30 2 * * *", "Europe/Berlin")
                apply_automations(None, Patience(silent_seconds=45))
                for number in range(nights):
                    replay.night(number)
            there, wanted = replay.count_lost()
            damage = run_surf2vec("doctor", "--root", str(replay.root.path))["damage"]
    held = [line["night"] for line in replay.lines if line["held_by"]]
    case = (
        make_case("entree", there / wanted, "1, and the right champion each night", there == wanted and damage == 0)
        | {"nights": nights, "held": len(held), "damage": damage}
        | {"full": sum(line["kind"] == "full" for line in replay.lines), "events": there}
        | {"seconds": sum(line["seconds"] for line in replay.lines)}
    )
    if "--record" in sys.argv:
        NOTES.write_text(write_notes(replay.lines, case), encoding="utf-8")
    return [case]


def begin(stack: Stack, folder: Path, data: Path) -> Replay:
    """The first window of the logs is there before the first night."""
    os.environ.update(stack.client_environment)
    events = pl.read_parquet(data / "entree.parquet")
    (folder / "logs").mkdir()
    (folder / "root").mkdir()
    tracking_uri = stack.client_environment["MLFLOW_TRACKING_URI"]
    replay = Replay(Nights(stack), Root(folder / "root"), folder / "logs", events, tracking_uri)
    replay.deliver("before", replay.of_days(FIRST_DAY, FIRST_DAY + timedelta(days=WINDOW_DAYS - 1)))
    return replay


def write_notes(lines: list[dict[str, Any]], case: dict[str, Any]) -> str:
    """The record of the nights (Markdown)."""
    names = list(lines[0])
    rows = [
        " | ".join(
            "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
            for value in line.values()
        )
        for line in lines
    ]
    table = "\n".join([f"| {' | '.join(names)} |", "|---" * len(names) + "|", *(f"| {row} |" for row in rows)])
    told = f"{case['nights']} nights in {case['seconds']:,.0f} s, {case['events']:,} events, {case['held']} nights held back"
    command = "`python -m tests.benchmarks.replay --record`"
    return f"# Nights of real logs on the whole stack\n\n{command}, {date.today()}: {told}.\n\n{table}\n"


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_replay, small={"nights": 1}))
