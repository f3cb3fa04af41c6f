"""Which files of a site and which agents are no visits, by literal examples."""

import duckdb
import pytest

from surf2vec.tasks.ingest.visits import ASSET_PATTERN, CRAWLER_PATTERN


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (ASSET_PATTERN, "/a/b.css", True),
        (ASSET_PATTERN, "/LOGO.GIF", True),
        (ASSET_PATTERN, "/f.woff2", True),
        (ASSET_PATTERN, "/a.html", False),
        (ASSET_PATTERN, "/css", False),
        (ASSET_PATTERN, "/a.js/b", False),
        (CRAWLER_PATTERN, "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", True),
        (CRAWLER_PATTERN, "sample-crawler/1.4 (+https://www.crawler.example)", True),
        (CRAWLER_PATTERN, "curl/8.5.0", True),
        (CRAWLER_PATTERN, "python-requests/2.32", True),
        (CRAWLER_PATTERN, "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:146.0) Gecko/20100101 Firefox/146.0", False),
        (CRAWLER_PATTERN, "Mozilla/5.0 (Linux; Android 13; CUBOT NOTE 30) AppleWebKit/537.36 Chrome/120.0", False),
        (CRAWLER_PATTERN, "-", False),
    ],
)
def test_assets_and_crawlers(pattern: str, text: str, matches: bool) -> None:
    with duckdb.connect() as con:
        assert con.execute("select regexp_matches($s, $p)", {"s": text, "p": pattern}).fetchall() == [(matches,)]
