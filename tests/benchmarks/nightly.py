"""The cheap night: 1 % new, 1 % changed and 0.1 % deleted users, beside training everything anew on the same window.

Logs of `surf2vec sample-logs` are dealt to days so that the last day has the new users and the newest events of the changed
ones, and the first day, which leaves the window, those of the deleted. Two nights run as a person runs them (`surf2vec run`,
in processes of their own): their steps' seconds are told. Then, in this process and in turn, training goes on from the first
night and trains everything anew, both without the same held-out items of the last day, so that the two rank the same items
for the same users.

    night     training's seconds (with what it begins from) over a full one's; hit@10 beside the full one's, relative, with the
              95 % interval of a paired bootstrap
    window    the same where a window of 30 days moves by one, of logs as they come: about half of all rows change
"""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from surf2vec.tasks.evaluation.evaluate import join_sides, questions, rank_held_out
from surf2vec.tasks.evaluation.measures import hits
from surf2vec.tasks.evaluation.scores import score_of
from surf2vec.tasks.gate.rules import Rule, compare
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.sample.logs import FIRST_DAY, write_sample_logs
from surf2vec.tasks.training.beginning import DECAY, begin_new_items, night_schedule
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.store.writer import open_pinned
from surf2vec.trainer.system.files import read_json
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.next_night import start_night
from surf2vec.trainer.training.vectors import BothParts
from tests.benchmarks.harness import make_case, run_benchmark, run_surf2vec

SETTINGS: dict[str, Any] = {"epochs": 5}
MEMORY_BYTES = 6 * 10**9
SECONDS_MARK, HIT_MARK = 0.05, -0.01
_FEW = """
    copy (
        with events as (
            select *, hash(user_id) % 1000 as kind, row_number() over (partition by user_id order by ts desc) as age
            from read_parquet($logs)
        )
        select * exclude (kind, age) replace (
            case
                when kind = 0 then $first + (ts - date_trunc('day', ts))
                when kind between 11 and 20 or (kind between 1 and 10 and age <= 2) then $last + (ts - date_trunc('day', ts))
                when ts >= $last then ts - interval 1 day
                when ts < $first + interval 1 day then ts + interval 1 day
                else ts
            end as ts
        )
        from events
    ) to '{path}' (format parquet)
"""
_SPLIT = "copy (from read_parquet($logs) where (ts >= $last) = {is_last}) to '{path}' (format parquet)"


@dataclass(frozen=True)
class Case:
    """A night after another: its days, its window, and whether the logs are dealt so that few users change."""

    name: str
    days: int
    window_days: int
    is_few: bool


CASES = (Case("night", 14, 13, True), Case("window", 31, 30, False))


def measure_nightly(_: Path, users: int = 1_000_000, items: int = 100_000, case: str = "both") -> list[dict[str, Any]]:
    """Both cases, or the one of this name."""
    chosen, cases = [one for one in CASES if case in ("both", one.name)], []
    for one in chosen:
        with tempfile.TemporaryDirectory(prefix="nightly.") as name:
            cases.append(measure_case(one, Path(name), users if one.is_few else users // 4, items))
    return cases


def measure_case(case: Case, folder: Path, users: int, items: int) -> dict[str, Any]:
    """Two nights by the command, then both trainings in turn."""
    first, second = write_logs(case, folder, users, items)
    root = Root(folder / "root")
    one = run_night(root, first, case)
    shutil.copytree(root.store, folder / "store-base", copy_function=os.link)
    two = run_night(root, second, case)
    record = read_json(root.run(two["run_id"]) / "run.json")
    base = open_pinned(folder / "store-base", one["release"])
    whole = open_corpus(root.corpus(record["window_id"]))
    changed = open_corpus(whole.folder / "changed")
    config = TrainConfig(**SETTINGS)

    started = time.perf_counter()
    train(Job(whole.folder, folder / "store-full", config, MEMORY_BYTES))  # which holds out what `changed` does
    full_seconds = time.perf_counter() - started
    started = time.perf_counter()
    schedule = night_schedule(config)
    job = Job(changed.folder, folder / "store-night", config, MEMORY_BYTES, start="benchmark", schedule=schedule)
    start_night(job, changed, base, begin_new_items(whole, base), DECAY)
    train(job)
    night_seconds = time.perf_counter() - started

    anew = rank(whole, open_generation(folder / "store-full"))
    gone_on = rank(changed, open_generation(folder / "store-night"))
    rule = Rule("hit_at_10", "hit@10", HIT_MARK)
    found = compare(rule, hits(gone_on, 10), hits(anew, 10))
    low, high = found.interval or (0.0, 0.0)
    corpus = record["steps"]["corpus"]
    ratio = night_seconds / full_seconds
    return (
        make_case(
            case.name,
            ratio,
            f"<= {SECONDS_MARK}, hit@10 >= {HIT_MARK:+.0%}" if case.is_few else "none",
            not case.is_few or (ratio <= SECONDS_MARK and low >= HIT_MARK),
        )
        | {"users": two["users"], "changed": corpus["num_changed"], "new": corpus["num_new_users"]}
        | {"left": corpus["num_left"], "new_items": corpus["num_new_items"]}
        | {"train_seconds": night_seconds, "full_seconds": full_seconds, "held_out": len(anew)}
        | {"hit_at_10": float(hits(gone_on, 10).mean()), "full_hit_at_10": float(hits(anew, 10).mean())}
        | {"difference": found.value, "low": low, "high": high, "first_night": one["seconds"]}
        | {"second_night": two["seconds"]}
    )


def write_logs(case: Case, folder: Path, users: int, items: int) -> tuple[Path, Path]:
    """The logs of all days but the last, and those of the last."""
    write_sample_logs(folder / "sample", users, case.days, items, 1, "parquet")
    last = FIRST_DAY + timedelta(days=case.days - 1)
    params = {"logs": f"{folder}/sample/*.parquet", "last": last}
    with duckdb.connect() as con:
        if case.is_few:
            dealt = folder / "dealt.parquet"
            con.execute(_FEW.format(path=dealt), params | {"first": FIRST_DAY})
            params["logs"] = str(dealt)
        paths = folder / "before.parquet", folder / "last.parquet"
        for path, is_last in zip(paths, ("false", "true"), strict=True):
            con.execute(_SPLIT.format(path=path, is_last=is_last), params)
    return paths


def run_night(root: Root, logs: Path, case: Case) -> dict[str, Any]:
    """`surf2vec run` on these logs; what it prints."""
    settings = {f"train.{name}": value for name, value in SETTINGS.items()}
    settings |= {"window_days": case.window_days, "nightly.retain_days": 0}
    memory = ("--host-memory", str(MEMORY_BYTES))
    return run_surf2vec("run", "--root", str(root.path), "--logs", str(logs), *memory, settings=settings)


def rank(corpus: Corpus, generation: Generation) -> NDArray[np.float64]:
    """The rank of each held-out item, float64[m], in the order of micro-partitions and rows."""
    scores = score_of(generation, corpus.count_training_tokens())
    asked = join_sides((one,) for one, _ in questions(corpus, BothParts(generation, corpus)))
    return np.concatenate([rank_held_out(one, scores).ranks for (one,) in asked])


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_nightly, small={"users": 2_000, "items": 300, "case": "night"}))
