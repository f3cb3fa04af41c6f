"""Writes and reads vectors in Parquet: as float32, as float16, or as int8 with a scale for each row.

float32   vector fixed_size_list<float32>
float16   vector fixed_size_list<float16>: 11 bits a number
int8      vector fixed_size_list<int8> and scale float32: the row's greatest number is 127 scales
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.release.release_reader import DIGEST_DIGITS, VECTOR_COLUMNS, compared_columns, decode_vectors
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.files import describe_file, replace_file

# A lookup reads one row group for each user: 10,000 random users of 20 million then read 6 % of the vectors.
USER_ROW_GROUP_ROWS = 128
ITEM_ROW_GROUP_ROWS = 8192
ITEM_BATCH_ROWS = 2 * ITEM_ROW_GROUP_ROWS
# Parquet has no byte type: int8 is stored as indices into a dictionary for each row group (1 kB), then zstd.
BYTES_PER_NUMBER = {"float32": 4.0, "float16": 2.0, "int8": 1.2}
_INT8_MAX = 127


def encode_vectors(vectors: NDArray[np.float32], dtype: str) -> dict[str, pa.Array]:
    """Return float32 (N, D) as Arrow columns by name. Raises ConfigError for a number that float16 cannot hold."""
    if dtype == "int8":
        scales = np.abs(vectors).max(axis=1, initial=0).astype(np.float32) / np.float32(_INT8_MAX)
        steps = np.rint(vectors / np.where(scales == 0, np.float32(1), scales)[:, None])
        # If the scale was rounded down, the greatest number can be 128 steps.
        return {"vector": _as_lists(np.clip(steps, -_INT8_MAX, _INT8_MAX).astype(np.int8)), "scale": pa.array(scales)}
    if dtype == "float16":
        greatest = float(np.abs(vectors).max(initial=0))
        if greatest > float(np.finfo(np.float16).max):
            raise ConfigError(
                f"a vector has a number of {greatest:,.0f}, but export.dtype=float16 holds 65,504 at most: set it to "
                "int8 or float32"
            )
        return {"vector": _as_lists(vectors.astype(np.float16))}
    return {"vector": _as_lists(np.ascontiguousarray(vectors, dtype=np.float32))}


def encode_rows(names: pa.Table, vectors: NDArray[np.float32], dtype: str) -> pa.Table:
    """Add vectors float32 (N, D), encoded for storage, to a table of names."""
    for name, column in encode_vectors(vectors, dtype).items():
        names = names.append_column(name, column)
    return names


def write_rows(path: Path, tables: Iterable[pa.Table], group_rows: int, token: Mapping[str, str] | None = None) -> None:
    """Write rows as Parquet with `group_rows` rows per group, durably. The same rows give the same bytes.

    token: the pairing token, for the metadata of the file.
    One table is in memory at a time; each but the last must have complete groups.
    """
    writer = None
    with replace_file(path) as temporary, ExitStack() as stack:
        for table in tables:
            key, kind = table.column_names[0], table.schema.field("vector").type
            # The types differ after reading from Parquet (name of list elements) and from Polars (string type).
            columns = {name: table[name] for name in table.column_names}
            columns["vector"] = columns["vector"].cast(pa.list_(kind.value_type, kind.list_size))
            columns[key] = columns[key].cast(pa.string())
            table = pa.table(columns).replace_schema_metadata(token)
            writer = writer or stack.enter_context(open_writer(temporary, table.schema))
            writer.write_table(table, row_group_size=group_rows)


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of a file of vectors. Lookups use the first column's statistics.

    Compression makes int8 a sixth smaller. Floats have none: their bits are noise, and a plain column is read faster.
    """
    key, is_bytes = schema.names[0], schema.field("vector").type.value_type == pa.int8()
    compression = dict.fromkeys((name for name in schema.names if name not in VECTOR_COLUMNS), "zstd")
    compression |= {"vector.list.element": "zstd", "scale": "none"} if is_bytes else {"vector.list.element": "none"}
    dictionary, encoding = ["vector.list.element"] if is_bytes else False, {key: "DELTA_BYTE_ARRAY"}
    return pq.ParquetWriter(
        path,
        schema,
        compression=compression,
        use_dictionary=dictionary,
        write_statistics=[key],
        column_encoding=encoding,
    )


def read_vectors(
    paths: list[Path], every: int, batch_rows: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Read every `every`-th row group (1: all) of the files in order, in batches of complete groups.

    Yields row numbers int64[n], counted over all files, ascending, and vectors float32[n, D].
    """
    first_row, first_group = 0, 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            counts = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            starts = list(accumulate(counts, initial=first_row))
            chosen = [group for group in range(len(counts)) if (first_group + group) % every == 0]
            at_once = max(1, batch_rows // counts[0])
            for at in range(0, len(chosen), at_once):
                groups = chosen[at : at + at_once]
                rows = np.concatenate([np.arange(starts[group], starts[group + 1]) for group in groups])
                yield rows, decode_vectors(file.read_row_groups(groups, columns=list(VECTOR_COLUMNS)))
            first_row, first_group = starts[-1], first_group + len(counts)


def directions_of(vectors: NDArray[np.float32], manifest: dict[str, Any]) -> NDArray[np.float32]:
    """Return item vectors for comparing items, float32[n, D] or fewer columns: without biases, and without activity's zeros.

    A bias is an item's popularity: it would make two rare pages similar even if their topics differ.
    """
    return np.delete(vectors[:, compared_columns(manifest)], manifest["bias_columns"], axis=1)


def interests_of(vectors: NDArray[np.float32], manifest: dict[str, Any]) -> NDArray[np.float32]:
    """Return the interests in user vectors of an export, float32[n, D1]; what is compared if no column is theirs alone."""
    columns = compared_columns(manifest)
    return vectors[:, slice(*manifest["parts"].get("interest", (columns.start, columns.stop)))]


def describe_users(path: Path) -> dict[str, Any]:
    """Return the manifest entry of a file of users: bytes, sha256, and `piece_sha256`, a string of the first DIGEST_DIGITS digits
    of the digests of each row group and of the footer. With it a lookup can check the few bytes that it reads.
    """
    metadata = pq.read_metadata(path)
    footer_bytes = metadata.serialized_size + 8
    starts = [metadata.row_group(group).column(0).data_page_offset for group in range(metadata.num_row_groups)]
    starts.append(path.stat().st_size - footer_bytes)
    with open(path, "rb") as file:
        file.seek(starts[0])
        lengths = [stop - start for start, stop in pairwise(starts)] + [footer_bytes]
        digests = [hashlib.sha256(file.read(length)).hexdigest()[:DIGEST_DIGITS] for length in lengths]
    return describe_file(path) | {"piece_sha256": "".join(digests)}


def _as_lists(numbers: NDArray[np.generic]) -> pa.FixedSizeListArray:
    """Return (N, D) as an Arrow column, without a copy."""
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1])
