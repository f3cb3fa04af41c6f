"""Lines of a web server's access log as fields, by a regular expression with named groups: one of the layouts here, which the
first lines tell, or the one that `ingest.access_pattern` gives.

    HOST IDENT USER [TIME] "METHOD URL PROTOCOL" STATUS BYTES "REFERER" "AGENT" ...        Common, Combined, more at the end
    SITE[:PORT] HOST IDENT USER [TIME] ...                                                 vhost_combined, vhost_common

The site of the latter is part of the page. Servers write \\" and \\\\ inside quotes, which do not end a field.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from trainer.errors import InputError

NO_ACCESS_LINE = "not an access-log line"
FITS_NO_PATTERN = "does not fit ingest.access_pattern"
_ACCESS_LINE = re.compile(r'.*\[[^\]]+\] "[^"]*" \d{3}(?: |$)')
_QUOTED = r'(?:[^"\\]|\\.)*'
_USER = r'(?:- [^"\n]*|[^ "\n]+ [^ "\n]+ )'  # IDENT, nearly always -, and USER, which may have spaces
_REST = (
    rf'\[(?P<time>[^\]"]+)\] "(?P<method>(?:[^"\\ ]|\\.)*)(?: (?P<url>{_QUOTED}?))?(?: HTTP/{_QUOTED})?" '
    rf'(?P<status>[1-9][0-9][0-9])(?: [^ \n]+(?: "{_QUOTED}" "(?P<agent>{_QUOTED})"?)?)?(?: |\n|$)'
)


@dataclass(frozen=True)
class Layout:
    """How the lines of a log are laid out, and what a person is told of it."""

    pattern: str
    fields: str


_NAME = r"(?:[A-Za-z0-9_-]+\.)+[A-Za-z_][A-Za-z0-9_-]*"
_SITE = rf'(?:{_NAME}|localhost)(?::[0-9]+)?|[^ :"\n]+:[0-9]+|\[[0-9A-Fa-f:]+\]:[0-9]+|_'
LAYOUTS = (  # the first that fits a line is the line's
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


def is_access_line(text: str) -> bool:
    """Whether a line looks like one of an access log, whatever is in front of its time."""
    return bool(_ACCESS_LINE.match(text))


def recognise_layout(path: Path, lines: Sequence[str]) -> Layout:
    """The layout that most of the first lines have. Raises InputError when most fit none: the user may be anywhere in them."""
    texts = pl.Series([line for line in lines if is_access_line(line)], dtype=pl.String)
    left, counts = texts, Counter[Layout]()
    for layout in LAYOUTS:
        fits = left.str.contains(layout.pattern)
        counts[layout] = int(fits.sum())
        left = left.filter(~fits)
    layout, number = max(counts.items(), key=lambda item: item[1])
    if 2 * number <= len(texts):
        raise InputError(
            f"{path} looks like an access log, but {len(texts) - number:,} of its first {len(texts):,} lines have no layout that "
            'is known (HOST IDENT USER [TIME] "METHOD URL PROTOCOL" STATUS BYTES, or a site and its port before it): say which '
            "field is the user with --set 'ingest.access_pattern=...', a regular expression with the groups (?P<user>...), "
            "(?P<url>...) and (?P<time>...)"
        )
    return layout


def check_fit(path: Path, lines: Sequence[str], pattern: str) -> None:
    """Raise InputError when a pattern fits none of the first lines of a log."""
    texts = pl.Series([line for line in lines if line.strip()], dtype=pl.String)
    if not texts.str.contains(pattern).any():
        raise InputError(
            f"ingest.access_pattern fits none of the first {len(texts):,} lines of {path}: mend the pattern, or leave the file "
            "out of --logs (names that end in .csv, .tsv, .jsonl or .parquet are read as what they say)"
        )


def split_fields(lines: pa.RecordBatch, pattern: str, schema: pa.Schema) -> pa.RecordBatch:
    """Lines (line, text, rejected) as a batch of the delimited fields' `schema`; blank lines are left out."""
    table = pl.DataFrame(lines)
    table = table.filter(pl.col("rejected").is_not_null() | (pl.col("text").str.strip_chars(" \t\r\n") != ""))
    fields = table["text"].str.extract_groups(pattern).struct.unnest()
    there = {name: fields[name] for name in fields.columns}
    fault = NO_ACCESS_LINE if any(layout.pattern == pattern for layout in LAYOUTS) else FITS_NO_PATTERN
    is_bad = there["user"].is_null()
    url = (
        there["url"]
        .fill_null("")
        .str.replace_all("\\\\", "%5C", literal=True)
        .str.replace_all('\\"', "%22", literal=True)
    )
    columns = {
        "line": table["line"],
        "user_id": there["user"].replace("-", ""),  # servers write - for what they do not know
        "url": _add_site(url, there["host"]) if "host" in there else url,
        "rejected": table["rejected"].fill_null(
            pl.select(pl.when(is_bad).then(pl.lit(fault)).otherwise(None)).to_series()
        ),
    }
    columns |= {name: there[name] for name in ("time", "method", "status", "agent") if name in there}
    nulls = pa.nulls(len(table), pa.string())
    arrays = [
        columns[name].to_arrow().cast(kind) if name in columns else nulls
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


def _add_site(url: pl.Series, site: pl.Series) -> pl.Series:
    """Paths as URLs of their site, whose port does not matter; of a nameless site they stay paths."""
    name = site.str.replace(r":[0-9]+$", "")
    has_site = url.str.starts_with("/") & ~name.is_in(["", "_", "-"])
    return pl.select(pl.when(has_site).then("http://" + name + url).otherwise(url)).to_series()
