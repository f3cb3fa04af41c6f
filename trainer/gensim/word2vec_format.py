"""Reads and writes word2vec-format files, which exchange vectors with gensim without pickle.

    text      a line `rows dimensions`, then a line a row: name, blank, the numbers, blanks between them
    binary    the same first line, then the rows: name, one space, the numbers as little-endian float32

Either may be gzipped. Blanks and control characters of ASCII in names are percent-encoded (`a b` becomes `a%20b`). Names
that become equal by this are refused when read.
"""

import gzip
import mmap
import re
import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.system.files import replace_file

Names: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray

MAX_NAME_BYTES = 65_536
_BREAKING = r"[\x00-\x20]"
_HEADER = re.compile(rb"\s*(\d{1,12})[ \t]+([1-9]\d{0,5})\s*?\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)


@dataclass(frozen=True)
class NamedVectors:
    """Vectors with a name each: names large_string[n], distinct; vectors float32[n, D], finite."""

    names: pa.LargeStringArray
    vectors: NDArray[np.float32]


def name_vectors(names: Names, vectors: NDArray[Any], what: str) -> NamedVectors:
    """Return names[n] with finite numbers[n, D]. Raises ConfigError, naming `what`, when they do not fit."""
    array = _as_names(names)
    with np.errstate(over="ignore"):  # numbers beyond the range of float32 become infinite
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(array):
        raise ConfigError(f"{what}: vectors of shape {vectors.shape} for {len(array):,} names; each needs a row")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ConfigError(
            f"{what}: row {bad[0] + 1:,} has a number that is not finite; train again, with a lower alpha"
        )
    _, first = np.unique(array.dictionary_encode().indices.to_numpy(), return_index=True)
    if len(first) < len(array):
        repeat = np.setdiff1d(np.arange(len(array)), first)[0] + 1
        raise ConfigError(
            f"{what}: {len(array) - len(first):,} rows repeat a name, the first of them row {repeat:,}; names must be distinct"
        )
    return NamedVectors(array, vectors)


def align_rows(named: NamedVectors, urls: Names) -> NDArray[np.int64]:
    """Return the row of each of `urls`[m] in `named`, int64[m], matched by plain or encoded name; -1: none."""
    wanted = _as_names(urls)
    rows = pc.index_in(wanted, value_set=named.names)
    rows = pc.coalesce(rows, pc.index_in(_encode_names(wanted)[0], value_set=named.names), pa.scalar(-1, pa.int32()))
    return rows.to_numpy(zero_copy_only=False).astype(np.int64)


def _encode_names(names: pa.LargeStringArray) -> tuple[pa.LargeStringArray, int]:
    """Return the encoded names, and how many of them changed."""
    count = pc.sum(pc.match_substring_regex(names, _BREAKING)).as_py() or 0
    if not count:
        return names, 0
    encoded = [re.sub(_BREAKING, lambda match: f"%{ord(match[0]):02X}", name) for name in names.to_pylist()]
    return pa.array(encoded, pa.large_string()), count


def _as_names(names: Names) -> pa.LargeStringArray:
    array = names if isinstance(names, pa.Array | pa.ChunkedArray) else pa.array(names, pa.large_string())
    return (array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array).cast(pa.large_string())


def read_word2vec(path: Path) -> NamedVectors:
    """Read a word2vec-format file, text or binary, gzipped or not: detected from its content.

    Raises ConfigError, with the place, when the file is invalid; ResourceError when memory does not suffice.
    """
    try:
        with open(path, "rb") as file:
            if file.read(2) == b"\x1f\x8b":
                return _parse(path, gzip.decompress(path.read_bytes()))
            # an empty file cannot be mapped
            return _parse(path, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if path.stat().st_size else b"")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} is truncated or damaged inside its gzip stream ({error}): write it again") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; see that the path is right") from None
    except MemoryError:
        raise ResourceError(f"{path} does not fit in memory: use a machine with more, or fewer rows") from None


def _parse(path: Path, data: bytes | mmap.mmap) -> NamedVectors:
    match = _HEADER.match(data[:128])
    if not match:
        raise ConfigError(
            f"{path} does not begin with a line of two numbers, rows and dimensions: it is no word2vec-format file, or has no "
            "header"
        )
    num_rows, size, at = int(match[1]), int(match[2]), match.end()
    is_text = _is_text(data[at : at + MAX_NAME_BYTES + 1024].split(b"\n", 1)[0])

    def fault(what: str) -> ConfigError:
        return ConfigError(
            f"{path}, read as {'text' if is_text else 'binary'} with {num_rows:,} rows of {size:,} numbers: {what}; "
            "write it again, as with gensim's save_word2vec_format"
        )

    least = num_rows * (1 + (2 if is_text else 4) * size)
    if least > len(data):
        raise fault(
            f"that takes {least:,} bytes or more, but it is truncated at byte {len(data):,} or its header wrong"
        )
    names, vectors = [], np.empty((num_rows, size), dtype=np.float32)
    for row in range(num_rows):
        try:
            name, vectors[row], at = (_read_line if is_text else _read_row)(data, at, size)
        except EOFError:
            raise fault(f"it is truncated at byte {len(data):,}, after {row:,} rows") from None
        except ValueError as error:
            raise fault(f"{f'line {row + 2:,}' if is_text else f'row {row + 1:,}'} has {error}") from None
        names.append(name)
    if re.compile(rb"\S").search(data, at):
        raise fault("more follows the last row: its header is wrong, or names in a binary file have spaces")
    if b"" in names:
        raise fault(f"row {names.index(b'') + 1:,} has no name")
    try:
        return name_vectors(pa.array(names, pa.large_binary()).cast(pa.large_string()), vectors, str(path))
    except pa.ArrowInvalid:
        bad = next(i for i, name in enumerate(names) if name.decode(errors="replace").encode() != name)
        raise fault(f"row {bad + 1:,} has a name that is not UTF-8") from None


def _is_text(line: bytes) -> bool:
    """Return whether a first row is text: only characters, with a number after the name."""
    if line.decode(errors="replace").encode() != line or _CONTROL.search(line):
        return False
    return any(_NUMBER.fullmatch(field) for field in line.split()[1:])


def _read_line(data: bytes | mmap.mmap, at: int, size: int) -> tuple[bytes, Any, int]:
    """Return the name and numbers of a line of text, and the start of the next line. The last fields are the numbers."""
    if at >= len(data):
        raise EOFError
    end = data.find(b"\n", at)
    end = len(data) if end < 0 else end
    name, *fields = data[at:end].strip().rsplit(None, size) or [b""]
    if len(fields) < size:
        raise ValueError(f"{len(fields) + bool(name):,} fields, not a name and {size:,} numbers")
    try:
        return name, pa.array(fields, pa.string()).cast(pa.float32()), end + 1
    except pa.ArrowInvalid:
        raise ValueError(f"a field that is no number among its last {size:,}") from None


def _read_row(data: bytes | mmap.mmap, at: int, size: int) -> tuple[bytes, Any, int]:
    """Return the name and numbers of a binary row, and the start of the next row."""
    space = data.find(b" ", at, at + MAX_NAME_BYTES)
    if space < 0 and len(data) >= at + MAX_NAME_BYTES:
        raise ValueError(f"no end of its name within {MAX_NAME_BYTES:,} bytes")
    end = space + 1 + 4 * size
    if space < 0 or end > len(data):
        raise EOFError
    # word2vec.c ends a row with a newline, gensim does not
    return data[at:space].lstrip(b"\n"), np.frombuffer(data, "<f4", size, space + 1), end


def write_word2vec(
    path: Path, batches: Iterable[tuple[Names, NDArray[np.float32]]], num_rows: int, vector_size: int, binary: bool = True
) -> int:  # fmt: skip
    """Replace `path`, durably, by a word2vec-format file of all batches, gzipped if it ends in .gz.

    A batch is names[n] and vectors float32[n, D]. All batches together have `num_rows` rows of `vector_size` numbers. Returns
    how many names were percent-encoded. Raises ConfigError for other shapes, numbers that are not finite and names
    that cannot be written, ResourceError when the disk refuses. `path` is then unchanged.
    """
    row = num_encoded = 0
    try:
        with replace_file(path) as temporary, open(temporary, "wb") as file:
            # the same bytes for the same rows; floats hardly shrink
            packed: Any = gzip.GzipFile("", "wb", 1, file, mtime=0) if path.suffix == ".gz" else nullcontext(file)
            with packed as sink:
                sink.write(f"{num_rows} {vector_size}\n".encode())
                for names, vectors in batches:
                    encoded, count = _encode_names(_as_names(names))
                    named = name_vectors(encoded, vectors, f"{path} from row {row + 1:,} on")
                    sink.writelines(_lines(named, row, binary))
                    row += len(vectors)
                    num_encoded += count
            if row != num_rows:
                raise ConfigError(
                    f"{row:,} rows came for {path} where {num_rows:,} were announced: nothing was written"
                )
    except OSError as error:
        raise ResourceError(
            f"cannot write {path} at row {row:,} of {num_rows:,}: {error.strerror or error}; it needs about "
            f"{num_rows * vector_size * (4 if binary else 12):,} bytes: free that disk or permit writing, then run again"
        ) from None
    return num_encoded


def _lines(named: NamedVectors, row: int, binary: bool) -> Iterable[bytes]:
    """Yield the rows of a batch, which begins at `row`, as bytes. Raises ConfigError for names that cannot be written."""
    for name, vector in zip(named.names.cast(pa.large_binary()).to_pylist(), named.vectors, strict=True):
        row += 1
        if not 0 < len(name) < MAX_NAME_BYTES:
            raise ConfigError(
                f"the name of row {row:,} has {len(name):,} bytes: 1 to {MAX_NAME_BYTES - 1:,} can be written"
            )
        if binary:
            yield b"%b %b" % (name, vector.astype("<f4", copy=False).tobytes())
        else:  # each number in the fewest digits that read back as the same float32
            yield b"%b %b\n" % (name, " ".join(pa.array(vector).cast(pa.string()).to_pylist()).encode())
