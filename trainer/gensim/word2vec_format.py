"""Word2vec-format files, the way to and from gensim without pickle.

    text      a line `rows dimensions`, then a line a row: name, blank, the numbers, blanks between them
    binary    the same first line, then a row after another: name, one space, the numbers as little-endian float32

Either may be gzipped. A name ends at the first blank there, so names are written with space, newline and the other ASCII
blanks and control characters percent-encoded (`a b` becomes `a%20b`); two names that differ only in this become one, and
reading refuses it. URLs have no blanks to begin with. A file is written in blocks; it is read through a memory map, a gzipped
one in memory.
"""

import gzip
import mmap
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.errors import ConfigError, ResourceError
from trainer.gensim.named_vectors import NamedVectors, Names, as_names, encode_names, name_vectors
from trainer.system.files import replace_file

Data: TypeAlias = bytes | mmap.mmap

MAX_NAME_BYTES = 65_536
_BLOCK_NUMBERS = 1 << 20
_HEADER = re.compile(rb"\s*(\d{1,12})[ \t]+([1-9]\d{0,5})\s*?\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)
_NOT_BLANK = re.compile(rb"\S")


@dataclass(frozen=True)
class _Header:
    """What the first line says, and where the rows begin."""

    path: Path
    num_rows: int
    vector_size: int
    start: int
    is_text: bool

    def fault(self, what: str) -> ConfigError:
        kind = "text" if self.is_text else "binary"
        return ConfigError(
            f"{self.path}, read as {kind} with {self.num_rows:,} rows of {self.vector_size:,} numbers: {what}; "
            "write it again, as with gensim's save_word2vec_format"
        )


def read_word2vec(path: Path) -> NamedVectors:
    """The vectors of a word2vec-format file: text or binary, gzipped or not, as its content says.

    Raises ConfigError, which says where, for whatever is wrong with the file; ResourceError when memory does not suffice.
    """
    try:
        with _open_data(path) as data:
            header = _read_header(path, data)
            names, vectors, end = (_read_text if header.is_text else _read_binary)(header, data)
            if _NOT_BLANK.search(data, end):
                raise header.fault(
                    "more follows the last row: its header is wrong, or names in a binary file have spaces"
                )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} is truncated or damaged inside its gzip stream ({error}): write it again") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; see that the path is right") from None
    except MemoryError:
        raise ResourceError(f"{path} does not fit in memory: use a machine with more, or fewer rows") from None
    if b"" in names:
        raise header.fault(f"row {names.index(b'') + 1:,} has no name")
    try:
        array = pa.array(names, pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        bad = next(i for i, name in enumerate(names) if name.decode(errors="replace").encode() != name)
        raise header.fault(f"row {bad + 1:,} has a name that is not UTF-8") from None
    return name_vectors(array, vectors, str(path))


@contextmanager
def _open_data(path: Path) -> Iterator[Data]:
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if is_gzip:
            yield gzip.decompress(file.read())
        elif not path.stat().st_size:
            yield b""  # cannot be mapped
        else:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data


def _read_header(path: Path, data: Data) -> _Header:
    """The first line. Raises ConfigError where it is none, or promises more than the file can hold."""
    match = _HEADER.match(data[:128])
    if not match:
        raise ConfigError(
            f"{path} does not begin with a line of two numbers, rows and dimensions: it is no word2vec-format file, or has no "
            "header"
        )
    start = match.end()
    line = data[start : start + MAX_NAME_BYTES + 1024].split(b"\n", 1)[0]
    header = _Header(path, int(match[1]), int(match[2]), start, _is_text(line))
    least = header.num_rows * (1 + (2 if header.is_text else 4) * header.vector_size)
    if least > len(data):
        raise header.fault(
            f"that takes {least:,} bytes or more, but it is truncated at byte {len(data):,} or its header wrong"
        )
    return header


def _is_text(line: bytes) -> bool:
    """Whether a first row is text: nothing but characters, and a number behind the name."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return not _CONTROL.search(line) and any(_NUMBER.fullmatch(field) for field in line.split()[1:])


def _read_text(header: _Header, data: Data) -> tuple[list[bytes], NDArray[np.float32], int]:
    """Names and numbers of all lines, and where they end: the last fields are the numbers; blanks may stand in the name."""
    names: list[bytes] = []
    vectors = np.empty((header.num_rows, header.vector_size), dtype=np.float32)
    at = header.start
    for row in range(header.num_rows):
        if at >= len(data):
            raise header.fault(f"it is truncated at byte {len(data):,}, after {row:,} rows")
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        name, *fields = data[at:end].strip().rsplit(None, header.vector_size) or [b""]
        if len(fields) < header.vector_size:
            num_fields = len(fields) + bool(name)
            raise header.fault(
                f"line {row + 2:,} has {num_fields:,} fields, not a name and {header.vector_size:,} numbers"
            )
        try:
            vectors[row] = pa.array(fields, pa.string()).cast(pa.float32())
        except pa.ArrowInvalid:
            raise header.fault(
                f"line {row + 2:,} has a field that is no number among its last {len(fields):,}"
            ) from None
        names.append(name)
        at = end + 1
    return names, vectors, at


def _read_binary(header: _Header, data: Data) -> tuple[list[bytes], NDArray[np.float32], int]:
    """Names and numbers of all rows, and where they end."""
    names: list[bytes] = []
    vectors = np.empty((header.num_rows, header.vector_size), dtype=np.float32)
    at = header.start
    for row in range(header.num_rows):
        space = data.find(b" ", at, at + MAX_NAME_BYTES)
        end = space + 1 + 4 * header.vector_size
        if space < 0 and len(data) >= at + MAX_NAME_BYTES:
            raise header.fault(f"row {row + 1:,} has no end of its name within {MAX_NAME_BYTES:,} bytes")
        if space < 0 or end > len(data):
            raise header.fault(f"it is truncated at byte {len(data):,}, after {row:,} rows")
        names.append(data[at:space].lstrip(b"\n"))  # word2vec.c ends a row with a newline, gensim does not
        vectors[row] = np.frombuffer(data, "<f4", header.vector_size, space + 1)
        at = end
    return names, vectors, at


def write_word2vec(
    path: Path,
    batches: Iterable[tuple[Names, NDArray[np.float32]]],
    num_rows: int,
    vector_size: int,
    binary: bool = True,
) -> int:
    """Replace `path`, durably, by a word2vec-format file of all batches; gzipped when it ends in .gz.

    A batch is names[n] and vectors float32[n, D]; in all they must have `num_rows` rows of `vector_size` numbers. Returns
    how many names had to be percent-encoded. Raises ConfigError for other shapes, numbers that are not finite and names
    that cannot be written, ResourceError when the disk refuses: then `path` is as it was.
    """
    row = num_encoded = 0
    if vector_size < 1:
        raise ConfigError(f"vectors of {vector_size:,} numbers cannot be written to {path}: 1 is the least")
    try:
        with replace_file(path) as temporary, open(temporary, "wb") as file, _packed(path, file) as sink:
            sink.write(f"{num_rows} {vector_size}\n".encode())
            for names, vectors in batches:
                encoded, count = encode_names(as_names(names))
                named = name_vectors(encoded, vectors, f"{path} from row {row + 1:,} on")
                _check_writable(named, vector_size, row)
                step = max(1, _BLOCK_NUMBERS // vector_size)
                for start in range(0, len(vectors), step):
                    block = named.vectors[start : start + step].astype("<f4", copy=False)
                    (_write_binary if binary else _write_text)(sink, encoded.slice(start, step), block)
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


def _check_writable(named: NamedVectors, vector_size: int, row: int) -> None:
    """Raise ConfigError unless a batch, which begins at `row`, has the vectors announced and names that can be written."""
    if named.vectors.shape[1] != vector_size:
        raise ConfigError(f"vectors of shape {named.vectors.shape} came where {vector_size:,} numbers were announced")
    lengths = pc.binary_length(named.names.cast(pa.large_binary())).to_numpy()
    unfit = np.flatnonzero((lengths == 0) | (lengths >= MAX_NAME_BYTES))
    if len(unfit):
        raise ConfigError(
            f"the name of row {row + unfit[0] + 1:,} has {lengths[unfit[0]]:,} bytes: 1 to {MAX_NAME_BYTES - 1:,} can be written"
        )


def _packed(path: Path, file: BinaryIO) -> Any:
    """The file, or a gzip stream into it that gives the same bytes for the same rows."""
    if path.suffix != ".gz":
        return nullcontext(file)
    return gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0)  # floats hardly shrink


def _write_binary(sink: BinaryIO | gzip.GzipFile, names: pa.LargeStringArray, vectors: NDArray[np.float32]) -> None:
    encoded = names.cast(pa.large_binary()).to_pylist()
    sink.write(b"".join(b"%b %b" % pair for pair in zip(encoded, map(np.ndarray.tobytes, vectors), strict=True)))


def _write_text(sink: BinaryIO | gzip.GzipFile, names: pa.LargeStringArray, vectors: NDArray[np.float32]) -> None:
    """Each number in the fewest digits that read back as the same float32."""
    numbers = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)).cast(pa.string()), vectors.shape[1])
    for name, fields in zip(names.to_pylist(), numbers.to_pylist(), strict=True):
        sink.write(f"{name} {' '.join(fields)}\n".encode())
