"""Budgets on the card: 1 GB and 12 GB hold by the driver's own peak; one that is too small is refused with the numbers."""

import json
import shutil
import sys

from tests.benchmarks.acceptance.report import Report, run_step
from tests.benchmarks.acceptance.training import last_words, run_trainer, settings_of, shared_corpus

GIGABYTE = 10**9
TOO_SMALL_BYTES = 50 * 10**6


def check_budgets(report: Report) -> None:
    from tests.benchmarks.device_swap import watch_device

    corpus, store = shared_corpus(report), report.folder / "store"
    for device_bytes in (GIGABYTE, 12 * GIGABYTE):
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


if __name__ == "__main__":
    sys.exit(run_step(check_budgets))
