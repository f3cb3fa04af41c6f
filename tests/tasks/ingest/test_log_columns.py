"""Columns: exact names first, no name that may be two, and all that are missing in one message with guesses."""

from pathlib import Path

import pytest

from surf2vec.tasks.config import ColumnsConfig, IngestConfig
from surf2vec.tasks.ingest.columns import choose_columns, propose_columns
from surf2vec.trainer.errors import InputError

PATH = Path("a.csv")
WANTED = ColumnsConfig()


def find(header: str, wanted: ColumnsConfig = WANTED) -> dict[str, str | None]:
    return choose_columns(PATH, tuple(header.split(",")), IngestConfig(columns=wanted), lambda _: ["1", "2"])[0]


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
        ("User_ID,USER_ID,url,ts", r"2 columns that 'user_id' may be \(User_ID, USER_ID\)"),
        ("user_id,user_id,url,ts", r"2 columns that 'user_id' may be \(user_id, user_id\)"),
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
        "'host', 'time', 'method', 'path', 'response', 'bytes'; name them with --set ingest.columns.user=NAME "
        "--set ingest.columns.url=path --set ingest.columns.time=time, or take the order of the lines for the time with "
        "--set 'ingest.columns.time=[]'; a date in a column of its own is ingest.columns.date"
    )


@pytest.mark.parametrize(
    ("role", "name", "values", "is_proposed"),
    [
        ("user", "Visitor ID", ["1", "2"], True),
        ("user", "visitor", ["1", "1"], False),  # everybody is one user
        ("user", "uid", [str(n) for n in range(20)], False),  # a number of the row, not of a person
        ("user", "uid", ["", None], False),
        ("user", "user", ['{"id": 1}', '{"id": 2}'], False),
        ("user", "usr_id", ["1", "2"], False),  # not exactly a usual name
        ("user", "host", ["1", "2"], False),  # the site, or the client
        ("url", "page", ["/a", "/b"], True),
        ("time", "Event Time", ["2026-11-02", "2026-11-02"], True),
        ("time", "time", ["never", "soon"], False),
    ],
)
def test_a_setting_is_proposed_only_by_exact_names_and_values_that_may_be(
    role: str, name: str, values: list[str | None], is_proposed: bool
) -> None:
    found = propose_columns(["a", name], [role], {"a": ["x"], name: values}.__getitem__)
    assert found == ({role: name} if is_proposed else {})


def test_a_name_with_a_space_is_quoted_for_the_shell() -> None:
    with pytest.raises(InputError, match=r"--set 'ingest\.columns\.user=User ID'"):
        find("User ID,url,ts")


def test_what_looks_like_data_is_not_shown() -> None:
    with pytest.raises(InputError, match="its first line looks like data") as caught:
        find("someone@example.com,/a,2026")
    assert "someone" not in str(caught.value)


@pytest.mark.parametrize("key", ["192.0.2.1", "someone@example.com", "2001:db8::1"])
def test_keys_that_look_like_data_are_not_shown(key: str) -> None:
    with pytest.raises(InputError, match="no column 'user_id'|an object 'user_id'") as caught:
        find(f"user_id.{key},user_id.id,url,ts")
    assert key not in str(caught.value)
