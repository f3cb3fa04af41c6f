"""Steps divided into parts that other processes do, as on a cluster but without one."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from surf2vec.trainer.events import OnEvent, ignore_event


@dataclass
class Divided:
    """A FanOut of real processes; it counts the parts of each function."""

    pool: ProcessPoolExecutor
    num_parts: int = 3
    done: dict[str, int] = field(default_factory=dict)

    def choose_threads(self, asked: int) -> int:
        return 1

    def run(self, work: Callable[[Any, OnEvent], Any], parts: Sequence[Any], on_event: OnEvent) -> Iterator[Any]:
        self.done[work.__name__] = len(parts)
        futures = [self.pool.submit(work, part, ignore_event) for part in parts]
        return (future.result() for future in futures)


@contextmanager
def open_processes() -> Iterator[Divided]:
    """Two processes of their own, which know nothing of this one."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield Divided(pool)
