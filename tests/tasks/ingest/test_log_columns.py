"""Columns: exact names first, no name that may be two, and all that are missing in one message with guesses."""

from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import ColumnsConfig
from surf2vec.tasks.ingest.formats import find_columns, guess_columns
from surf2vec.trainer.errors import InputError

PATH = Path("a.csv")
WANTED = ColumnsConfig()


def find(header: str, wanted: ColumnsConfig = WANTED) -> dict[str, str | None]:
    return find_columns(PATH, tuple(header.split(",")), wanted)


@pytest.mark.parametrize(
    ("header", "user"),
    [("User_ID,user_id,url,ts", "user_id"), ("user_id,User_ID,url,ts", "user_id"), ("USER_ID,url,ts", "USER_ID")],
)
def test_the_exact_name_comes_first(header: str, user: str) -> None:
    assert find(header)["user"] == user


def test_an_exact_name_comes_before_an_earlier_one_in_another_case() -> None:
    assert find("UID,host,url,ts", ColumnsConfig(user=("uid", "host")))["user"] == "host"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("User_ID,USER_ID,url,ts", r"'User_ID' and 'USER_ID', and 'user_id' may be either"),
        ("user_id,url,ts,Status,STATUS", r"'Status' and 'STATUS', and 'status' may be either"),
        ("user_id,user_id,url,ts", r"2 columns named 'user_id'"),
    ],
)
def test_what_may_be_two_columns_is_refused(header: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find(header)


def test_all_missing_columns_are_named_at_once_with_settings_to_paste() -> None:
    with pytest.raises(InputError) as caught:
        find("host,time,method,path,response,bytes")
    assert str(caught.value) == (
        "a.csv has no column 'user_id' for the user and no column 'url' for the URL and no column 'ts' for the time; it has "
        "'host', 'time', 'method', 'path', 'response', 'bytes'; perhaps --set ingest.columns.user=host "
        "--set ingest.columns.url=path --set ingest.columns.time=time, or take the order of the lines for the time with "
        "--set 'ingest.columns.time=[]'"
    )


@pytest.mark.parametrize(
    ("header", "guesses"),
    [
        (["Visitor ID", "Page URL", "Event Time"], {"user": "Visitor ID", "url": "Page URL", "time": "Event Time"}),
        (["ip", "request_uri", "timestamp"], {"user": "ip", "url": "request_uri", "time": "timestamp"}),
        (["usr_id", "pagelink", "date_time"], {"user": "usr_id", "time": "date_time"}),
        (["a", "b"], {}),
        (["session", "userid"], {"user": "userid"}),
    ],
)
def test_guesses(header: list[str], guesses: dict[str, Any]) -> None:
    found = guess_columns(header, ["user", "url", "time"])
    assert {role: found.get(role) for role in guesses} == guesses
    assert len(set(found.values())) == len(found)


def test_a_name_with_a_space_is_quoted_for_the_shell() -> None:
    with pytest.raises(InputError, match=r"--set 'ingest\.columns\.user=User ID'"):
        find("User ID,url,ts")


def test_what_looks_like_data_is_not_shown() -> None:
    with pytest.raises(InputError, match="its first line looks like data") as caught:
        find("someone@example.com,/a,2026")
    assert "someone" not in str(caught.value)
