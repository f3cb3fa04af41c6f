"""Whole trainings as shipped, both parts, on the CPU and on the card: held-out losses beside each other."""

import json
import sys
import time
from typing import Any

from tests.benchmarks.acceptance.corpora import REAL_LOG, write_planted, write_real
from tests.benchmarks.acceptance.report import Report, run_step
from tests.benchmarks.acceptance.training import last_words, run_trainer, settings_of

LOSS_MARK = 1.02
"""Held-out losses by the CPU's."""
CARD_BYTES = 8 * 10**9
SIDES: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "CPU": ("cpu", None, {}),
    "card": ("cuda", CARD_BYTES, {}),
    "card without a budget": ("cuda", None, {}),
    "card, bfloat16": ("cuda", CARD_BYTES, {"dtype": "bfloat16"}),
}
"""The device, its budget, and settings. Without a budget the plan leaves the trail to the CPU."""


def train_whole(report: Report) -> None:
    if REAL_LOG.exists():
        corpus = write_real(report)
    else:
        report.skip("the real log", f"there is no {REAL_LOG}: set SURF2VEC_DATA")
        corpus = write_planted(report, "planted-whole")
    tiny = {"trail_negative": 3, "vector_size": 8} if report.rehearses else {}
    of_cpu: dict[str, Any] | None = None
    for number, (side, (device, device_bytes, more)) in enumerate(list(SIDES.items())[: report.size(len(SIDES), 2)]):
        settings, started = settings_of(report, **{"epochs": report.size(10, 1), **tiny, **more}), time.perf_counter()
        store = report.folder / f"whole-{number}"
        done = run_trainer(corpus.folder, store, settings, device=device, device_bytes=device_bytes)
        if done.returncode:
            report.add(side, False, last_words(done))
            continue
        result = json.loads(done.stdout)
        of_cpu = result if device == "cpu" else of_cpu
        add_side(report, side, result, of_cpu, time.perf_counter() - started)


def add_side(report: Report, side: str, result: dict[str, Any], of_cpu: dict[str, Any] | None, seconds: float) -> None:
    """A line of one training; of_cpu: what the CPU's training reported, if it ended."""
    trail_loss, plan = result["curve"][-1].get("trail_heldout_loss"), result["plan"]
    ratio = trail_ratio = None
    if of_cpu:
        ratio = ratio_of(result["heldout_loss"], of_cpu["heldout_loss"])
        trail_ratio = ratio_of(trail_loss, of_cpu["curve"][-1].get("trail_heldout_loss"))
    passed = report.rehearses or all(share is not None and share <= LOSS_MARK for share in (ratio, trail_ratio))
    report.add(
        side, passed, f"mark: both held-out losses <= {LOSS_MARK} x the CPU's", heldout_loss=result["heldout_loss"],
        of_cpu=ratio, trail_heldout=trail_loss, trail_of_cpu=trail_ratio, tokens_per_second=result["tokens_per_second"],
        stall=result["stall"], wall_seconds=seconds, compile_seconds=result["compile_seconds"],
        trail_on_device=plan["trail_on_device"], device_bytes=plan["device_bytes"],
    )  # fmt: skip


def ratio_of(loss: float | None, of_cpu: float | None) -> float | None:
    """The ratio of two losses; None where one is not known."""
    return loss / of_cpu if loss is not None and of_cpu else None


if __name__ == "__main__":
    sys.exit(run_step(train_whole))
