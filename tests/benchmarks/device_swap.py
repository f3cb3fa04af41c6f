"""Out of core on a card: `python -m surf2vec.trainer --device cuda` within a device budget, its stall, the driver's memory.

4 million made-up users as in `swap`, the shipped settings (128 dimensions, 20 private negatives), two epochs, of which the
second has all users to read. The stall is the time in which the card had nothing to train. Part of `gpu`, where there is one.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.swap import NUM_USERS, STALL_MARK, write_corpus

DEVICE_BYTES, HOST_BYTES = 10**9, 4 * 10**9  # two micro-partitions and the items, but for the context's 0.7 GB


def measure_device_swap() -> dict[str, Any]:
    """One case: the stall of the whole training to the mark, and the peak to the budget."""
    with tempfile.TemporaryDirectory(prefix="device-swap.") as folder:
        corpus_dir = write_corpus(Path(folder) / "corpus", NUM_USERS)
        told = train_on_card(corpus_dir, Path(folder) / "store", {"epochs": 2}, DEVICE_BYTES)
    return {
        "case": "out of core on the card", "ratio": told["stall"] / STALL_MARK,
        "mark": f"stall <= {STALL_MARK}, the driver's figure <= {DEVICE_BYTES / 1e9:g} GB",
        "passed": told["stall"] <= STALL_MARK and told["device_peak_bytes"] <= DEVICE_BYTES,
        "stall": told["stall"], "peak_bytes": told["device_peak_bytes"], "budget_bytes": DEVICE_BYTES,
        "planned_bytes": told["plan"]["device_bytes"], "tokens_per_second": told["tokens_per_second"],
        "read_bytes": told["bytes_read"],
    }  # fmt: skip


def train_on_card(corpus_dir: Path, store_dir: Path, settings: dict[str, Any], device_bytes: int) -> dict[str, Any]:
    """What the trainer tells, and `device_peak_bytes`: the most that the driver said was taken, less what was so before."""
    config = corpus_dir.with_name("config.json")
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "surf2vec.trainer", "--corpus", str(corpus_dir), "--store", str(store_dir)]
    command += ["--config", str(config), "--device", "cuda", "--device-memory", str(device_bytes)]
    with watch_device() as taken:
        done = subprocess.run([*command, "--host-memory", str(HOST_BYTES)], capture_output=True, check=True)
    return json.loads(done.stdout) | {"device_peak_bytes": max(taken) - taken[0]}


@contextmanager
def watch_device() -> Iterator[list[int]]:
    """Bytes taken on the card, as the driver says: first before, then a few times a second; nobody else may use the card."""
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
