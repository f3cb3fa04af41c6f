"""Puts small logs that are read alike into batches. A batch is staged at once, as each step and file has a cost of its own."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from surf2vec.tasks.ingest.formats import LogFile
from surf2vec.tasks.ingest.sources import SourceFile
from surf2vec.trainer.system.files import digest_json

SMALL_LOG_BYTES, BATCH_BYTES, BATCH_LOGS = 1_000_000, 16_000_000, 4_000
_PLACE_BITS = 41  # a small file has fewer lines than 2**41, though it may be compressed
Log = tuple[LogFile, SourceFile]


@dataclass(frozen=True)
class Batch:
    """Logs that are staged together, in the order of their source ids; a large log is alone.

    A line of the log at place i has the number i << place_bits | its number in the log.
    """

    logs: tuple[Log, ...]

    @property
    def log(self) -> LogFile:
        """How the logs are read, with the path of the first."""
        return self.logs[0][0]

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        return tuple(source for _, source in self.logs)

    @property
    def batch_id(self) -> str:
        """The name of the files with its events: 16 hex digits, the source id of a single log."""
        ids = [source.source_id for source in self.sources]
        return ids[0] if len(ids) == 1 else digest_json(ids)[:16]

    @property
    def place_bits(self) -> int:
        return _PLACE_BITS if len(self.logs) > 1 else 62

    @property
    def bytes(self) -> int:
        return sum(source.bytes for source in self.sources)


def make_batches(logs: Iterable[Log]) -> tuple[Batch, ...]:
    """Return the logs in batches: small ones that are read alike together; others alone, and logs whose rows have own numbers."""
    batches: list[list[Log]] = []
    growing: dict[str, tuple[list[Log], int]] = {}  # how logs are read → their last batch, and its bytes
    for log, source in logs:
        is_alone = source.bytes > SMALL_LOG_BYTES or log.has_lists or (log.is_nested and log.format == "parquet")
        how = source.name if is_alone else repr(replace(log, path=Path()))  # all but the path
        batch, num_bytes = growing.get(how, ([], BATCH_BYTES))
        if num_bytes + source.bytes > BATCH_BYTES or len(batch) == BATCH_LOGS:
            batch, num_bytes = [], 0
            batches.append(batch)
        batch.append((log, source))
        growing[how] = batch, num_bytes + source.bytes
    return tuple(Batch(tuple(sorted(batch, key=lambda log: log[1].source_id))) for batch in batches)
