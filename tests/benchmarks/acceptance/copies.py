"""Bytes a second between host and card, pinned and not, one way and both; on the card; and what the context takes."""

import sys
import time
from collections.abc import Callable

import torch

from surf2vec.trainer.system.memory import DEVICE_CONTEXT_BYTES, context_bytes, free_device_bytes
from tests.benchmarks.acceptance.report import Report, run_step

LEAST_PINNED = 5e9
"""Bytes a second, each way: what 300 M pairs/s with 25 tokens a user and 128 dimensions need, 6.2 GB/s, is not far above."""
REPEATS = 5


def measure_copies(report: Report) -> None:
    from surf2vec.trainer.kernels import gpu

    free_bytes = free_device_bytes()
    device = gpu.find_device()
    has_card = device.type == "cuda"
    num = report.size(2**28, 2**16)
    pageable = torch.ones(num // 4)
    pinned, back = (torch.ones(num // 4, pin_memory=has_card) for _ in range(2))
    here, there = torch.zeros(num // 4, device=device), torch.empty(num // 4, device=device)
    ahead, home = ((torch.cuda.Stream() if has_card else None) for _ in range(2))

    def both_ways() -> None:
        with torch.cuda.stream(ahead):
            there.copy_(pinned, non_blocking=True)
        with torch.cuda.stream(home):
            back.copy_(here, non_blocking=True)

    ways: dict[str, tuple[Callable[[], object], int, bool]] = {
        "pinned to the card": (lambda: there.copy_(pinned, non_blocking=True), num, True),
        "pinned from the card": (lambda: back.copy_(here, non_blocking=True), num, True),
        "pinned both ways at once": (both_ways, 2 * num, True),
        "pageable to the card": (lambda: there.copy_(pageable), num, False),
        "on the card, read and written": (lambda: there.copy_(here), 2 * num, False),
    }
    for name, (copy, num_bytes, is_judged) in ways.items():
        rate = num_bytes / best_seconds(copy)
        passed = rate >= LEAST_PINNED or not is_judged or not has_card
        report.add(name, passed, "" if passed else f"below {LEAST_PINNED:.1e} a second", bytes_per_second=rate)
    if free_bytes is None:
        report.skip("context", "nvidia-smi does not say how much memory is free")
        return
    taken = context_bytes(free_bytes)
    why = f"the plan assumes {DEVICE_CONTEXT_BYTES:,}"
    report.add("context", taken <= DEVICE_CONTEXT_BYTES, why, context_bytes=taken)


def best_seconds(copy: Callable[[], object], repeats: int = REPEATS) -> float:
    """The seconds of the fastest of some copies or launches after a first one, from start to end."""
    seconds = []
    for _ in range(repeats + 1):
        synchronize()
        started = time.perf_counter()
        copy()
        synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(run_step(measure_copies))
