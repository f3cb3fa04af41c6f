"""The places in memory that hold chunks of user vectors: admit, evict, prefetch, write behind.

While one chunk trains, a thread reads the next and writes the last. An evicted chunk is in the store's files at once,
but counts only from the next commit on, together with an item table of the same moment.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.corpus import Corpus, Histories
from trainer.draws import initial_vectors
from trainer.store import Writer


@dataclass
class Resident:
    """A micro-partition in memory: its vectors float32[n, D], its histories, and whether the disk is behind."""

    vectors: NDArray[np.float32]
    histories: Histories
    is_dirty: bool = False


class Slots:
    """The micro-partitions in memory. Their vectors come from the writer's files, or begin at random where there is none."""

    def __init__(self, corpus: Corpus, writer: Writer, vector_size: int, seed: int) -> None:
        self.corpus = corpus
        self.writer = writer
        self.vector_size = vector_size
        self.seed = seed
        self.residents: dict[int, Resident] = {}
        self.stall_seconds = 0.0
        self._reads: dict[int, Future[Resident]] = {}
        self._writes: dict[int, Future[None]] = {}
        self._reader = ThreadPoolExecutor(1, "prefetch")
        self._behind = ThreadPoolExecutor(1, "write-behind")

    def prefetch(self, partitions: list[int]) -> None:
        """Begin to read these micro-partitions in the background."""
        for partition in partitions:
            if partition not in self.residents and partition not in self._reads:
                self._reads[partition] = self._reader.submit(self._read, partition)

    def admit(self, partition: int) -> Resident:
        """The micro-partition in memory; waits for it when it is still being read."""
        if partition not in self.residents:
            self.prefetch([partition])
            started = time.perf_counter()
            self.residents[partition] = self._reads.pop(partition).result()
            self.stall_seconds += time.perf_counter() - started
        return self.residents[partition]

    def evict(self, partitions: list[int]) -> None:
        """Take these micro-partitions out of memory; those that changed are written in the background."""
        started = time.perf_counter()
        self._wait_for_writes()  # no more than one chunk is being written: the third slot
        self.stall_seconds += time.perf_counter() - started
        for partition in partitions:
            resident = self.residents.pop(partition, None)
            if resident is not None and resident.is_dirty:
                self._writes[partition] = self._behind.submit(self.writer.write_users, partition, resident.vectors)

    def write_all(self) -> None:
        """Write every changed micro-partition that is in memory and wait until all are on disk: what a commit needs."""
        self._wait_for_writes()
        for partition, resident in self.residents.items():
            if resident.is_dirty:
                self.writer.write_users(partition, resident.vectors)
                resident.is_dirty = False

    def close(self) -> None:
        """End the threads. What was not committed is not kept."""
        self._reader.shutdown(cancel_futures=True)
        self._behind.shutdown(cancel_futures=True)

    def _wait_for_writes(self) -> None:
        for write in self._writes.values():
            write.result()
        self._writes.clear()

    def _read(self, partition: int) -> Resident:
        histories = self.corpus.read(partition)
        if write := self._writes.get(partition):  # evicted a moment ago, and wanted again by the next epoch
            write.result()
        if self.writer.has_users(partition):
            return Resident(self.writer.read_users(partition), histories)
        return Resident(initial_vectors(self.seed, histories.hashes, self.vector_size), histories)
