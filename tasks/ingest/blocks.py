"""Reads a text log in blocks of whole lines and hands them to DuckDB as Arrow batches, each line with its number.

DuckDB's own CSV reader is not used: it cannot number lines, takes a stray carriage return for the end of a line, and
leaves out without a word what follows the break in a truncated zstd file, and lines longer than its buffer (tried with
2.0.0). Reading here costs about a tenth more and accounts for every line. Three blocks are in memory at a time.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import IO

import numpy as np
import pyarrow as pa

from tasks.ingest.access_lines import split_fields
from tasks.ingest.delimited import (
    FIELDS_SCHEMA,
    MAX_RECORD_LINES,
    NOT_UTF8,
    NUL_BYTE,
    Layout,
    count_lines,
    is_utf8,
    parse_fields,
)
from tasks.ingest.formats import LogFile, explain_stream, open_log

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
MAX_BLOCK_LINES = 1 << 16  # tiny lines are objects of Python where some of them are at fault
LINES_SCHEMA = pa.schema([("line", pa.int64()), ("text", pa.string()), ("rejected", pa.string())])
LINE_TOO_LONG = "line too long"


@dataclass(frozen=True)
class Block:
    """Whole lines, each with its newline, the first of which is line `first_line` of the file (1-based).

    A line over MAX_LINE_BYTES is a block by itself, and without its data.
    """

    data: bytes
    first_line: int
    is_too_long: bool = False


class BlockReader:
    """The batches of a log, as fields if it is delimited, else as lines.

    DuckDB pulls them; it would wrap an error of theirs, so `error` keeps it. `done_bytes` of the file were read so far, and
    the lines before `at_line`.
    """

    def __init__(self, log: LogFile) -> None:
        self.log = log
        self.error: Exception | None = None
        self.done_bytes = 0
        self.at_line = 1
        self.layout = Layout.of(log) if log.format in ("csv", "tsv") else None
        self.schema = LINES_SCHEMA if log.format == "jsonl" else FIELDS_SCHEMA

    def open(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            stream, raw = open_log(self.log)
            with raw, stream, ThreadPoolExecutor(2) as pool:
                pending: deque[Future[pa.RecordBatch]] = deque()
                for block in cut_blocks(
                    stream, joins_quotes=self.layout is not None, skips_header=self.layout is not None
                ):
                    self.at_line = block.first_line
                    pending.append(pool.submit(self._parse, block))
                    if len(pending) > 2:
                        yield pending.popleft().result()
                    self.done_bytes = raw.tell()
                while pending:
                    yield pending.popleft().result()
        except OSError as error:
            self.error = explain_stream(self.log.path, error)
            raise
        except Exception as error:
            self.error = error
            raise

    def _parse(self, block: Block) -> pa.RecordBatch:
        if block.is_too_long:
            values = {"line": [block.first_line], "rejected": [LINE_TOO_LONG]}
            return pa.RecordBatch.from_pydict(
                {name: values.get(name, [None]) for name in self.schema.names}, self.schema
            )
        if self.layout:
            return parse_fields(block.data, block.first_line, self.layout)
        lines = parse_text(block.data, block.first_line)
        return split_fields(lines, self.log.pattern, FIELDS_SCHEMA) if self.log.pattern else lines


def cut_blocks(stream: IO[bytes], joins_quotes: bool, skips_header: bool) -> Iterator[Block]:
    """Cut a stream into blocks. With `joins_quotes`, a record that goes over several lines stays in one block."""
    chunks = _read_chunks(stream)
    rest, line = b"", 1
    if skips_header:
        chunks, line = chain([_drop_line(chunks)], chunks), 2
    while (chunk := next(chunks, None)) is not None:
        data = rest + chunk
        if b"\n" not in chunk and len(data) <= MAX_LINE_BYTES:
            rest = data
            continue
        keep = data.rfind(b"\n") + 1
        if joins_quotes:
            keep = _cut_before_open_quote(data, keep)
        for piece in _cut_lines(data[:keep], joins_quotes):
            yield Block(piece, line)
            line += count_lines(piece)
        rest = data[keep:]
        if len(rest) > MAX_LINE_BYTES and b"\n" not in rest:
            yield Block(b"", line, is_too_long=True)
            chunks, rest, line = chain([_drop_line(chunks)], chunks), b"", line + 1
    if rest:
        yield Block(rest if rest.endswith(b"\n") else rest + b"\n", line)


def _cut_lines(data: bytes, joins_quotes: bool) -> Iterator[bytes]:
    """Whole lines in pieces of about MAX_BLOCK_LINES at most."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    start = 0
    for end in ends[MAX_BLOCK_LINES - 1 : -1 : MAX_BLOCK_LINES].tolist():
        piece = data[start:end]
        piece = piece[: _cut_before_open_quote(piece, len(piece))] if joins_quotes else piece
        yield piece
        start += len(piece)
    if start < len(data):
        yield data[start:]


def _read_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """The stream in pieces, without the mark that some programs begin UTF-8 with."""
    yield stream.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
    while chunk := stream.read(BLOCK_BYTES):
        yield chunk


def _drop_line(chunks: Iterator[bytes]) -> bytes:
    """What follows the next newline in the chunk that has it."""
    for chunk in chunks:
        _, newline, rest = chunk.partition(b"\n")
        if newline:
            return rest
    return b""


def _cut_before_open_quote(data: bytes, end: int) -> int:
    """Where to cut before `end` so that a record left open by the last lines goes to the next block; `end` if none is."""
    if b'"' not in data or data.count(b'"', 0, end) % 2 == 0:
        return end
    line_end = end
    for _ in range(MAX_RECORD_LINES):
        start = data.rfind(b"\n", 0, line_end - 1) + 1
        if data.count(b'"', start, line_end) % 2:
            return start or end
        if not start:
            break
        line_end = start
    return end


def parse_text(data: bytes, first_line: int) -> pa.RecordBatch:
    """The lines of a block as a batch of LINES_SCHEMA, each text with its newline."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")).astype(np.int32) + 1
    num_lines = len(ends)
    numbers = pa.array(np.arange(first_line, first_line + num_lines))
    if b"\0" not in data and is_utf8(data):
        offsets = np.concatenate((np.zeros(1, np.int32), ends))
        texts = pa.StringArray.from_buffers(num_lines, pa.py_buffer(offsets), pa.py_buffer(data))
        return pa.record_batch([numbers, texts, pa.nulls(num_lines, pa.string())], schema=LINES_SCHEMA)
    lines = data.removesuffix(b"\n").split(b"\n")
    faults = [NUL_BYTE if b"\0" in line else None if is_utf8(line) else NOT_UTF8 for line in lines]
    good = [None if fault else line.decode() for line, fault in zip(lines, faults, strict=True)]
    return pa.record_batch([numbers, pa.array(good, pa.string()), pa.array(faults, pa.string())], schema=LINES_SCHEMA)
