"""Which files of a site and which agents are no visits, by literal examples."""

from collections.abc import Iterator

import duckdb
import pytest

from surf2vec.tasks.ingest.visits import ASSET_PATTERN, CRAWLER_PATTERN


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        yield con


@pytest.mark.parametrize(
    ("path", "is_asset"),
    [
        ("/a/b.css", True),
        ("/LOGO.GIF", True),
        ("/f.woff2", True),
        ("/a.html", False),
        ("/css", False),
        ("/a.js/b", False),
    ],
)
def test_assets(con: duckdb.DuckDBPyConnection, path: str, is_asset: bool) -> None:
    assert con.execute("select regexp_matches($s, $p)", {"s": path, "p": ASSET_PATTERN}).fetchall() == [(is_asset,)]


@pytest.mark.parametrize(
    ("agent", "is_crawler"),
    [
        ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", True),
        ("sample-crawler/1.4 (+https://www.crawler.example)", True),
        ("curl/8.5.0", True),
        ("python-requests/2.32", True),
        ("Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:146.0) Gecko/20100101 Firefox/146.0", False),
        ("Mozilla/5.0 (Linux; Android 13; CUBOT NOTE 30) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0", False),
        ("-", False),
    ],
)
def test_crawlers(con: duckdb.DuckDBPyConnection, agent: str, is_crawler: bool) -> None:
    assert con.execute("select regexp_matches($s, $p)", {"s": agent, "p": CRAWLER_PATTERN}).fetchall() == [
        (is_crawler,)
    ]
