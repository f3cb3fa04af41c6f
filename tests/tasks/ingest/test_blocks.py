"""Blocks: whatever their size, the same lines with the same numbers."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest import blocks as logblocks
from surf2vec.tasks.ingest.batches import Batch
from surf2vec.tasks.ingest.blocks import BlockReader, cut_blocks, parse_text
from surf2vec.tasks.ingest.formats import recognise
from surf2vec.tasks.ingest.sources import SourceFile
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import write_log


def read(path: Path) -> list[dict[str, Any]]:
    """Every row of a log, by line."""
    reader = BlockReader(Batch(((recognise(path, IngestConfig()), SourceFile("", "0", (0, 0, 0))),)))
    return sorted(reader.open().read_all().to_pylist(), key=lambda row: row["line"])


@given(st.lists(st.text("ab\u00e9,", max_size=12), max_size=30), st.integers(1, 40), st.booleans())
def test_blocks_join_to_the_stream(lines: list[str], block_bytes: int, ends_with_newline: bool) -> None:
    data = "\n".join(lines).encode() + (b"\n" if ends_with_newline and lines else b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logblocks, "BLOCK_BYTES", block_bytes)
        blocks = list(cut_blocks(io.BytesIO(b"header\n" + data), is_delimited=True))
    joined = b"".join(block for _, block in blocks)
    assert joined == data + (b"\n" if data and not data.endswith(b"\n") else b"")
    line = 2
    for first_line, block in blocks:
        assert first_line == line
        assert block.endswith(b"\n")
        line += block.count(b"\n")


@pytest.mark.parametrize("block_bytes", [32, 64, 100, 1000, 1 << 20])
def test_the_size_of_blocks_changes_nothing(tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"u{n},/a{n},{n}" for n in range(50)]
    lines[7], lines[20], lines[30], lines[31] = '"u7","/a\n7",7', "broken", "", 'u31,"/open,31'
    path = write_log(tmp_path / "a.csv", *lines)
    expected = read(path)
    assert [row["line"] for row in expected if row["rejected"]] == [23, 34]
    monkeypatch.setattr(logblocks, "BLOCK_BYTES", block_bytes)
    assert read(path) == expected


@pytest.mark.parametrize("block_bytes", [64, 1000])
def test_a_line_that_is_too_long_is_one_reject(
    tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logblocks, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(logblocks, "MAX_LINE_BYTES", 2000)
    path = write_log(tmp_path / "a.csv", "u,/a,1", f"u,/{'x' * 9000},1", "u,/b,1", f"u,/{'y' * 9000},1")
    assert [(row["line"], row["url"], row["rejected"]) for row in read(path)] == [
        (2, "/a", None), (3, None, "line too long"), (4, "/b", None), (5, None, "line too long"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path / name, "u,/a,1", header="\ufeffuser_id,url,ts")
    assert [row["user_id"] for row in read(path)] == ["u"]


def test_text_lines_with_their_faults() -> None:
    batch = parse_text(b"good\nb\xffad\n\xc3\xa9\nnu\x00l\n", np.arange(5, 9))
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (5, "good", None), (6, None, "invalid UTF-8"), (7, "é", None), (8, None, "NUL byte"),
    ]  # fmt: skip
    assert parse_text(b"a\nb\n", np.arange(1, 3))["text"].to_pylist() == ["a", "b"]


@pytest.mark.parametrize(("codec", "suffix"), [("gzip", ".gz"), ("zstd", ".zst")])
def test_truncated_files_are_told(tmp_path: Path, codec: str, suffix: str) -> None:
    text = "user_id,url,ts\n" + "".join(f"u{n * 7919 % 1000},/page{n * 104_729 % 5000},{n}\n" for n in range(200_000))
    path = tmp_path / f"a.csv{suffix}"
    with pa.CompressedOutputStream(str(path), codec) as stream:
        stream.write(text.encode())
    whole = path.read_bytes()
    assert len(read(path)) == 200_000
    path.write_bytes(whole + whole)  # members one after the other are one stream
    assert len(read(path)) == 400_001
    for cut in (len(whole) - 3, len(whole) // 2):
        path.write_bytes(whole[:cut])
        reader = BlockReader(Batch(((recognise(path, IngestConfig()), SourceFile("", "0", (0, 0, 0))),)))
        with pytest.raises(OSError, match="runcated"):
            reader.open().read_all()
        assert isinstance(reader.error, InputError)
        assert f"{path} is cut short or damaged" in str(reader.error)
