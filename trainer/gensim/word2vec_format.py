"""Word2vec-format files, the way to and from gensim without pickle.

    text      a line `rows dimensions`, then a line a row: name, blank, the numbers, blanks between them
    binary    the same first line, then a row after another: name, one space, the numbers as little-endian float32

Either may be gzipped. A name ends at the first blank there, so names are written with space, newline and the other ASCII
blanks and control characters percent-encoded (`a b` becomes `a%20b`); two names that differ only in this become one, and
reading refuses it. URLs have no blanks to begin with. Files are read and written in blocks.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainer.errors import ConfigError, ResourceError
from trainer.gensim.named_vectors import (
    NamedVectors,
    Names,
    as_names,
    encode_names,
    first_not_finite,
    first_repeat,
)
from trainer.system.files import replace_file

Block = tuple[list[bytes], NDArray[np.float32]]  # names[n] and float32[n, D] of consecutive rows

MAX_NAME_BYTES = 65_536
_FIRST_BYTES = MAX_NAME_BYTES + 1024  # tells text from binary: more than a name and a number
_BLOCK_BYTES = 1 << 22
_BLOCK_NUMBERS = 1 << 20
_BLOCK_ROWS = 8192
_MAX_NUMBER_BYTES = 64
_MAX_DEFLATE_RATIO = 1032
_HEADER = re.compile(rb"\s*(\d{1,12})[ \t]+([1-9]\d{0,5})\s*\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)
_ENDS_IN_FRACTION = r"\s[-+]?[0-9]*\.[0-9]+([eE][-+]?[0-9]+)?$"


@dataclass(frozen=True)
class _File:
    """A file behind its header."""

    path: Path
    stream: BinaryIO | gzip.GzipFile
    num_rows: int
    vector_size: int
    is_text: bool

    def fault(self, what: str) -> ConfigError:
        kind = "text" if self.is_text else "binary"
        return ConfigError(
            f"{self.path}, read as {kind} with {self.num_rows:,} rows of {self.vector_size:,} numbers: {what}; "
            "write it again, as with gensim's save_word2vec_format"
        )

    def place(self, row: int) -> str:
        return f"line {row + 2:,}" if self.is_text else f"row {row + 1:,}"

    def cut_short(self, row: int) -> ConfigError:
        return self.fault(f"it is truncated at byte {self.stream.tell():,}, after {row:,} rows")


def read_word2vec(path: Path) -> NamedVectors:
    """The vectors of a word2vec-format file: text or binary, gzipped or not, as its content says.

    Raises ConfigError, which says where, for whatever is wrong with the file; ResourceError when memory does not suffice.
    """
    try:
        with open(path, "rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if is_gzip else nullcontext(raw) as stream:
                header = _HEADER.fullmatch(stream.readline(128))
                if not header:
                    raise ConfigError(
                        f"{path} does not begin with a line of two numbers, rows and dimensions: it is no "
                        "word2vec-format file, or has no header"
                    )
                first = stream.read(_FIRST_BYTES)
                file = _File(path, stream, int(header[1]), int(header[2]), _is_text(first))
                _check_size(file, is_gzip)
                return _collect(file, (_text_blocks if file.is_text else _binary_blocks)(file, first))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} is truncated or damaged inside its gzip stream ({error}): write it again") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; see that the path is right") from None
    except MemoryError:
        raise ResourceError(f"{path} does not fit in memory: use a machine with more, or fewer rows") from None


def write_word2vec(
    path: Path,
    batches: Iterable[tuple[Names, NDArray[np.float32]]],
    num_rows: int,
    vector_size: int,
    binary: bool = True,
) -> int:
    """Replace `path`, durably, by a word2vec-format file of all batches; gzipped when it ends in .gz.

    A batch is names[n] and vectors float32[n, D]; in all they must have `num_rows` rows of `vector_size` numbers. Answers
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
                _check_batch(encoded, vectors, vector_size, row)
                step = max(1, min(_BLOCK_ROWS, _BLOCK_NUMBERS // vector_size))
                for start in range(0, len(vectors), step):
                    rows = np.ascontiguousarray(vectors[start : start + step], dtype="<f4")
                    (_write_binary if binary else _write_text)(sink, encoded.slice(start, step), rows)
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


def _is_text(first: bytes) -> bool:
    """Whether rows that begin with these bytes are text: the first line is, and has a number behind the name."""
    line = first.split(b"\n", 1)[0]
    try:
        line.decode()
    except UnicodeDecodeError as error:
        if error.start < len(first) - 3:  # else only the end of what was read, amid a character
            return False
    return not _CONTROL.search(line) and any(_NUMBER.fullmatch(field) for field in line.split()[1:])


def _check_size(file: _File, is_gzip: bool) -> None:
    """Raise ConfigError when the file cannot hold what its header says, before memory is taken for that."""
    least = file.num_rows * (1 + (2 if file.is_text else 4) * file.vector_size)
    there = file.path.stat().st_size
    if least > there * (_MAX_DEFLATE_RATIO if is_gzip else 1):
        raise file.fault(
            f"that takes {least:,} bytes or more, but it is truncated at byte {there:,} or its header wrong"
        )


def _collect(file: _File, blocks: Iterator[Block]) -> NamedVectors:
    """All blocks in one array, names and numbers checked."""
    vectors = np.empty((file.num_rows, file.vector_size), dtype=np.float32)
    parts: list[pa.Array] = [pa.array([], pa.large_string())]
    row = 0
    for names, block in blocks:
        bad = first_not_finite(block)
        if bad is not None:
            raise file.fault(f"{file.place(row + bad)} has a number that is not finite")
        if b"" in names:
            raise file.fault(f"{file.place(row + names.index(b''))} has no name")
        try:
            parts.append(pa.array(names, pa.large_binary()).cast(pa.large_string()))
        except pa.ArrowInvalid:
            bad = next(i for i, name in enumerate(names) if name.decode(errors="replace").encode() != name)
            raise file.fault(f"{file.place(row + bad)} has a name that is not UTF-8") from None
        vectors[row : row + len(block)] = block
        row += len(block)
    array = pa.concat_arrays(parts)
    repeat = first_repeat(array)
    if repeat:
        raise file.fault(repeat)
    if file.is_text and row > 1 and pc.all(pc.match_substring_regex(array, _ENDS_IN_FRACTION)).as_py():
        raise file.fault("every name ends in a number, so the rows have more numbers than the header says")
    return NamedVectors(array, vectors)


def _binary_blocks(file: _File, block: bytes) -> Iterator[Block]:
    """The rows of a binary file, a few MB at a time; `block` is what was read of them already."""
    row_bytes, row, is_end = 4 * file.vector_size, 0, False
    while row < file.num_rows:
        names: list[bytes] = []
        offsets: list[int] = []
        start = 0
        for _ in range(file.num_rows - row):
            space = block.find(b" ", start, start + MAX_NAME_BYTES)
            if space < 0 or space + 1 + row_bytes > len(block):
                break
            names.append(block[start:space].lstrip(b"\n"))  # word2vec.c ends a row with a newline, gensim does not
            offsets.append(space + 1)
            start = space + 1 + row_bytes
        if names:
            # One overlapping item at every byte: taking those at `offsets` copies whole rows.
            every = np.ndarray((len(block) - row_bytes + 1,), f"V{row_bytes}", block, strides=(1,))
            yield names, every[offsets].view("<f4").reshape(len(names), file.vector_size)
        row += len(names)
        if row < file.num_rows:
            if is_end:
                raise file.cut_short(row)
            if space < 0 and len(block) - start >= MAX_NAME_BYTES:
                raise file.fault(f"{file.place(row)} has no end of its name within {MAX_NAME_BYTES:,} bytes")
            more = file.stream.read(max(_BLOCK_BYTES, row_bytes))
            is_end = not more
            block, start = block[start:] + more, 0
    _check_end(file, block[start:] if file.num_rows else block)


def _text_blocks(file: _File, rest: bytes) -> Iterator[Block]:
    """The rows of a text file, a few MB at a time; `rest` is what was read of them already."""
    max_line_bytes = MAX_NAME_BYTES + _MAX_NUMBER_BYTES * file.vector_size
    row = 0
    while row < file.num_rows:
        more = file.stream.read(_BLOCK_BYTES)
        if not more and not rest.strip():
            raise file.cut_short(row)
        block = rest + more if more or rest.endswith(b"\n") else rest + b"\n"
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        if len(rest) > max_line_bytes:
            raise file.fault(f"after {row:,} rows comes a line of more than {max_line_bytes:,} bytes")
        if end:
            names, vectors, used = _parse_lines(file, block[:end], row)
            row += len(names)
            rest = block[used:end] + rest
            yield names, vectors
    _check_end(file, rest)


def _parse_lines(file: _File, lines: bytes, row: int) -> tuple[list[bytes], NDArray[np.float32], int]:
    """Names and vectors of whole lines, at most those that are left from `row` on, and the bytes used of `lines`.

    The last D fields of a line are the numbers; what stands before them is the name, blanks within it included.
    """
    data, size = np.frombuffer(lines, np.uint8), file.vector_size
    newlines = np.flatnonzero(data == 10)[: file.num_rows - row]
    data = data[: newlines[-1] + 1]
    is_number_byte = data > 32
    fields = np.flatnonzero(np.diff(is_number_byte, prepend=False)).reshape(-1, 2)  # begin and end of each, in bytes
    stops = np.searchsorted(fields[:, 0], newlines)
    counts = np.diff(stops, prepend=0)
    short = np.flatnonzero(counts <= size)
    if len(short):
        raise file.fault(
            f"{file.place(row + short[0])} has {counts[short[0]]:,} fields, not a name and {size:,} numbers"
        )
    first, last = stops - counts, stops - size  # fields of the names, of one word or of several
    spans = np.stack([first, last, fields[first, 0], fields[last - 1, 1]], axis=1).tolist()
    names, is_number = [], np.ones(len(fields), np.bool_)
    for word, number, begin, end in spans:
        names.append(lines[begin:end])
        is_number[word:number] = False
        is_number_byte[begin:end] = False
    lengths = (fields[:, 1] - fields[:, 0])[is_number]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    texts = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data[is_number_byte]))
    try:
        values = texts.cast(pa.float32())
    except pa.ArrowInvalid:
        fields_as_bytes = texts.cast(pa.binary()).to_pylist()
        bad = next((i for i, field in enumerate(fields_as_bytes) if not _NUMBER.fullmatch(field)), 0)
        raise file.fault(
            f"{file.place(row + bad // size)} has a field that is no number among its last {size:,}"
        ) from None
    return names, values.to_numpy().reshape(-1, size), len(data)


def _check_end(file: _File, rest: bytes) -> None:
    """Raise ConfigError when anything but blanks follows the last row."""
    while rest:
        if rest.strip():
            raise file.fault(
                "more follows the last row: its header is wrong, or names with spaces stand in a binary file"
            )
        rest = file.stream.read(_BLOCK_BYTES)


def _packed(path: Path, file: BinaryIO) -> Any:
    """The file, or a gzip stream into it that gives the same bytes for the same rows."""
    if path.suffix != ".gz":
        return nullcontext(file)
    return gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0)  # floats hardly shrink


def _write_binary(sink: BinaryIO | gzip.GzipFile, names: pa.LargeStringArray, vectors: NDArray[np.float32]) -> None:
    numbers, step = vectors.tobytes(), vectors.shape[1] * 4
    rows = enumerate(names.cast(pa.large_binary()).to_pylist())
    sink.write(b"".join(piece for i, name in rows for piece in (name, b" ", numbers[i * step : (i + 1) * step])))


def _write_text(sink: BinaryIO | gzip.GzipFile, names: pa.LargeStringArray, vectors: NDArray[np.float32]) -> None:
    """Each number in the fewest digits that read back as the same float32."""
    count, size = vectors.shape
    texts = pa.array(vectors.reshape(-1)).cast(pa.string())
    numbers = pc.binary_join(pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * size, texts), " ")
    lines = pc.binary_join_element_wise(names.cast(pa.string()), numbers, " ")
    sink.write(pc.binary_join(pa.ListArray.from_arrays([0, count], lines), "\n")[0].as_buffer())
    sink.write(b"\n")


def _check_batch(names: pa.LargeStringArray, vectors: NDArray[np.float32], vector_size: int, row: int) -> None:
    """Raise ConfigError unless a batch, which begins at `row`, can be written."""
    if vectors.shape != (len(names), vector_size):
        raise ConfigError(
            f"from row {row + 1:,} on: {len(names):,} names with vectors of shape {vectors.shape} where {vector_size:,} "
            "numbers a name were announced"
        )
    bad = first_not_finite(vectors)
    if bad is not None:
        raise ConfigError(f"row {row + bad + 1:,} has a number that is not finite: train again, with a lower alpha")
    lengths = pc.binary_length(names.cast(pa.large_binary())).to_numpy()
    unfit = np.flatnonzero((lengths == 0) | (lengths >= MAX_NAME_BYTES))
    if len(unfit):
        raise ConfigError(
            f"the name of row {row + unfit[0] + 1:,} has {lengths[unfit[0]]:,} bytes: 1 to {MAX_NAME_BYTES - 1:,} can be written"
        )
