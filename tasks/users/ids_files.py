"""Reads lists of user ids: one id per line, or a column of a CSV or Parquet file."""

from pathlib import Path

import polars as pl

from surf2vec.tasks.config import ColumnsConfig
from surf2vec.trainer.errors import InputError

_TABLES = (".csv", ".tsv", ".parquet")


def read_ids(path: Path, columns: ColumnsConfig) -> list[str]:
    """Return the distinct ids in a file, sorted and unchanged, without empty ones.

    `.csv`, `.tsv` and `.parquet` files have a header and the user column of the logs; any other file has one id per line.
    Raises InputError when the file cannot be read, has no such column, or has no id.
    """
    try:
        is_table = path.suffix in _TABLES  # in a text file, an id may begin or end with a space
        found = _read_column(path, columns) if is_table else path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"cannot read the ids in {path}: {reason}") from None
    ids = sorted({user_id for user_id in found if user_id.strip()})
    if not ids:
        raise InputError(f"{path} has no user id: give a file with one id a line")
    return ids


def _read_column(path: Path, columns: ColumnsConfig) -> list[str]:
    is_parquet, separator = path.suffix == ".parquet", "\t" if path.suffix == ".tsv" else ","
    table = pl.scan_parquet(path) if is_parquet else pl.scan_csv(path, infer_schema=False, separator=separator)
    header = table.collect_schema().names()
    name = next((name for name in columns.user if name in header), None)
    if name is None:
        raise InputError(
            f"{path} has no column {' or '.join(columns.user)}, only {', '.join(header)}: name it with "
            "--set ingest.columns.user=NAME"
        )
    ids = table.select(name).collect()[name].drop_nulls()
    if ids.dtype.is_float():  # pandas turns integers with gaps into floats; ingest undoes it too
        if not (ids == ids.round()).all():
            raise InputError(f"{path}: column {name!r} has numbers that are not whole: they are not user ids")
        ids = ids.cast(pl.Int128)
    return ids.cast(pl.String).to_list()
