"""Reads and writes word2vec-format files, which exchange vectors with gensim without pickle.

    text      a line `rows dimensions`, then a line a row: name, blank, the numbers, blanks between them
    binary    the same first line, then the rows: name, one space, the numbers as little-endian float32

Either may be gzipped. Blanks and control characters of ASCII in names are percent-encoded (`a b` becomes `a%20b`). Names
that become equal by this are refused when read.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.system.files import replace_file

Names: TypeAlias = Sequence[str] | pa.Array | pa.ChunkedArray

MAX_NAME_BYTES = 65_536
_BREAKING = re.compile(r"[\x00-\x20]")
_HEADER = re.compile(rb"\s*(\d{1,12})[ \t]+([1-9]\d{0,5})\s*?\n")


@dataclass(frozen=True)
class NamedVectors:
    """Vectors with a name each: n distinct names, vectors float32[n, D], finite."""

    names: list[str]
    vectors: NDArray[np.float32]


def name_vectors(names: Names, vectors: NDArray[Any], what: str) -> NamedVectors:
    """Return n names with finite numbers[n, D]. Raises ConfigError, naming `what`, when they do not fit."""
    listed = _as_list(names)
    with np.errstate(over="ignore"):  # numbers beyond the range of float32 become infinite
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(listed):
        raise ConfigError(f"{what}: vectors of shape {vectors.shape} for {len(listed):,} names; each needs a row")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ConfigError(
            f"{what}: row {bad[0] + 1:,} has a number that is not finite; train again, with a lower alpha"
        )
    if num_repeats := len(listed) - len(set(listed)):
        raise ConfigError(f"{what}: {num_repeats:,} rows repeat a name; names must be distinct")
    return NamedVectors(listed, vectors)


def align_rows(named: NamedVectors, urls: Names) -> NDArray[np.int64]:
    """Return the row of each of `urls`[m] in `named`, int64[m], matched by plain or encoded name; -1: none."""
    rows = {name: row for row, name in enumerate(named.names)}
    return np.array([rows.get(url, rows.get(_encode_name(url), -1)) for url in _as_list(urls)], dtype=np.int64)


def _encode_name(name: str) -> str:
    return _BREAKING.sub(lambda match: f"%{ord(match[0]):02X}", name)


def _as_list(names: Names) -> list[str]:
    return names.to_pylist() if isinstance(names, pa.Array | pa.ChunkedArray) else list(names)


def read_word2vec(path: Path) -> NamedVectors:
    """Read a word2vec-format file, text or binary, gzipped or not: detected from its content.

    Raises ConfigError, with the place, when the file is invalid; ResourceError when memory does not suffice.
    """
    try:
        data = path.read_bytes()
        return _parse(path, gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} is truncated or damaged inside its gzip stream ({error}): write it again") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; see that the path is right") from None
    except MemoryError:
        raise ResourceError(f"{path} does not fit in memory: use a machine with more, or fewer rows") from None


@np.errstate(over="ignore")  # numbers beyond the range of float32 become infinite
def _parse(path: Path, data: bytes) -> NamedVectors:
    header = _HEADER.match(data[:128])
    if not header:
        raise ConfigError(f"{path} does not begin with a line of two numbers, rows and dimensions")
    num_rows, size, at = int(header[1]), int(header[2]), header.end()
    try:
        _read_line(data, at, size)
        kind, read, least_bytes = "text", _read_line, 1 + 2 * size
    except ValueError:
        kind, read, least_bytes = "binary", _read_row, 1 + 4 * size
    names: list[str] = []
    try:
        if num_rows * least_bytes > len(data):
            raise ValueError("too few bytes for them: it was cut short, or its header is wrong")
        vectors = np.empty((num_rows, size), dtype=np.float32)
        for row in range(num_rows):
            name, vectors[row], at = read(data, at, size)
            names.append(name.decode())
        if data[at:].strip():
            raise ValueError("more after the last row: its header is wrong, or names in a binary file have spaces")
    except ValueError as error:
        problem = "a name that is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ConfigError(
            f"{path}, read as {kind} with {num_rows:,} rows of {size:,} numbers, has after {len(names):,} rows {problem}; "
            "write it again, as with gensim's save_word2vec_format"
        ) from None
    return name_vectors(names, vectors, str(path))


def _read_line(data: bytes, at: int, size: int) -> tuple[bytes, Any, int]:
    """Return the name and numbers of a line of text, and the start of the next line. The last fields are the numbers."""
    end = data.find(b"\n", at)
    end = len(data) if end < 0 else end
    name, *fields = data[at:end].strip().rsplit(None, size) or [b""]
    if not name or len(fields) < size:
        raise ValueError(f"a line of {len(fields) + bool(name):,} fields, not a name and {size:,} numbers")
    try:
        return name, np.array(fields).astype(np.float32), end + 1
    except ValueError:
        raise ValueError("a field that is no number") from None


def _read_row(data: bytes, at: int, size: int) -> tuple[bytes, Any, int]:
    """Return the name and numbers of a binary row, and the start of the next row."""
    space = data.find(b" ", at, at + MAX_NAME_BYTES)
    end = space + 1 + 4 * size
    if space < 0 or end > len(data):
        raise ValueError("a row that is cut short, or a name without an end")
    name = data[at:space].lstrip(b"\n")  # word2vec.c ends a row with a newline, gensim does not
    if not name:
        raise ValueError("a row without a name")
    return name, np.frombuffer(data, "<f4", size, space + 1), end


def write_word2vec(
    path: Path,
    batches: Iterable[tuple[Names, NDArray[np.float32]]],
    num_rows: int,
    vector_size: int,
    binary: bool = True,
) -> int:
    """Replace `path`, durably, by a word2vec-format file of all batches, gzipped if it ends in .gz.

    A batch is n names and vectors float32[n, D]. All batches together have `num_rows` rows of `vector_size` numbers. Returns
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
                    plain = _as_list(names)
                    named = name_vectors(list(map(_encode_name, plain)), vectors, f"{path} from row {row + 1:,} on")
                    sink.writelines(_lines(named, row, binary))
                    row += len(vectors)
                    num_encoded += sum(a != b for a, b in zip(plain, named.names, strict=True))
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


def _lines(named: NamedVectors, first: int, binary: bool) -> Iterable[bytes]:
    """Yield the rows of a batch, which begins at row `first`, as bytes. Raises ConfigError for names that cannot be written."""
    for row, (text, vector) in enumerate(zip(named.names, named.vectors, strict=True), first + 1):
        name = text.encode()
        if not 0 < len(name) < MAX_NAME_BYTES:
            raise ConfigError(
                f"the name of row {row:,} has {len(name):,} bytes: 1 to {MAX_NAME_BYTES - 1:,} can be written"
            )
        if binary:
            yield b"%b %b" % (name, vector.astype("<f4", copy=False).tobytes())
        else:  # each number in the fewest digits that read back as the same float32
            yield b"%b %b\n" % (name, " ".join(vector.astype(str)).encode())
