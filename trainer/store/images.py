"""Reads and writes arrays in safetensors files past the page cache, each file in one piece.

An *image* is the bytes of such a file in memory, in full pages; its arrays are views of them. The disk itself (O_DIRECT) reads a
micro-partition to where it is trained, and writes it from the same memory: the page cache would cost a copy of every byte.

The checksum is sha256 of the sums of each 64 KiB as 64-bit numbers, at the speed of memory. It detects damage by
disks and crashes, not forgery.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import verify_size
from surf2vec.trainer.system.memory import Bytes, make_pages, whole_pages

SUM_BYTES = 65_536
_PIECE_BYTES = 256 * SUM_BYTES
_CODES = {"float32": "F32", "uint32": "U32", "uint16": "BF16"}  # numpy has no bfloat16: its halves are uint16
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "U32": np.dtype(np.uint32),
    "BF16": np.dtype(np.uint16),
}

Arrays = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[Any, tuple[int, ...]]]


@dataclass(frozen=True)
class Image:
    """pages uint8[...]: full pages that begin with the file's bytes; arrays: views of these by name."""

    pages: Bytes
    num_bytes: int
    arrays: Arrays


def make_image(shapes: Shapes, spare: Bytes | None = None) -> Image:
    """Return an unfilled image of arrays: name → (dtype, shape). Uses the pages `spare` if they suffice."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _CODES[np.dtype(dtype).name], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    begin = whole_pages(8 + len(text))
    pages = _pages_for(begin + end, spare)
    pages[:begin] = np.frombuffer((begin - 8).to_bytes(8, "little") + text.ljust(begin - 8), dtype=np.uint8)
    return Image(pages, begin + end, _views(header, pages[begin : begin + end]))


def image_of(arrays: Arrays, spare: Bytes | None = None) -> Image:
    """Return an image with copies of these arrays."""
    image = make_image({name: (array.dtype, array.shape) for name, array in arrays.items()}, spare)
    for name, array in arrays.items():
        image.arrays[name][:] = array
    return image


def write_image(path: Path, image: Image) -> dict[str, Any]:
    """Write or overwrite the file. Returns `{"bytes", "checksum"}`. Raises OSError when the disk is full or refuses.

    The caller syncs the file. An existing file is not truncated first: its disk blocks are used again, which is faster.
    """

    def write(descriptor: int) -> None:
        pages, done = image.pages[: whole_pages(image.num_bytes)], 0
        while done < len(pages):
            done += os.pwrite(descriptor, pages[done:].data, done)
        os.ftruncate(descriptor, image.num_bytes)

    _with_file(path, os.O_WRONLY | os.O_CREAT, write)
    return {"bytes": image.num_bytes, "checksum": checksum(iter([image.pages[: image.num_bytes]]))}


def read_image(path: Path, expected: dict[str, Any], spare: Bytes | None = None) -> Image:
    """Read a file and check it against its manifest entry. Raises DamageError when it was altered."""
    verify_size(path, expected)
    num_bytes = expected["bytes"]
    pages = read_pages(path, num_bytes, spare)
    data = pages[:num_bytes]
    _check_sum(path, expected, iter([data]))
    return Image(pages, num_bytes, _arrays_in(data))


def read_pages(path: Path, num_bytes: int, spare: Bytes | None = None) -> Bytes:
    """Read a file of `num_bytes` into pages, `spare` if they suffice. Raises DamageError when the file is shorter."""
    pages = _pages_for(num_bytes, spare)

    def read(descriptor: int) -> None:
        done = 0
        while done < num_bytes and (found := os.preadv(descriptor, [pages[done:].data], done)):
            done += found
        if done < num_bytes:  # the rest of the pages may hold another file
            raise DamageError(f"{path} ends after {done:,} of {num_bytes:,} bytes: it was cut short")

    _with_file(path, os.O_RDONLY, read)
    return pages


def map_image(path: Path, expected: dict[str, Any]) -> Arrays:
    """Verify a file and map its arrays read-only, without private memory. Raises DamageError when it was altered."""
    verify_image(path, expected)
    return _arrays_in(np.asarray(np.memmap(path, dtype=np.uint8, mode="r")))


def verify_image(path: Path, expected: dict[str, Any]) -> None:
    """Raise DamageError unless the file matches its manifest entry. Takes a bounded memory."""
    verify_size(path, expected)
    with open(path, "rb") as file:
        pieces = (np.frombuffer(piece, dtype=np.uint8) for piece in iter(lambda: file.read(_PIECE_BYTES), b""))
        _check_sum(path, expected, pieces)


def checksum(pieces: Iterator[Bytes]) -> str:
    """Return the checksum of a file, 64 hex digits. All pieces but the last have a multiple of SUM_BYTES bytes."""
    digest, num_bytes = hashlib.sha256(), 0
    for piece in pieces:
        end = len(piece) - len(piece) % SUM_BYTES
        digest.update(piece[:end].view(np.uint64).reshape(-1, SUM_BYTES // 8).sum(axis=1, dtype=np.uint64).tobytes())
        digest.update(piece[end:].tobytes())
        num_bytes += len(piece)
    digest.update(num_bytes.to_bytes(8, "little"))
    return digest.hexdigest()


def _views(header: dict[str, Any], data: Bytes) -> Arrays:
    arrays = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        arrays[name] = data[start:end].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def _arrays_in(data: Bytes) -> Arrays:
    """Return the arrays of a file with these bytes."""
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    return _views(json.loads(data[8:begin].tobytes()), data[begin:])


def _check_sum(path: Path, expected: dict[str, Any], pieces: Iterator[Bytes]) -> None:
    if checksum(pieces) != expected["checksum"]:
        raise DamageError(f"{path} does not have the checksum its manifest says: its bytes were altered")


def _pages_for(num_bytes: int, spare: Bytes | None) -> Bytes:
    wanted = whole_pages(num_bytes)
    return spare if spare is not None and len(spare) >= wanted else make_pages(wanted)


def _with_file(path: Path, flags: int, work: Callable[[int], None]) -> None:
    """Open the file past the page cache, or normally on a filesystem without O_DIRECT (tmpfs), and do the work."""
    for direct in (os.O_DIRECT, 0):
        descriptor = -1
        try:
            descriptor = os.open(path, flags | direct, 0o666)
            work(descriptor)
            break
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)
