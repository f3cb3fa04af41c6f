"""Tells what a log is packed in by its first bytes, and opens it.

Text may be compressed with gzip, zstd, bz2 or xz, or be the only file of a zip archive. Other archives, tables and encodings are
refused with the command that converts them (containers.toml).
"""

import lzma
import re
import shlex
import sys
import tomllib
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, NoReturn

import pyarrow as pa

from surf2vec.trainer.errors import InputError

STREAM_ERRORS = (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile, zlib.error, NotImplementedError)
_KINDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["kinds"]
_UNPACK = {"none": "cat"} | {kind["reads"]: kind["unpack"] for kind in _KINDS if "reads" in kind}
_EXCEL = next(kind for kind in _KINDS if kind.get("name") == "an Excel file")
_SHEETS = {"xl/workbook.xml", "xl/workbook.bin", "content.xml"}
_MAGIC_BYTES = 300


def find_container(path: Path) -> tuple[str, str]:
    """Return the compression of a file, none or parquet, and the name of the log: in a zip archive, of its only file.

    Raises InputError for a file that is neither text nor Parquet.
    """
    with open(path, "rb") as file:
        kind = _find_kind(file.read(_MAGIC_BYTES))
    if kind and "reads" not in kind:
        _refuse(path, kind)
    compression = kind.get("reads", "none")
    return compression, _only_file(path).filename if compression == "zip" else path.name


def open_stream(path: Path, compression: str) -> tuple[IO[bytes], IO[bytes]]:
    """Return the decompressed stream of a log, and the raw file (whose position shows the progress)."""
    if compression in ("xz", "zip"):
        file = open(path, "rb")  # noqa: SIM115
        return lzma.open(file) if compression == "xz" else zipfile.ZipFile(file).open(_only_file(path)), file
    raw = pa.OSFile(str(path))
    return (raw if compression == "none" else pa.CompressedInputStream(raw, compression)), raw


def explain_stream(path: Path, error: Exception) -> InputError:
    """Return the error to raise when decompression failed."""
    return InputError(f"{path} is cut short or damaged ({error}): deliver it again, or leave it out of --logs")


def check_text(path: Path, compression: str, head: bytes) -> None:
    """Raise InputError, with the command that converts it, unless the first bytes of a log are text in UTF-8."""
    is_plain = compression == "none"
    file, target = shlex.quote(path.name), shlex.quote("new-" + (path.name if is_plain else path.stem))
    kind, encoding = _find_kind(head), _find_encoding(head)
    if kind and not is_plain:
        name = kind.get("name", "a compressed file")
        raise InputError(f"{path} holds {name}: unpack it with {_UNPACK[compression]} {file} > {target}")
    if "UTF" not in encoding and len(re.findall(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", head)) > len(head) / 20:
        raise InputError(f"{path} is binary, of no known format: convert it to CSV, JSON lines or Parquet")
    if encoding:
        convert = f"{_UNPACK[compression]} {file} | iconv -f {encoding} -t UTF-8 > {target}"
        raise InputError(f"{path} is not in UTF-8: convert it with {convert}")


def _find_encoding(head: bytes) -> str:
    """Return the encoding of text that is not in UTF-8, as iconv calls it, or an empty text."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    for encoding, zeros in (("UTF-16LE", head[1::2]), ("UTF-16BE", head[::2])):
        if zeros.count(0) > len(head) / 3:
            return encoding
    lines = head.split(b"\n")
    wrong = [line for line in lines if "\ufffd" in line.decode(errors="replace")]
    runs = re.findall(rb"[\x80-\xff]+", b"\n".join(wrong))
    if len(wrong) < max(3, len(lines) / 20) or b"\0" in head:
        return ""
    return "WINDOWS-1252" if sum(map(len, runs)) < 1.5 * len(runs) else "ENCODING"


def _find_kind(head: bytes) -> dict[str, Any]:
    """Return the entry of containers.toml that fits the first bytes of a file, or an empty one."""
    is_binary = re.search(rb"[\x00-\x08]", head)  # a column may be called ORCID
    for kind in _KINDS:
        start = bytes.fromhex(kind["start"])
        if head.startswith(start, kind.get("offset", 0)) and (is_binary or not start.isalnum()):
            return kind
    return {}


def _only_file(path: Path) -> zipfile.ZipInfo:
    """Return the only file of a zip archive. Raises InputError if there are several, or it is encrypted, or an Excel file."""
    try:
        with zipfile.ZipFile(path) as archive:
            files = [info for info in archive.infolist() if not info.is_dir() and "__MACOSX" not in info.filename]
    except STREAM_ERRORS as error:
        raise explain_stream(path, error) from None
    if _SHEETS & {info.filename for info in files}:
        _refuse(path, _EXCEL)
    if any(info.flag_bits & 1 for info in files):
        _refuse(path, {"name": "an encrypted zip archive", "way_out": "unpack it with 7z x {file}"})
    if len(files) != 1:
        name = f"a zip archive of {len(files):,} files"
        _refuse(path, {"name": name, "way_out": "unpack it with unzip {file}, and give its files with --logs"})
    return files[0]


def _refuse(path: Path, kind: dict[str, Any]) -> NoReturn:
    way_out = kind["way_out"].replace("{python}", shlex.quote(sys.executable)).replace("{file}", shlex.quote(path.name))
    raise InputError(f"{path} is {kind['name']}: {way_out}")
