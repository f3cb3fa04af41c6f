"""Workers in threads of one process, who talk as real ones do: for tests of what they tell each other."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from surf2vec.trainer.workers.group import Workers


class Threads:
    """What `num` workers send each other."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.lock = threading.Condition()
        self.sums: dict[int, list[torch.Tensor]] = {}
        self.bytes: dict[tuple[int, int], np.ndarray] = {}

    def run(self, work: Callable[[Workers], Any]) -> list[Any]:
        """What each worker's work answers, by rank."""
        with ThreadPoolExecutor(self.num) as pool:
            return list(pool.map(lambda rank: work(ThreadWorkers(self, rank)), range(self.num)))


class Sum:
    """A sum on its way."""

    def __init__(self, threads: Threads, number: int, numbers: torch.Tensor) -> None:
        self.threads, self.number, self.numbers = threads, number, numbers

    def is_completed(self) -> bool:
        return len(self.threads.sums[self.number]) == self.threads.num

    def wait(self) -> None:
        with self.threads.lock:
            self.threads.lock.wait_for(self.is_completed, timeout=20)
        self.numbers.copy_(torch.stack(self.threads.sums[self.number]).sum(dim=0))


class Arrival:
    """Bytes on their way, or, with nothing to fill, sent."""

    def __init__(self, threads: Threads, key: tuple[int, int], into: np.ndarray | None) -> None:
        self.threads, self.key, self.into = threads, key, into

    def wait(self) -> None:
        if self.into is not None:
            with self.threads.lock:
                self.threads.lock.wait_for(lambda: self.key in self.threads.bytes, timeout=20)
            self.into[:] = self.threads.bytes[self.key]


class ThreadWorkers(Workers):
    """A worker that is a thread."""

    def __init__(self, threads: Threads, rank: int) -> None:
        super().__init__()
        self.rank, self.num, self.threads = rank, threads.num, threads
        self.num_sums = self.num_passed = 0

    def add_up(self, numbers: torch.Tensor) -> Sum:
        self.num_sums += 1
        with self.threads.lock:
            self.threads.sums.setdefault(self.num_sums, []).append(numbers.clone())
            self.threads.lock.notify_all()
        return Sum(self.threads, self.num_sums, numbers)

    def pass_on(self, out: np.ndarray, into: np.ndarray) -> list[Any]:
        self.num_passed += 1
        with self.threads.lock:
            self.threads.bytes[((self.rank - 1) % self.num, self.num_passed)] = out.copy()
            self.threads.lock.notify_all()
        return [
            Arrival(self.threads, (self.rank, self.num_passed), None),
            Arrival(self.threads, (self.rank, self.num_passed), into),
        ]
