"""Users of a corpus fitted to a release's items, in parts of micro-partitions, which any process can do; each writes a file.

Several parts' files become one, row group after row group: the bytes that one part writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.export.reduction import project, read_projection
from trainer.config import TrainConfig
from trainer.events import OnEvent
from trainer.store.generation import Generation
from trainer.store.tokens import Corpus, Histories
from trainer.training.infer import FrozenItems, infer_parts

ROW_GROUP_ROWS = 8192


@dataclass(frozen=True)
class InferPart:
    """The users of some micro-partitions of a corpus, to be fitted to a release's items.

    rows: users at once; projection: its file, if there is one; path: the Parquet file to write; items: the item table, where
    this process has it already.
    """

    corpus: Corpus
    generation: Generation
    config: TrainConfig
    counts: Path
    projection: Path | None
    rows: int
    partitions: range
    path: Path
    items: FrozenItems | None = None

    def freeze_items(self) -> FrozenItems:
        counts = np.load(self.counts, allow_pickle=False)
        return self.items or FrozenItems(self.config, self.generation, counts)


def infer_part(part: InferPart, on_event: OnEvent) -> Path:
    """Infer micro-partition after micro-partition of a part into its file.

    A row group does not depend on how many users go at once, so neither do the bytes.
    """
    projection = read_projection(part.projection) if part.projection else None
    group_bytes = part.rows // 2 * 4 * part.generation.vector_size
    num_done, total = 0, int(part.corpus.users.sum())
    with _open_writer(part.path, part.generation.vector_size if projection is None else projection.shape[1]) as writer:
        batches = _batches(part.corpus, part.partitions, part.rows)
        for users, fitted in infer_parts(part.freeze_items(), batches, group_bytes):
            vectors = project(fitted.vectors, projection)
            lists = pa.FixedSizeListArray.from_arrays(
                pa.array(vectors.reshape(-1)), type=writer.schema.field("vector").type
            )
            writer.write_table(pa.table([users, lists], schema=writer.schema), row_group_size=ROW_GROUP_ROWS)
            num_done += len(vectors)
            on_event("progress", {"step": "infer", "done": num_done, "total": total, "unit": "users"})
    return part.path


def join_pieces(pieces: list[Path], path: Path, vector_size: int) -> None:
    """Write one file of several."""
    with _open_writer(path, vector_size) as writer:
        for piece in pieces:
            with pq.ParquetFile(piece) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group).cast(writer.schema), row_group_size=ROW_GROUP_ROWS)


def _open_writer(path: Path, vector_size: int) -> pq.ParquetWriter:
    vector = pa.list_(pa.float32(), vector_size)
    return pq.ParquetWriter(
        path, pa.schema([("user_id", pa.string()), ("vector", vector)]), use_dictionary=False,
        write_statistics=["user_id"], column_encoding={"user_id": "DELTA_BYTE_ARRAY"},
        compression={"user_id": "zstd", "vector.list.element": "none"},
    )  # fmt: skip


def _batches(corpus: Corpus, partitions: range, rows: int) -> Iterator[tuple[pa.ChunkedArray, Histories]]:
    """The users of a corpus and their histories, at most `rows` at once, never of two micro-partitions."""
    for partition in (partition for partition in partitions if corpus.users[partition]):
        user_ids = corpus.read_ids(partition)
        whole = corpus.read(partition)
        for start in range(0, whole.num_users, rows):
            stop = min(start + rows, whole.num_users)
            first, last = whole.offsets[start], whole.offsets[stop]
            yield (
                user_ids.slice(start, rows),
                Histories(
                    hashes=whole.hashes[start:stop],
                    tokens=whole.tokens[first:last],
                    offsets=whole.offsets[start : stop + 1] - first,
                    ends=whole.ends[start:stop] - first,
                    is_held_out=whole.is_held_out[start:stop],
                ),
            )
