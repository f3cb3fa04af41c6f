"""What is read though it is packed, and what is refused with the command that converts it: the command is run."""

import bz2
import gzip
import io
import lzma
import re
import shutil
import sqlite3
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.orc
import pytest

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.formats import recognise
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import read_events, take_in

LINES = [f"u{number % 7},/é/{number % 5},{1_793_610_000 + number}" for number in range(3000)]
CSV = "".join(f"{line}\n" for line in ["user_id,url,ts", *LINES])
FRAME = pl.read_csv(CSV.encode())


def pack_zip(data: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)
    return file.getvalue()


def pack_tar(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("inner.csv")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "a.csv.gz": gzip.compress,
    "a.csv.bz2": bz2.compress,
    "pieces.csv.bz2": lambda data: bz2.compress(data[:9000]) + bz2.compress(data[9000:]),
    "a.csv.xz": lzma.compress,
    "a.csv.zip": lambda data: pack_zip(data, "events.csv"),
    "mac.zip": lambda data: pack_zip(data, "logs/", "logs/events.csv", "__MACOSX/logs/._events.csv"),
}


@pytest.mark.parametrize("name", PACK)
def test_compressed_logs_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(PACK[name](CSV.encode()))
    assert take_in(tmp_path / "root", tmp_path / name, partitions=None)["events"] == len(LINES)
    assert {url for _, url, _, _ in read_events(tmp_path / "root")} == {f"/%C3%A9/{number}" for number in range(5)}


@pytest.mark.parametrize("name", PACK)
@pytest.mark.parametrize("is_cut", [True, False])
def test_cut_and_damaged_logs_are_refused(tmp_path: Path, name: str, is_cut: bool) -> None:
    """Whether the first bytes are whole or not."""
    for num_lines in (300, 120_000):
        lines = [f"u{number},/a,{1_793_610_000 + number}\n" for number in range(num_lines)]
        data = PACK[name](f"user_id,url,ts\n{''.join(lines)}".encode())
        place = len(data) // 2
        wrong = bytes(byte ^ 0x55 for byte in data[place : place + 9])
        (tmp_path / name).write_bytes(data[:place] + (b"" if is_cut else wrong + data[place + 9 :]))
        with pytest.raises(InputError, match=f"{name} is cut short or damaged"):
            take_in(tmp_path / "root", tmp_path / name)


def write_sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as con:
        con.execute("create table visits (user_id, url, ts)")
        con.executemany("insert into visits values (?, ?, ?)", FRAME.rows())
        con.commit()


CONVERTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a.tar": (lambda path: path.write_bytes(pack_tar(CSV.encode())), "inner.csv"),
    "a.csv.tar.gz": (lambda path: path.write_bytes(gzip.compress(pack_tar(CSV.encode()))), "new-a.csv.tar"),
    "it's two.zip": (lambda path: path.write_bytes(pack_zip(CSV.encode(), "inner.csv", "other.csv")), "inner.csv"),
    "twice.csv.gz.gz": (lambda path: path.write_bytes(gzip.compress(gzip.compress(CSV.encode()))), "new-twice.csv.gz"),
    "parquet.zip": (lambda path: path.write_bytes(pack_zip(to_parquet(), "a.parquet")), "new-parquet"),
    "a.orc": (lambda path: pa.orc.write_table(FRAME.to_arrow(), path), "a.orc.parquet"),
    "a.avro": (FRAME.write_avro, "a.avro.parquet"),
    "a.arrow": (FRAME.write_ipc, "a.arrow.parquet"),
    "a.arrows": (FRAME.write_ipc_stream, "a.arrows.parquet"),
    "a.db": (write_sqlite, "visits.csv"),
    "utf16.csv": (lambda path: path.write_bytes(CSV.encode("utf-16")), "new-utf16.csv"),
    "utf16le.csv": (lambda path: path.write_bytes(CSV.encode("utf-16-le")), "new-utf16le.csv"),
    "utf16.csv.gz": (lambda path: path.write_bytes(gzip.compress(CSV.encode("utf-16-be"))), "new-utf16.csv"),
    "latin.csv": (lambda path: path.write_bytes(CSV.encode("cp1252")), "new-latin.csv"),
    "latin.csv.xz": (lambda path: path.write_bytes(lzma.compress(CSV.encode("cp1252"))), "new-latin.csv"),
}


def to_parquet() -> bytes:
    file = io.BytesIO()
    FRAME.write_parquet(file)
    return file.getvalue()


@pytest.mark.parametrize("name", CONVERTED)
def test_the_command_of_the_message_makes_a_log(tmp_path: Path, name: str) -> None:
    write, made = CONVERTED[name]
    write(tmp_path / name)
    with pytest.raises(InputError, match="(?:convert|unpack|visits,) ?(?:it)? with ") as caught:
        recognise(tmp_path / name, IngestConfig())
    message = str(caught.value)
    assert message.isprintable()
    command = re.sub(", and give its files with --logs$", "", message.partition(" with ")[2])
    tool = command.split()[0]
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not installed")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    if name == "a.csv.tar.gz":  # unpacked, it is the archive of the first case
        subprocess.run(["tar", "-xf", made], cwd=tmp_path, check=True)
        made = "inner.csv"
    assert take_in(tmp_path / "root", tmp_path / made)["events"] == len(LINES)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.7z", b"7z\xbc\xaf\x27\x1c\0\x04", "is a 7z archive: unpack it with 7z x a.7z$"),
        ("a.rar", b"Rar!\x1a\x07\0", "is a RAR archive: unpack it with unrar x a.rar$"),
        ("a.xlsx", pack_zip(b"x", "[Content_Types].xml", "xl/workbook.xml"), "is an Excel file: save it as CSV UTF-8"),
        ("a.ods", pack_zip(b"x", "mimetype", "content.xml"), "is an Excel file: save it as CSV UTF-8"),
        ("a.xls", bytes.fromhex("d0cf11e0a1b11ae1") + bytes(9), "is an Excel file: save it as CSV UTF-8"),
        ("a.zip", pack_zip(b"x"), "is a zip archive without files"),
        ("a.csv", bytes(range(256)) * 9, "is binary, of no known format"),
        ("a.csv.gz", gzip.compress(bytes(range(256)) * 9), "is binary, of no known format"),
        ("a.csv", CSV.replace("é", "Привет").encode("koi8-r"), "iconv -f ENCODING -t UTF-8"),
        ("a.csv.bz2", CSV.encode(), "is not what its name says"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        recognise(tmp_path / name, IngestConfig())
    assert str(caught.value).isprintable()


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    data = bytearray(pack_zip(CSV.encode(), "a.csv"))
    for start, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(start) + offset] |= 1
    (tmp_path / "a.zip").write_bytes(bytes(data))
    with pytest.raises(InputError, match="is an encrypted zip archive: unpack it with 7z x a.zip$"):
        recognise(tmp_path / "a.zip", IngestConfig())


def test_text_that_begins_as_another_format_is_text(tmp_path: Path) -> None:
    for start in ("ORCID", "ARROW1", "PK", "BZh91", "Rar!"):
        (tmp_path / "a.csv").write_text(f"{start},user_id,url,ts\n1,u,/a,2026-11-02\n")
        assert recognise(tmp_path / "a.csv", IngestConfig()).format == "csv"


def test_a_few_lines_in_another_encoding_are_rejects(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV.encode() + b"u,/\xe9,1793610000\n")
    assert take_in(tmp_path / "root", tmp_path / "a.csv")["rejected"] == {"invalid UTF-8": 1}
