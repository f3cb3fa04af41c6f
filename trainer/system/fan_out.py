"""How work is divided: into parts that know nothing of each other, each done by a function of a module on plain data.

By default this process does all of it as one part; `flows/ray_cluster.py` has another FanOut. A part names files and ranges;
its work writes files under names of their own and returns names, sizes and counts. Only the caller commits, so a part that
dies is done again and nothing half-written counts.
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

from trainer.events import OnEvent

Part = TypeVar("Part")
Result = TypeVar("Result")


class FanOut:
    """Does the parts of a step: one after another in this process, unless a subclass has more hands."""

    @property
    def num_parts(self) -> int:
        """The most parts to divide a step into; 1: this process does it all."""
        return 1

    def choose_threads(self, threads: int) -> int:
        """Threads that a part may use where the settings ask for so many; 0 is all of a machine's."""
        return threads or os.cpu_count() or 1

    def run(
        self, work: Callable[[Part, OnEvent], Result], parts: Sequence[Part], on_event: OnEvent
    ) -> Iterator[Result]:
        """What `work`, a function of a module, returns for each part, in their order. Its errors are raised here."""
        return (work(part, on_event) for part in parts)


HERE = FanOut()


def cut(weights: Sequence[int], num_parts: int) -> list[range]:
    """Consecutive ranges of things with these weights, at most `num_parts` and about as heavy as each other, none empty."""
    ends = np.cumsum([0, *weights])
    goals = ends[-1] * np.arange(1, num_parts) / num_parts
    edges = np.unique([0, *np.searchsorted(ends, goals), len(weights)])
    return [range(start, stop) for start, stop in pairwise(edges.tolist())]


@contextmanager
def deliver_files(scratch: Path, target: Path) -> Iterator[Path]:
    """Yield a new folder in `scratch`, on the same disk, whose files move into `target` when the block ends well.

    So an attempt that was given up, on a machine out of reach, never writes into the files of the next. The caller syncs them.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="part."))
    try:
        yield folder
        for path in folder.rglob("*"):
            if path.is_file():
                os.replace(path, target / path.relative_to(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
