"""Millions of users by the trainer: in memory, swapped to the disk and on the card for good, with the card's idle time."""

import json
import shutil
import sys

from tests.benchmarks.acceptance.report import Report, run_step
from tests.benchmarks.acceptance.training import PLENTY_BYTES, last_words, run_trainer, settings_of, shared_corpus

STALL_MARK = 0.03
CARD_BYTES = 6 * 10**9
"""All users stay within it."""
ROOM_SHARE, ROOM_BYTES = 0.6, 400 * 10**6
"""A budget that swaps: what the process takes, a share of the users' table, and some more for items and buffers."""


def train_millions(report: Report) -> None:
    corpus, overhead_bytes = shared_corpus(report), 0
    for dtype in ("float32", "bfloat16"):
        table_bytes = 0
        for place in ("in memory", "swapped", "on the card"):
            store, name = report.folder / "store", f"{dtype}, {place}"
            shutil.rmtree(store, ignore_errors=True)
            swapped_bytes = overhead_bytes + int(ROOM_SHARE * table_bytes) + ROOM_BYTES
            host_bytes = swapped_bytes if place == "swapped" and not report.rehearses else PLENTY_BYTES
            device_bytes = CARD_BYTES if place == "on the card" else None
            settings = settings_of(report, dtype=dtype)
            done = run_trainer(corpus, store, settings, host_bytes=host_bytes, device_bytes=device_bytes)
            if done.returncode:
                report.add(name, False, last_words(done), host_bytes=host_bytes)
                continue
            told = json.loads(done.stdout)
            overhead_bytes, table_bytes = told["plan"]["overhead_bytes"], told["plan"]["slot_bytes"]
            is_divided, stays = told["plan"]["num_chunks"] > 1, told["plan"]["stays_on_device"]
            is_right = stays == (place == "on the card") and (report.rehearses or is_divided == (place == "swapped"))
            is_quick = report.rehearses or told["stall"] <= STALL_MARK
            why = f"mark: stall <= {STALL_MARK}" if is_right else "the plan did not divide the users as meant"
            report.add(
                name, is_right and is_quick, why, tokens_per_second=told["tokens_per_second"], stall=told["stall"],
                commit_stall=told["commit_stall"], seconds=told["train_seconds"], chunks=told["plan"]["num_chunks"],
                predicted_seconds=told["plan"]["seconds"], host_peak_bytes=told["peak_bytes"], host_bytes=host_bytes,
            )  # fmt: skip
    shutil.rmtree(report.folder / "store", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_step(train_millions))
