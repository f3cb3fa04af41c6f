"""The places in memory that hold chunks of user vectors: admit, evict, prefetch, write behind.

While one chunk trains, a thread reads the next and writes the last. An evicted chunk is in the store's files at once,
but counts only from the next commit on, together with an item table of the same moment.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from trainer.config import TrainConfig
from trainer.corpus import Corpus, Histories
from trainer.rows import Rows, at_rest, begin_users
from trainer.store import Writer


@dataclass
class Resident:
    """A micro-partition in memory: its rows as they are stored, its histories, and whether the disk is behind."""

    rows: Rows
    histories: Histories
    is_dirty: bool = False


class Slots:
    """The micro-partitions in memory. Their vectors come from the writer's files, or begin at random where there is none."""

    def __init__(self, corpus: Corpus, writer: Writer, config: TrainConfig) -> None:
        self.corpus = corpus
        self.writer = writer
        self.config = config
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
                self._writes[partition] = self._behind.submit(self.writer.write_users, partition, resident.rows)

    def write_all(self) -> None:
        """Write every changed micro-partition that is in memory and wait until all are on disk: what a commit needs."""
        self._wait_for_writes()
        for partition, resident in self.residents.items():
            if resident.is_dirty:
                self.writer.write_users(partition, resident.rows)
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
        rows = begin_users(self.config, histories.hashes)
        return Resident(at_rest(self.config, -1, histories.hashes, rows), histories)
