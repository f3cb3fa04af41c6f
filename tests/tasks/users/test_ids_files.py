"""Lists of users: a line each, or a column."""

from pathlib import Path

import polars as pl
import pytest

from surf2vec.tasks.config import ColumnsConfig
from surf2vec.tasks.users.ids_files import read_ids
from surf2vec.trainer.errors import InputError

COLUMNS = ColumnsConfig()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ids.txt", b"\xef\xbb\xbfbob\r\n\r\nann \r\nbob"),
        ("ids", b"bob\nann \n\n   \nbob\n"),
        ("ids.csv", b'n,user_id\n1,bob\n2,"ann "\n3,\n4,bob\n'),
        ("ids.tsv", b"user_id\tn\nbob\t1\nann \t2\n"),
    ],
)
def test_ids_stand_a_line_each_or_in_a_column(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_ids(tmp_path / name, COLUMNS) == ["ann ", "bob"]


def test_numbers_of_a_csv_or_parquet_file_are_ids_as_ingest_reads_them(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("host\n007\n7\n")
    assert read_ids(tmp_path / "ids.csv", ColumnsConfig(user=("host",))) == ["007", "7"]
    pl.DataFrame({"user_id": [7, None, 10**12]}).write_parquet(tmp_path / "ids.parquet")
    assert read_ids(tmp_path / "ids.parquet", COLUMNS) == ["1000000000000", "7"]
    pl.DataFrame({"user_id": [7.0, None, 1e17]}).write_parquet(tmp_path / "ids.parquet")
    assert read_ids(tmp_path / "ids.parquet", COLUMNS) == ["100000000000000000", "7"]
    pl.DataFrame({"user_id": ["é".encode()]}).write_parquet(tmp_path / "ids.parquet")
    assert read_ids(tmp_path / "ids.parquet", COLUMNS) == ["é"]
    pl.DataFrame({"user_id": [7.5]}).write_parquet(tmp_path / "ids.parquet")
    with pytest.raises(InputError, match="not whole"):
        read_ids(tmp_path / "ids.parquet", COLUMNS)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("ids.txt", b"\n  \n", "has no user id"),
        ("ids.txt", b"\xff\xfe", "cannot read the ids"),
        ("ids.csv", b"name\nann\n", "no column user_id, only name"),
        ("ids.parquet", b"PAR1", "cannot read the ids"),
        ("none.txt", None, "No such file"),
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path: Path, name: str, content: bytes | None, told: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=told):
        read_ids(tmp_path / name, COLUMNS)
