"""Out of core at size: 3 M users in memory, and swapped to the disk, and budgets by the driver's own peak."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.benchmarks.acceptance.report import Report, run_step
from tests.benchmarks.acceptance.training import PLENTY_BYTES, last_words, run_trainer, settings_of, shared_corpus

STALL_MARK = 0.03
ROOM_SHARE, ROOM_BYTES = 0.6, 400 * 10**6
"""A budget that swaps: what the process takes, a share of the users' table, and some more for items and buffers."""
GIGABYTE, TOO_SMALL_BYTES = 10**9, 50 * 10**6


def train_at_size(report: Report) -> None:
    """float32 first, then budgets, then bfloat16 if there is time left."""
    train_millions(report, "float32")
    check_budgets(report)
    if not report.rehearses:
        train_millions(report, "bfloat16")


def train_millions(report: Report, dtype: str) -> None:
    """A training by place of its users, with the share of time in which the card had nothing to do."""
    corpus, store = shared_corpus(report), report.folder / "store"
    overhead_bytes = table_bytes = 0
    for place in ("in memory", "swapped")[: report.size(2, 1)]:
        shutil.rmtree(store, ignore_errors=True)
        swapped_bytes = overhead_bytes + int(ROOM_SHARE * table_bytes) + ROOM_BYTES
        host_bytes = swapped_bytes if place == "swapped" else PLENTY_BYTES
        settings = settings_of(report, epochs=report.size(2, 1), dtype=dtype)
        done = run_trainer(corpus, store, settings, host_bytes=host_bytes)
        if done.returncode:
            report.add(f"{dtype}, {place}", False, last_words(done), host_bytes=host_bytes)
            continue
        result = json.loads(done.stdout)
        plan = result["plan"]
        overhead_bytes, table_bytes = plan["overhead_bytes"], plan["slot_bytes"]
        is_right = report.rehearses or (plan["num_chunks"] > 1) == (place == "swapped")
        is_quick = report.rehearses or result["stall"] <= STALL_MARK
        why = f"mark: stall <= {STALL_MARK}" if is_right else "the plan did not divide the users as meant"
        report.add(
            f"{dtype}, {place}", is_right and is_quick, why, tokens_per_second=result["tokens_per_second"],
            stall=result["stall"], commit_stall=result["commit_stall"], seconds=result["train_seconds"],
            chunks=plan["num_chunks"], predicted_seconds=plan["seconds"], host_peak_bytes=result["peak_bytes"],
            host_bytes=host_bytes,
        )  # fmt: skip
    shutil.rmtree(store, ignore_errors=True)


def check_budgets(report: Report) -> None:
    """Budgets of 1 and 12 GB hold; one that is too small is refused with what to do."""
    corpus, store = shared_corpus(report), report.folder / "store"
    for device_bytes in (GIGABYTE, 12 * GIGABYTE)[: report.size(2, 0)]:
        shutil.rmtree(store, ignore_errors=True)
        with watch_device() as taken:
            done = run_trainer(corpus, store, settings_of(report, epochs=1), device_bytes=device_bytes)
        name, peak_bytes = f"a budget of {device_bytes // GIGABYTE} GB", max(taken) - taken[0]
        if done.returncode:
            report.add(name, False, last_words(done))
            continue
        plan = json.loads(done.stdout)["plan"]
        report.add(
            name, peak_bytes <= device_bytes, "by the driver's own peak", peak_bytes=peak_bytes,
            planned_bytes=plan["device_bytes"], blocks=plan["num_blocks"],
        )  # fmt: skip
    shutil.rmtree(store, ignore_errors=True)
    done = run_trainer(corpus, store, settings_of(report, epochs=1), device_bytes=TOO_SMALL_BYTES)
    is_refused = done.returncode == 1 and "raise --device-memory" in done.stderr and "Traceback" not in done.stderr
    report.add(f"a budget of {TOO_SMALL_BYTES // 10**6} MB is refused", is_refused, done.stderr.strip()[-300:])


@contextmanager
def watch_device() -> Iterator[list[int]]:
    """Bytes taken on the card by the driver: first before, then ten times a second; nobody else may use the card."""
    taken, is_over = [taken_bytes()], threading.Event()

    def look() -> None:
        while not is_over.wait(0.1):
            taken.append(taken_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield taken
    finally:
        is_over.set()
        thread.join()


def taken_bytes() -> int:
    """Memory of the first card that is taken by anybody; 0 where there is no card."""
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if shutil.which(command[0]) is None:
        return 0
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout) * 2**20


if __name__ == "__main__":
    sys.exit(run_step(train_at_size))
