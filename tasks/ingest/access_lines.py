"""Splits access-log lines into fields by a regular expression with named groups: `ingest.access_pattern`, or one of the
layouts below, recognised by the first lines.

    HOST IDENT USER [TIME] "METHOD URL PROTOCOL" STATUS BYTES "REFERER" "AGENT" ...        Common, Combined, more at the end
    SITE[:PORT] HOST IDENT USER [TIME] ...                                                 vhost_combined, vhost_common

SITE becomes part of the page. Inside quotes servers write \\" and \\\\, which do not end a field.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from surf2vec.trainer.errors import InputError

NO_ACCESS_LINE = "not an access-log line"
FITS_NO_PATTERN = "does not fit ingest.access_pattern"
ACCESS_LINE = re.compile(r'.*\[[^\]]+\] "[^"]*" \d{3}(?: |$)')  # anything may precede the time
_QUOTED = r'(?:[^"\\]|\\.)*'
_USER = r'(?:- [^"\n]*|[^ "\n]+ [^ "\n]+ )'  # IDENT, nearly always -, and USER, which may have spaces
_REST = (
    rf'\[(?P<time>[^\]"]+)\] "(?P<method>(?:[^"\\ ]|\\.)*)(?: (?P<url>{_QUOTED}?))?(?: HTTP/{_QUOTED})?" '
    rf'(?P<status>[1-9][0-9][0-9])(?: [^ \n]+(?: "{_QUOTED}" "(?P<agent>{_QUOTED})"?)?)?(?: |\n|$)'
)
_NAME = r"(?:[A-Za-z0-9_-]+\.)+[A-Za-z_][A-Za-z0-9_-]*"
_SITE = rf'(?:{_NAME}|localhost)(?::[0-9]+)?|[^ :"\n]+:[0-9]+|\[[0-9A-Fa-f:]+\]:[0-9]+|_'


class Layout(NamedTuple):
    """The pattern of a log's lines, and a description of the fields for people."""

    pattern: str
    fields: str


LAYOUTS = (  # the first that fits a line applies
    Layout(
        rf"^(?P<user>[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}}|\[[0-9A-Fa-f:.]+\]):[0-9]+ {_USER}{_REST}",
        "user: 1st field without its port, page: path of the request",
    ),
    Layout(rf"^(?P<user>[^ \n]*) {_USER}{_REST}", "user: 1st field, page: path of the request"),
    Layout(
        rf'^(?P<host>{_SITE}) (?P<user>[^ "\n]*[^- "\n][^ "\n]*) [^ "\n]+ [^"\n]+ {_REST}',
        "user: 2nd field, page: site (1st field) and path of the request",
    ),
)


def recognise_layout(path: Path, lines: Sequence[str]) -> Layout:
    """Return the layout of most of the first lines. Raises InputError if most fit none, as the user field is then unknown."""
    texts = pl.Series([line for line in lines if ACCESS_LINE.match(line)], dtype=pl.String)
    left, counts = texts, list[int]()
    for layout in LAYOUTS:
        fits = left.str.contains(layout.pattern)
        counts.append(int(fits.sum()))
        left = left.filter(~fits)
    number = max(counts)
    if 2 * number <= len(texts):
        raise InputError(
            f"{path} looks like an access log, but {len(texts) - number:,} of its first {len(texts):,} lines have no layout that "
            'is known (HOST IDENT USER [TIME] "METHOD URL PROTOCOL" STATUS BYTES, or a site and its port before it): say which '
            "field is the user with --set 'ingest.access_pattern=...', a regular expression with the groups (?P<user>...), "
            "(?P<url>...) and (?P<time>...)"
        )
    return LAYOUTS[counts.index(number)]


def split_fields(lines: pa.Table, pattern: str, schema: pa.Schema) -> pa.Table:
    """Return lines (line, text, rejected) as a table of `schema`, the one of delimited fields, without blank lines."""
    table = pl.DataFrame(lines)
    table = table.filter(pl.col("rejected").is_not_null() | (pl.col("text").str.strip_chars(" \t\r\n") != ""))
    table = table.with_columns(pl.col("text").str.extract_groups(pattern).alias("groups")).unnest("groups")
    table = table.rename({"host": "site"}, strict=False)
    missing = {*schema.names} - {"user_id", *table.columns}
    table = table.with_columns(pl.lit(None, pl.String).alias(name) for name in missing)
    fault = NO_ACCESS_LINE if any(layout.pattern == pattern for layout in LAYOUTS) else FITS_NO_PATTERN
    url = pl.col("url").fill_null("")
    url = url.str.replace_all("\\\\", "%5C", literal=True).str.replace_all('\\"', "%22", literal=True)
    fields = table.with_columns(
        pl.col("user").replace("-", "").alias("user_id"),  # servers write - for unknown values
        url.alias("url"),
        pl.coalesce("rejected", pl.when(pl.col("user").is_null()).then(pl.lit(fault))).alias("rejected"),
    )
    return fields.select(schema.names).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)
