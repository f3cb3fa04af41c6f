"""What is learned on the card beside the CPU's kernel: held-out loss and hit@20 on a planted log and on a real one."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.benchmarks.acceptance.report import Report, run_step
from tests.benchmarks.acceptance.training import last_words, run_trainer, settings_of
from tests.lockstep import held_out_hits

if TYPE_CHECKING:
    from surf2vec.trainer.store.tokens import Corpus

REAL_LOG = "wikispeedia_unfinished"
LOSS_MARK = 1.02
"""Held-out loss by the CPU's. In the simulation all users in flight cost .5 % on this log (`tests.benchmarks.lockstep`)."""
DATA = Path(os.environ.get("SURF2VEC_DATA", Path(__file__).parents[4] / "shared" / "data"))


def judge_quality(report: Report) -> None:
    for name, corpus in make_corpora(report):
        losses, hits = [], []
        for device in ("cpu", "cuda"):
            store = report.folder / f"{name}-{device}"
            settings = settings_of(report, parts="interest", epochs=report.size(10, 1))
            done = run_trainer(corpus.folder, store, settings, device=device)
            if done.returncode:
                report.add(f"{name}, {device}", False, last_words(done))
                break
            from surf2vec.trainer.store.generation import open_generation

            losses.append(json.loads(done.stdout)["heldout_loss"])
            hits.append(held_out_hits(corpus, open_generation(store)).astype(float))
        else:
            compare(report, name, losses, hits)


def compare(report: Report, name: str, losses: list[float], hits: list[np.ndarray]) -> None:
    """Two lines; hits of the CPU and of the card are of the same users."""
    passed = report.rehearses or losses[1] <= LOSS_MARK * losses[0]
    report.add(f"{name}, held-out loss", passed, f"mark: <= {LOSS_MARK} x the CPU's", cpu=losses[0], card=losses[1])
    difference = hits[1] - hits[0]
    error = float(difference.std() / len(difference) ** 0.5)
    passed = report.rehearses or difference.mean() >= -2 * error
    report.add(
        f"{name}, hit@20", passed, "mark: not below the CPU's by two standard errors", cpu=hits[0].mean(),
        card=hits[1].mean(), standard_error=error, users=len(difference),
    )  # fmt: skip


def make_corpora(report: Report) -> Iterator[tuple[str, "Corpus"]]:
    yield "planted", write_planted(report, "planted")
    log = DATA / f"{REAL_LOG}.parquet"
    if log.exists():
        yield REAL_LOG, write_log(report, log)
    else:
        report.skip(REAL_LOG, f"there is no {log}: set SURF2VEC_DATA")


def write_planted(report: Report, name: str) -> "Corpus":
    """A corpus of users who each visit the items of one topic."""
    from tests.corpora import planted_histories, write_corpus

    histories = planted_histories(num_users=report.size(20_000, 12), num_items=report.size(600, 12))
    return write_corpus(report.folder / name, histories, partitions=4)


def write_log(report: Report, log: Path) -> "Corpus":
    """A corpus of a real log in its own order of time, of pages that five users visited; without the cleaning of an ingest."""
    import pyarrow.parquet as pq

    from tests.corpora import write_corpus

    events = pq.read_table(log).sort_by([("user_id", "ascending"), ("ts", "ascending")])
    users, urls = (np.array(events[column].to_pylist()) for column in ("user_id", "url"))
    _, items, counts = np.unique(urls, return_inverse=True, return_counts=True)
    is_kept = counts[items] >= 5
    numbers = np.cumsum(counts >= 5) - 1
    users, items = users[is_kept], numbers[items[is_kept]]
    starts = np.flatnonzero(np.append(True, users[1:] != users[:-1]))[: report.size(10**9, 20)]
    ends = np.append(starts[1:], starts[-1] + np.argmax(np.append(users[starts[-1] :] != users[starts[-1]], True)))
    histories = {
        str(users[start]): items[start:end].tolist() for start, end in zip(starts, ends, strict=True) if end - start > 1
    }
    return write_corpus(report.folder / "real", histories, partitions=8, num_items=int(numbers[-1]) + 1)


if __name__ == "__main__":
    sys.exit(run_step(judge_quality))
