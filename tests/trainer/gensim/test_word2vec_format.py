"""Word2vec-format files: both ways with gensim itself, and every fault said with its place."""

import gzip
import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.gensim.word2vec_format import (
    NamedVectors,
    align_rows,
    name_vectors,
    read_word2vec,
    write_word2vec,
)

URLS = ["\x7f/a%20b?q=1", "/ünï", "名前", "12", "0.5", "x" * 3000]
FORMATS = pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
NAMES = ["v.vec", "v.vec.gz"]


def draw(num_rows: int, vector_size: int, seed: int = 1) -> NDArray[np.float32]:
    """Vectors of all magnitudes that float32 has, float32[num_rows, vector_size]."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((num_rows, vector_size)) * 10.0 ** rng.integers(-38, 38, (num_rows, vector_size))
    return numbers.astype(np.float32)


def assert_same(named: NamedVectors, names: list[str], vectors: NDArray[np.float32]) -> None:
    assert named.names == names
    assert named.vectors.dtype == np.float32
    np.testing.assert_array_equal(named.vectors, vectors)


def fault_of(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_word2vec(path)
    return str(caught.value)


@FORMATS
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("vector_size", [1, 2, 5, 100])
def test_what_is_written_is_read(tmp_path: Path, name: str, binary: bool, vector_size: int) -> None:
    vectors = draw(len(URLS), vector_size)
    batches = [(URLS[:2], vectors[:2]), ([], vectors[:0]), (pa.array(URLS[2:]), vectors[2:])]
    assert write_word2vec(tmp_path / name, batches, len(URLS), vector_size, binary) == 0
    assert_same(read_word2vec(tmp_path / name), URLS, vectors)
    assert (
        (tmp_path / name).read_bytes().startswith(b"\x1f\x8b" if name.endswith("gz") else f"6 {vector_size}\n".encode())
    )


@settings(max_examples=80)
@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), unique=True, max_size=6),
    st.integers(2, 6),
    st.booleans(),
    st.data(),
)
def test_any_names_come_back_encoded(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], vector_size: int, binary: bool, data: st.DataObject
) -> None:
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    vectors = data.draw(npst.arrays(np.float32, (len(names), vector_size), elements=finite))
    expected = ["".join(f"%{ord(c):02X}" if ord(c) <= 32 else c for c in name) for name in names]
    assume(len(set(expected)) == len(names))
    path = tmp_path_factory.getbasetemp() / "any.vec"
    num_encoded = write_word2vec(path, [(names, vectors)], len(names), vector_size, binary)
    assert_same(read_word2vec(path), expected, vectors)
    assert num_encoded == sum(a != b for a, b in zip(names, expected, strict=True))


@pytest.fixture(scope="module", params=[(True, "v.vec"), (False, "v.vec"), (True, "v.vec.gz"), (False, "v.vec.gz")])
def small_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A file of three rows, and its bytes."""
    binary, name = request.param
    path = tmp_path_factory.mktemp("altered") / name
    write_word2vec(path, [(["a", "secret", "c"], draw(3, 4))], 3, 4, binary)
    return path, path.read_bytes()


@settings(max_examples=100)
@given(at=st.integers(0, 200), bytes_put=st.binary(max_size=12))
def test_altered_files_give_errors_that_are_meant_to_be_read(
    small_file: tuple[Path, bytes], at: int, bytes_put: bytes
) -> None:
    path, content = small_file
    path.write_bytes(content[:at] + bytes_put + content[at + len(bytes_put) + 1 :])
    try:
        read_word2vec(path)
    except ConfigError as error:
        assert "secret" not in str(error)


@FORMATS
@pytest.mark.parametrize("name", NAMES)
def test_gensim_reads_what_we_write_and_we_what_it_writes(tmp_path: Path, name: str, binary: bool) -> None:
    from gensim.models import KeyedVectors

    vectors = draw(len(URLS), 5)
    write_word2vec(tmp_path / name, [(URLS, vectors)], len(URLS), 5, binary)
    keyed = KeyedVectors.load_word2vec_format(str(tmp_path / name), binary=binary)
    assert keyed.index_to_key == URLS
    np.testing.assert_array_equal(keyed.vectors, vectors)
    keyed.save_word2vec_format(str(tmp_path / f"theirs-{name}"), binary=binary)
    assert_same(read_word2vec(tmp_path / f"theirs-{name}"), URLS, vectors)


ONE = struct.pack("<2f", 1, 2)


@pytest.mark.parametrize(
    ("content", "names", "vectors"),
    [
        (
            b"3 2\r\nuser 12\t1 -2.5e-1 \r\n  a\tb  +.5 0\r\n0.5 3. 4\n\n \n",
            ["user 12", "a\tb", "0.5"],
            [[1, -0.25], [0.5, 0], [3, 4]],
        ),
        (b"1 2\npage 0.5 1 2", ["page 0.5"], [[1, 2]]),
        (b"2 2\na " + ONE + b"\nb " + ONE + b"\n", ["a", "b"], [[1, 2], [1, 2]]),
    ],
    ids=["spaces in names, blanks at ends of lines", "no newline at the end", "as the original word2vec writes"],
)
def test_files_of_others(tmp_path: Path, content: bytes, names: list[str], vectors: list[list[float]]) -> None:
    (tmp_path / "v").write_bytes(content)
    assert_same(read_word2vec(tmp_path / "v"), names, np.array(vectors, np.float32))


NAN = struct.pack("<2f", 1, float("nan"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "two numbers"),
        (b"glove 0.5 0.25\n", "two numbers"),
        (b"2 0\na\nb\n", "two numbers"),
        (b"-2 2\na 1 2\n", "two numbers"),
        (b"2 2\nsecret 1 2\nb 1\n", "after 1 rows a line of 2 fields, not a name and 2 numbers"),
        (b"2 2\nsecret 1 2\n\nb 1 2\n", "after 1 rows a line of 0 fields"),
        (b"2 2\nsecret 1 2\nb x secret\n", "after 1 rows a field that is no number"),
        (b"2 2\nsecret 1 \xff2\nb 1 2\n", "read as binary with .* after 1 rows a row that is cut short"),
        (b"2 2\nsecret 1 2\nb 1 \xff2\n", "after 1 rows a field that is no number"),
        (b"2 2\nsecret 1 2\nb nan 1\n", "row 2 has a number that is not finite"),
        (b"2 2\nsecret 1 2\nb 1 1e39\n", "row 2 has a number that is not finite"),
        (b"2 2\na 1 2\n\xff 1 2\n", "after 1 rows a name that is not UTF-8"),
        (b"2 2\nsecret 1 2\nsecret 1 2\n", "1 rows repeat a name"),
        (b"2 2\nsecret 1 2           \n", "after 1 rows a line of 0 fields"),
        (b"2 9\nsecret 1 2\n", "after 0 rows too few bytes for them"),
        (b"999999999999 300\nsecret 1 2\n", "after 0 rows too few bytes for them"),
        (b"1 2\nsecret 1 2\nb 1 2\n", "more after the last row"),
        (b"2 2\nsecret " + ONE + b"b " + NAN, "row 2 has a number that is not finite"),
        (b"2 2\nsecret " + ONE + b"b " + ONE[:5], "after 1 rows a row that is cut short"),
        (b"2 2\nsecret " + ONE + b" " + ONE, "after 1 rows a row without a name"),
        (b"2 2\nsecret " + ONE + b"\xff " + ONE, "after 1 rows a name that is not UTF-8"),
        (b"2 2\nsecret " + ONE + b"secret " + ONE, "1 rows repeat a name"),
        (b"1 2\nsecret " + ONE + b"b " + ONE, "more after the last row"),
        (b"2 2\nsecret " + ONE + b"x" * 70_000, "after 1 rows .* a name without an end"),
        (gzip.compress(b"2 2\nsecret 1 2\nb 1 2\n", mtime=0)[:-9], "truncated or damaged inside its gzip stream"),
        (gzip.compress(b"2 2\nsecret 1 2\nb 1\n", mtime=0), "a line of 2 fields"),
        (b"\x1f\x8bnothing", "gzip stream"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path: Path, content: bytes, expected: str) -> None:
    message = fault_of(tmp_path / "bad.vec", content)
    assert re.search(expected, message), message
    assert "secret" not in message
    assert str(tmp_path / "bad.vec") in message


def test_missing_files_and_folders_are_said(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.bin", tmp_path):
        with pytest.raises(ConfigError, match="cannot read"):
            read_word2vec(path)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([(["a", "b"], draw(1, 2))], r"vectors of shape \(1, 2\) for 2 names"),
        ([(["a"], draw(1, 2))], "1 rows came .* where 2 were announced"),
        (
            [(["a"], draw(1, 2)), (["b"], np.full((1, 2), np.inf, np.float32))],
            "from row 2 on: row 1 has a number that is not",
        ),
        ([(["a", ""], draw(2, 2))], "name of row 2 has 0 bytes"),
        ([(["a", "x" * 65_536], draw(2, 2))], "name of row 2 has 65,536 bytes"),
    ],
)
@FORMATS
def test_what_cannot_be_written_leaves_the_file_as_it_was(
    tmp_path: Path, batches: list, expected: str, binary: bool
) -> None:
    (tmp_path / "v.vec").write_bytes(b"before")
    with pytest.raises(ConfigError, match=expected):
        write_word2vec(tmp_path / "v.vec", batches, 2, 2, binary)
    assert [path.name for path in tmp_path.iterdir()] == ["v.vec"]
    assert (tmp_path / "v.vec").read_bytes() == b"before"


def test_a_disk_that_refuses_is_said_with_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ResourceError, match="needs about 16 bytes"):
        write_word2vec(tmp_path / "file" / "v.bin", [(["a", "b"], draw(2, 2))], 2, 2)


def test_the_same_rows_give_the_same_gzip_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_word2vec(tmp_path / name, [(URLS, draw(6, 3))], 6, 3)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_rows_are_aligned_by_name() -> None:
    named = name_vectors(["b", "a", "c%20d"], np.zeros((3, 2)), "the file")
    for urls in (["a", "x", "c d", "b", "a"], pa.chunked_array([["a", "x"], ["c d", "b", "a"]])):
        rows = align_rows(named, urls)
        assert rows.dtype == np.int64
        assert rows.tolist() == [1, -1, 2, 0, 1]
    assert align_rows(named, []).tolist() == []
