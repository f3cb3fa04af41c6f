"""Logs that are queries: their rows, days and identity, what they may not do, and what messages say."""

import re
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pytest

from surf2vec.infra import CODE
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.deliveries import check_shapes
from surf2vec.tasks.ingest.sql_logs import FOLDERS_ENV, choose_days
from surf2vec.trainer.errors import ConfigError, InputError, ResourceError
from surf2vec.trainer.system.files import read_json
from tests.roots.ingest import read_events, read_rejects, take_in, write_log

WINDOW = "select user_id, url, ts from 'e.csv' where ts >= $since and ts < $until + 1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Four days of five rows each."""
    write_day_rows(tmp_path, {1: "a", 2: "b", 3: "c", 4: "d"})
    return tmp_path


def write_day_rows(place: Path, pages: dict[int, str]) -> None:
    rows = (f"u{n % 3},/{page}{n},2020-11-0{day}T09:0{n}:00Z" for day, page in pages.items() for n in range(5))
    write_log(place / "e.csv", *rows)


def write_query(place: Path, text: str) -> str:
    (place / "shop.sql").write_text(text)
    return str(place / "shop.sql")


def read(place: Path, text: str, first: int = 1, last: int = 4, **settings: Any) -> list[int]:
    """The counts of new, replaced and known sources, lines and events of a query of these days."""
    days = (date(2020, 11, first), date(2020, 11, last))
    told = take_in(place / "root", write_query(place, text), days=days, **settings)
    return [told[f"sources_{name}"] for name in ("new", "replaced", "known")] + [told["lines"], told["events"]]


def names(place: Path) -> list[str]:
    return [one["name"].removeprefix(f"{place}/") for one in read_json(place / "root" / "sources.json")["sources"]]


def test_the_days_of_a_query_are_sources(place: Path) -> None:
    assert read(place, f"{WINDOW} -- ; the window\n; -- the end") == [4, 0, 0, 20, 20]
    assert names(place) == [f"shop.sql day 2020-11-0{day}" for day in (1, 2, 3, 4)]
    take_in(place / "here", place / "e.csv")
    events = [[event[:3] for event in read_events(place / name)] for name in ("root", "here")]
    assert events[0] == events[1]


def test_a_changed_day_is_replaced_and_days_before_the_window_stay(place: Path) -> None:
    read(place, WINDOW)
    assert read(place, WINDOW) == [0, 0, 4, 20, 20]
    write_day_rows(place, {4: "d", 3: "x", 2: "b", 5: "e"})  # another order of the days is no change
    assert read(place, WINDOW, 2, 5) == [1, 1, 2, 20, 20]
    items = {item for _, item, *_ in read_events(place / "root")}
    assert items & {"/a0", "/x0", "/e0", "/c0"} == {"/a0", "/x0", "/e0"}


def test_a_day_that_lost_its_rows_stays_and_is_named(place: Path) -> None:
    read(place, WINDOW)
    write_day_rows(place, {1: "a", 2: "b", 4: "d"})
    with pytest.raises(InputError, match=r"shop\.sql day 2020-11-03 has no rows; when it was delivered before, it had"):
        read(place, WINDOW)
    assert len(names(place)) == 4


def test_without_the_window_all_rows_are_one_source(place: Path) -> None:
    text = "select user_id, url, ts from 'e.csv' order by {}"
    assert read(place, text.format("ts")) == [1, 0, 0, 20, 20]
    assert read(place, text.format("ts")) == [0, 0, 1, 20, 20]
    write_day_rows(place, {4: "d", 3: "c", 2: "b", 1: "a"})
    assert read(place, text.format("ts")) == [0, 0, 1, 20, 20]
    write_day_rows(place, {4: "d", 3: "c"})
    assert read(place, text.format("ts")) == [0, 1, 0, 10, 10]
    assert names(place) == ["shop.sql"]


def test_without_a_time_the_order_of_the_rows_counts(place: Path) -> None:
    text = "select user_id, url from 'e.csv'"
    assert read(place, text) == [1, 0, 0, 20, 20]
    write_day_rows(place, {4: "d", 3: "c", 2: "b", 1: "a"})
    assert read(place, text) == [0, 1, 0, 20, 20]


def test_a_window_without_rows_is_named(place: Path) -> None:
    message = (
        r"shop\.sql returns no rows: its days are 2020-12-01 to 2020-12-04 in UTC, by --since, --until and window_days"
    )
    with pytest.raises(InputError, match=message):
        take_in(place / "root", write_query(place, WINDOW), days=(date(2020, 12, 1), date(2020, 12, 4)))
    told = take_in(place / "root", place / "shop.sql", place / "e.csv", days=(date(2020, 12, 1), date(2020, 12, 4)))
    assert told["lines"] == 20
    (place / "other.sql").write_text("select user_id, url, ts from 'e.csv' where user_id = 'u9'")
    with pytest.raises(InputError, match=r"other\.sql returns no rows: leave it out"):
        take_in(place / "other", place / "other.sql")


@pytest.mark.parametrize("last", [4, 6])
def test_rows_without_a_time_count_as_those_of_the_newest_day(place: Path, last: int) -> None:
    text = (
        "select user_id, url, nullif(ts, timestamptz '2020-11-01 09:00:00+00') as ts from 'e.csv' where $since < $until"
    )
    assert read(place, text, 1, last, max_reject_ratio=0.1) == [4, 0, 0, 20, 19]
    assert read_rejects(place / "root") == [("shop.sql day 2020-11-04", 6, "time not readable")]
    with pytest.raises(InputError, match=r"20 rows that are not of 2020-11-01 to 2020-11-04"):
        read(place, "select user_id, url, null::date as ts from 'e.csv' where $since < $until")


def test_rows_are_events_rejects_or_left_out(place: Path) -> None:
    told = take_in(
        place / "root",
        write_query(
            place, "select nullif(user_id, 'u0') as user_id, if(url = '/a1', '\x01', url) as url, ts from 'e.csv'"
        ),
        max_reject_ratio=0.5,
    )
    assert told["lines"] == told["events"] + told["num_rejected"] + sum(told["left_out"].values()) == 20
    assert told["left_out"] == {"no user": 8}
    assert {source.rpartition("/")[2] for source, *_ in read_rejects(place / "root")} <= {"shop.sql"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select 1; select 2", r"shop\.sql has 2 statements: it must be one select"),
        ("-- nothing", "has 0 statements"),
        ("copy (select 1) to 'x.csv'", "is no select: it may only read, so take the COPY out"),
        ("install postgres", "is no select"),
        ("attach 'x.db' as x", "take the ATTACH out"),
        ("set memory_limit = '1TB'", "take the SET out"),
        ("with x as (insert into t values (1) returning *) from x", "'insert' in it|not SQL that DuckDB can read"),
        ("with x as (copy t to 'x') select 1", "'copy' in it|not SQL that DuckDB can read"),
        ("from query('select 1')", r"reads or calls query, which a query of logs may not"),
        ("from enable_logging()", r"reads or calls enable_logging"),
        ("select getenv('HOME') as user_id", r"reads or calls getenv"),
        ("from postgres_scan('host=x password=y', 'public', 't')", r"reads or calls postgres_scan"),
        ("select path as user_id, '/' as url from duckdb_databases", "calls duckdb_databases, which a query"),
        ("select file as user_id, '/' as url from system.main.PRAGMA_database_list", "reads or calls pragma_database_list"),
        ("with x as (from pg_catalog.pg_settings) select name as user_id, setting as url from x", "reads or calls pg_settings"),
        ("select current_setting('s3_secret_access_key') as user_id, '/' as url", r"reads or calls current_setting"),
        ("select user_id, url from e.csv where", "is not SQL that DuckDB can read: Parser Error: syntax error"),
        ("select user_id, url as page from 'e.csv'", "returns no column url; it returns user_id, page: name it with `as url`"),
        ("select usr, url from 'e.csv'", 'the query .* fails: Binder Error: Referenced column "usr" not found'),
        ("select [user_id] as user_id, url from 'e.csv'", r"returns user_id as VARCHAR\[\]: select one value"),
        ("select user_id, {'path': url} as url from 'e.csv'", r"returns url as STRUCT\(path VARCHAR\)"),
        ("select user_id, url, true as ts from 'e.csv'", "returns ts as BOOLEAN"),
        ("select user_id, url from 'nothing.csv'", "nothing.csv"),
        ("select user_id, url, ts from 'e.csv' where ts > $day", r"has the parameter 'day': there are \$since and \$until"),
        ("select user_id, url from 'e.csv' where ts > $since", "returns no column ts"),
        ("select user_id, url, ts::text as ts from 'e.csv' where ts > $since", "such as ts::timestamptz as ts"),
        ("select user_id, url, epoch(ts)::int as ts from 'e.csv' where ts > $since", r"such as to_timestamp\(ts\) as ts"),
    ],
)  # fmt: skip
def test_what_a_query_may_not_do_is_said_before_anything_starts(place: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_shapes([write_query(place, text)], IngestConfig())


def test_a_message_has_no_values(place: Path) -> None:
    with pytest.raises(InputError, match="ConversionException, whose text may have values") as caught:
        read(place, "select user_id::int as user_id, url, ts from 'e.csv'")
    assert "u0" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["select user_id, url, ts from 'e.csv' where ts >= $since", "select user_id, url, ts from 'e.csv'"]
)
def test_rows_that_would_count_twice_are_refused(place: Path, text: str) -> None:
    read(place, WINDOW)
    with pytest.raises(InputError, match="5 rows that are not of 2020-11-01 to 2020-11-03|was read with"):
        read(place, text, 1, 3)


def make_database(place: Path, monkeypatch: pytest.MonkeyPatch, made: str) -> str:
    """Make something in a DuckDB database that SHOP_DATABASE names; returns the setting that attaches it."""
    with duckdb.connect(str(place / "shop.duckdb")) as con:
        con.execute(f"create {made}")
    monkeypatch.setenv("SHOP_DATABASE", str(place / "shop.duckdb"))
    return "shop=SHOP_DATABASE"


def test_attached_databases_are_read_only_and_their_names_are_secret(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "select user_id, url, ts from shop.orders"
    with pytest.raises(ConfigError, match="SHOP_DATABASE, which is not set"):
        read(place, text, attach="shop=SHOP_DATABASE")
    attach = make_database(place, monkeypatch, f"table orders as from '{place}/e.csv'")
    assert read(place, text, attach=attach) == [1, 0, 0, 20, 20]
    monkeypatch.setenv("SHOP_DATABASE", "postgres:host=127.0.0.1 port=1 password=hunter2")
    with pytest.raises(
        ResourceError, match="the database 'shop', which SHOP_DATABASE names, cannot be attached"
    ) as caught:
        read(place, text, attach=attach)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "made",
    [
        "view orders as select path as user_id, '/' as url from duckdb_databases()",
        "view orders as from query('select path as user_id, 1 as url from duckdb_databases()')",
        "view orders as select database_name as user_id, '/' as url from duckdb_databases",
        "macro orders() as table select path as user_id, '/' as url from duckdb_databases()",
    ],
)
def test_views_and_macros_of_attached_databases_show_no_settings(
    place: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    attach = make_database(place, monkeypatch, made)
    with pytest.raises(InputError, match=r"orders of 'shop' calls or reads \w+, which no query of logs may"):
        read(place, "select user_id, url from shop.orders", attach=attach)


def test_views_of_attached_databases_are_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = f"view orders as select user_id, url, max(ts) as ts from '{place}/e.csv' group by all"
    attach = make_database(place, monkeypatch, made)
    assert read(place, "select user_id, url, ts from shop.orders", attach=attach) == [1, 0, 0, 20, 20]


def test_folders_confine_queries(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDERS_ENV, str(place))
    assert read(place, f"select user_id, url, ts from '{place}/e.csv'") == [1, 0, 0, 20, 20]
    with pytest.raises(InputError, match="may read only below"):
        read(place, "select 'u' as user_id, content as url from read_text('/etc/hostname')")
    for folders in (str(place / "root"), ""):
        monkeypatch.setenv(FOLDERS_ENV, folders)
        with pytest.raises(InputError, match="is in none of the folders"):
            read(place, "select user_id, url, ts from 'e.csv'")


def test_the_days_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_days(None, date(2026, 11, 8), 7) == (date(2026, 11, 2), date(2026, 11, 8))
    assert choose_days(date(2026, 11, 1), date(2026, 11, 8), 7)[0] == date(2026, 11, 1)
    first, last = choose_days(None, None, None)
    assert (first, (date.today() - last).days in (0, 1, 2)) == (date(1970, 1, 1), True)


def test_days_are_those_of_utc(place: Path) -> None:
    """A time without zone is in ingest.timezone: 00:30 in Berlin is of the day before."""
    text = "select user_id, url, timestamp '2020-11-02 00:30:00' as ts from 'e.csv' where $since is not null"
    read(place, text, 1, 3, timezone="Europe/Berlin")
    assert names(place) == ["shop.sql day 2020-11-01"]


def test_semicolons_and_dollars_in_texts_are_texts(place: Path) -> None:
    text = "select user_id, url || ';$day--' as url, ts from 'e.csv' where ts < $until + 1 -- é; ü\n; -- das Ende\n"
    assert read(place, text) == [4, 0, 0, 20, 20]


def test_an_extension_that_is_not_installed_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    with pytest.raises(InputError, match="DuckDB's extension iceberg is not installed"):
        read(place, "select user_id, url from iceberg_scan('table')")


def test_the_recipes_of_the_documents(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of files run on rows as they describe them; that of PostgreSQL on a DuckDB database."""
    struct, carts, warehouse = re.findall(r"```sql\n(.*?)```", (CODE / "docs" / "logs.md").read_text(), re.DOTALL)[:3]
    (place / "views").mkdir()
    (place / "sessions").mkdir()
    rows = "select {'id': user_id} as visitor, {'path': url} as page, ts as seen_at, 'view' as kind"
    with duckdb.connect(str(place / "shop.duckdb")) as con:
        con.execute(f"copy ({rows} from '{place}/e.csv') to '{place}/views/a.parquet'")
        con.execute(
            f"create table page_views as select user_id as visitor, url as page, ts as seen_at from '{place}/e.csv'"
        )
    events = '[{"item": "/a", "ms": 1604221200000}, {"item": "/b", "ms": 1604221260000}]'
    (place / "sessions" / "a.json").write_text(f'{{"session": 7, "events": {events}}}\n')
    monkeypatch.setenv("SHOP_DATABASE", str(place / "shop.duckdb"))
    assert read(place, struct) == [4, 0, 0, 20, 20]
    assert read(place, warehouse, attach="shop=SHOP_DATABASE") == [0, 4, 0, 20, 20]
    told = take_in(place / "carts", write_query(place, carts))
    assert (told["lines"], told["events"]) == (2, 2)
    assert [event[1] for event in read_events(place / "carts")] == ["/a", "/b"]
