"""The host's work for a GPU, a user: a training with the real engine on a device that takes no time, so only the host is left.

Streams do nothing, so neither copies nor launches happen; what remains is reading, drawing the order, learning rates, the sample
of the curve, and what is put into the tray. Users are in memory as float32, or as bfloat16, or swap to the disk.
The seconds of an epoch are those of the fastest after the first, beside the processors' seconds of all threads together.
The mark is for float32 in memory: 40 ns a user, which is what a card of 300 M pairs/s leaves at 25 tokens a user, halved.
"""

import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.device import Stream
from surf2vec.trainer.training import loop
from surf2vec.trainer.training.job import Job
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.swap import write_corpus
from tests.trainer.training.late_device import kernel_of

NUM_USERS, EPOCHS, MARK_NANOSECONDS = 2_000_000, 12, 40.0
PLENTY_BYTES, LITTLE_BYTES = 8 * 10**9, 700 * 10**6
CARD_BYTES = 2 * 10**9
CASES = {
    "float32 in memory, 50,000 a micro-partition": (40, PLENTY_BYTES, "float32"),
    "float32 in memory, 200,000 a micro-partition": (10, PLENTY_BYTES, "float32"),
    "bfloat16 in memory, 50,000 a micro-partition": (40, PLENTY_BYTES, "bfloat16"),
    "float32 swapping to the disk, 50,000 a micro-partition": (40, LITTLE_BYTES, "float32"),
}


def do_nothing(*_: Any) -> None:
    """What a stream does here. A Mock would keep the arguments, which is all the memory there is."""


def measure_host_loop(_: Path) -> list[dict[str, Any]]:
    """A case a layout."""
    return [measure_case(name, *layout) for name, layout in CASES.items()]


def measure_case(name: str, partitions: int, host_bytes: int, dtype: str) -> dict[str, Any]:
    """Nanoseconds a user of the fastest epoch after the first."""
    kernel = kernel_of(lambda *_: None)
    at: dict[int, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "corpus", NUM_USERS, partitions=partitions)
        config = TrainConfig(parts="interest", vector_size=128, epochs=EPOCHS, dtype=dtype, commit_seconds=86_400)  # type: ignore[arg-type]
        job = Job(corpus, Path(folder) / "store", config, host_bytes, "gpu", CARD_BYTES)

        def note(event: str, values: dict[str, Any]) -> None:
            if event == "progress":
                at[values["done"]] = time.perf_counter(), time.process_time()

        with (
            mock.patch.object(loop, "pick_kernel", return_value=kernel),
            mock.patch.object(Stream, "run", do_nothing),
        ):
            loop.train(job, note)
    ends = [at[partitions * (epoch + 1)] for epoch in range(EPOCHS)]
    nanoseconds, processor = (
        min(later - earlier for earlier, later in pairwise(clock)) / NUM_USERS * 1e9
        for clock in zip(*ends, strict=True)
    )
    is_marked = name == next(iter(CASES))
    return (
        make_case(
            name,
            nanoseconds / MARK_NANOSECONDS,
            f"{MARK_NANOSECONDS:g} ns" if is_marked else "shown",
            nanoseconds <= MARK_NANOSECONDS or not is_marked,
        )
        | {"ns a user": round(nanoseconds, 1), "ns of processors": round(processor, 1)}
        | {"M pairs/s at 25 tokens": round(25e3 / nanoseconds)}
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_host_loop, small={"NUM_USERS": 20_000, "EPOCHS": 2}))
