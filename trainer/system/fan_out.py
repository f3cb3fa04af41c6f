"""Divides work into independent parts. A module-level function does each part, on plain data.

By default this process does all of it as one part; `tasks/night/ray_cluster.py` has another FanOut. A part's function writes
files under unique names and returns names, sizes and counts. Only the caller commits, so a part that fails can be repeated.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from surf2vec.trainer.events import OnEvent

Part = TypeVar("Part")
Result = TypeVar("Result")


class FanOut:
    """Runs the parts of a step, one after another in this process. Subclasses may run them elsewhere."""

    @property
    def num_parts(self) -> int:
        """The most parts to divide a step into; 1: this process does everything."""
        return 1

    def choose_threads(self, threads: int) -> int:
        """Return the threads of a part, given the setting; 0 means all of the machine."""
        return threads or os.cpu_count() or 1

    def run(
        self, work: Callable[[Part, OnEvent], Result], parts: Sequence[Part], on_event: OnEvent
    ) -> Iterator[Result]:
        """Return the results of `work`, a module-level function, for each part, in order. Raises its errors."""
        return (work(part, on_event) for part in parts)


HERE = FanOut()


def cut(weights: Sequence[int], num_parts: int) -> list[range]:
    """Cut items with these weights into at most `num_parts` consecutive ranges of about equal weight, none empty."""
    ends = np.cumsum([0, *weights])
    goals = ends[-1] * np.arange(1, num_parts) / num_parts
    edges = np.unique([0, *np.searchsorted(ends, goals), len(weights)])
    return [range(start, stop) for start, stop in pairwise(edges.tolist())]


@contextmanager
def deliver_files(scratch: Path, target: Path) -> Iterator[Path]:
    """Yield a new folder in `scratch`, on the same disk, whose files move into `target` when the block ends well.

    So an abandoned attempt on an unreachable machine never writes into the files of the next attempt. The caller syncs the files.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="part."))
    try:
        yield folder
        for path in folder.rglob("*"):
            if path.is_file():
                os.replace(path, target / path.relative_to(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
