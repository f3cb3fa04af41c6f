"""Finds the shape of a delimited log: its delimiter, the lines before its data, and whether it has a header."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.layouts import REQUIRED, find_by_fields

FIELDS_LINE = "#Fields:"
UNIT_SEPARATOR = "\x1f"  # stands for a delimiter of several characters
_DELIMITERS = (",", "\t", ";", "|", "::")


@dataclass(frozen=True)
class Shape:
    """How the lines of a delimited log are written.

    skipped_lines   lines before the data: comments, `sep=`, the header
    has_blanks      whether blanks follow the delimiters
    fields_line     `#Fields: ...` of a W3C log, whose lines with # are no data
    """

    delimiter: str = ","
    skipped_lines: int = 1
    has_blanks: bool = False
    fields_line: str = ""

    @property
    def is_w3c(self) -> bool:
        return bool(self.fields_line)

    @property
    def character(self) -> str:
        """The delimiter of the lines once several characters are replaced by one."""
        return self.delimiter if len(self.delimiter) == 1 else UNIT_SEPARATOR


def split_lines(lines: Iterable[str], shape: Shape) -> Iterator[list[str]]:
    """Yield the fields of lines, without the blanks that follow a delimiter if the shape has them."""
    for line in lines:
        text = line.replace(shape.delimiter, shape.character)
        try:
            yield from csv.reader([text], delimiter=shape.character, skipinitialspace=shape.has_blanks)
        except csv.Error:
            yield []


def find_shape(
    head: Sequence[str], is_tsv: bool, config: IngestConfig
) -> tuple[Shape, tuple[str, ...], list[list[str]]]:
    """Return the shape of a log with these first lines, the names of its columns, and its first rows.

    The delimiter is the one that gives the most wanted columns. Without a header, names are positions from 1, which a setting
    must use; in a header that lacks the name of the first column, that of the names of rows, it is empty.
    """
    start = next((at for at, line in enumerate(head) if line.strip() and not line.startswith("#")), 0)
    fields_line = next((line for line in reversed(head[:start]) if line.startswith(FIELDS_LINE)), "")
    if fields_line:
        delimiter = "\t" if "\t" in head[start] else " "
        shape = Shape(delimiter, start, fields_line=fields_line)
        return shape, tuple(fields_line.removeprefix(FIELDS_LINE).split()), _read_rows(head, shape)
    delimiters: Sequence[str] = ("\t",) if is_tsv else _DELIMITERS
    if head[start][:4].casefold() == "sep=" and head[start][4:]:
        delimiters, start = [head[start][4:]], start + 1
    first = head[start] if start < len(head) else ""
    shapes = [Shape(one, start + 1, has_blanks=f"{one} " in first) for one in delimiters]
    headers = {shape: tuple(name.strip() for name in next(split_lines([first], shape), [])) for shape in shapes}
    shape = max(shapes, key=lambda one: (count_wanted(headers[one], config), len(headers[one])))
    header = headers[shape]
    if any(name.isdecimal() and name not in header for role in REQUIRED for name in getattr(config.columns, role)):
        shape, header = replace(shape, skipped_lines=start), tuple(str(at + 1) for at in range(len(header)))
    rows = _read_rows(head, shape)
    if rows and all(len(row) == len(header) + 1 for row in rows) and header:
        header = ("", *header)
    return shape, header, rows


def count_wanted(header: Sequence[str], config: IngestConfig) -> int:
    """Return how many of user, url and time are among these names: by the settings, or all if a layout fits them."""
    names = {name.casefold() for name in header}
    wanted = [getattr(config.columns, role) for role in REQUIRED]
    found = sum(not one or any(name.casefold() in names for name in one) for one in wanted)
    return len(REQUIRED) if found < len(REQUIRED) and find_by_fields(header, config) else found


def _read_rows(head: Sequence[str], shape: Shape) -> list[list[str]]:
    lines = [line for line in head[shape.skipped_lines :] if line.strip()]
    return list(split_lines(lines, shape))
