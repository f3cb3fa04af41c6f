"""Splits lines into fields by the regular expression of a layout.

Inside quotes servers write \\" and \\\\, which do not end a field.
"""

import polars as pl
import pyarrow as pa

NO_ACCESS_LINE = "not an access-log line"
FITS_NO_PATTERN = "does not fit ingest.access_pattern"
FITS_NO_LAYOUT = "does not fit the layout"


def split_fields(lines: pa.Table, pattern: str, schema: pa.Schema, fault: str) -> pa.Table:
    """Return lines (line, text, rejected) as a table of `schema`, the one of delimited fields, without blank lines."""
    table = pl.DataFrame(lines)
    table = table.filter(pl.col("rejected").is_not_null() | (pl.col("text").str.strip_chars(" \t\r\n") != ""))
    table = table.with_columns(pl.col("text").str.extract_groups(pattern).alias("groups")).unnest("groups")
    table = table.rename({"host": "site"}, strict=False)
    missing = {*schema.names} - {"user_id", *table.columns}
    table = table.with_columns(pl.lit(None, pl.String).alias(name) for name in missing)
    url = pl.col("url").fill_null("")
    url = url.str.replace_all("\\\\", "%5C", literal=True).str.replace_all('\\"', "%22", literal=True)
    fields = table.with_columns(
        pl.col("user").replace("-", "").alias("user_id"),  # servers write - for unknown values
        url.alias("url"),
        pl.coalesce("rejected", pl.when(pl.col("user").is_null()).then(pl.lit(fault))).alias("rejected"),
    )
    return fields.select(schema.names).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)
