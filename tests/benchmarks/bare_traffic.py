"""The least that swapping costs a machine: files read and written past the page cache at a steady rate, and nothing else done.

`python -m tests.benchmarks.bare_traffic FOLDER BYTES PER_SECOND`: so many files of BYTES a second are read, and as many
written over in place, as training writes them between commits, until it is killed. No checksum, no copy: what training
beside it loses, the machine takes for the transfer.
"""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surf2vec.trainer.system.memory import PAGE_BYTES

NUM_FILES = 64


@contextmanager
def bare_traffic(folder: Path, num_bytes: int, per_second: float) -> Iterator[None]:
    """Traffic in a process of its own while the block runs."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.benchmarks.bare_traffic", str(folder), str(num_bytes), str(per_second)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the files are there
        try:
            yield
        finally:
            process.kill()


def move(folder: Path, num_bytes: int, per_second: float) -> None:
    """Read a file and write another, so many times a second, for ever."""
    pages = memoryview(mmap.mmap(-1, -(-num_bytes // PAGE_BYTES) * PAGE_BYTES))
    for number in range(NUM_FILES):
        write(folder / str(number), pages)
    print("ready", flush=True)
    started = time.monotonic()
    number = 0
    while True:
        read(folder / str(number % NUM_FILES), pages)
        write(folder / str((number + NUM_FILES // 2) % NUM_FILES), pages)
        number += 1
        time.sleep(max(0.0, started + number / per_second - time.monotonic()))


def read(path: Path, pages: memoryview) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    os.preadv(descriptor, [pages], 0)
    os.close(descriptor)


def write(path: Path, pages: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    os.pwrite(descriptor, pages, 0)
    os.close(descriptor)


if __name__ == "__main__":
    move(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
