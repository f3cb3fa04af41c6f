"""URL → item: a table of literal examples, and what must hold for any URL."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sql.runner import create_macro
from tasks.urls import ASSET_PATTERN, CRAWLER_PATTERN, UrlRules, canonical_item

PAGE = UrlRules()
ID = UrlRules(keep_query=("id",))
URL_CHARACTERS = "abcZ019-._~%/:?#[]@!$&'()*+,;= \t\"<>\\^`{|}é\u00a0世\x00wWiI"
URLS = st.one_of(
    st.text(st.sampled_from(URL_CHARACTERS), max_size=40),
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(
            [
                "http://",
                "HTTPS://",
                "https://www.",
                "ftp://u:p@",
                "//",
                "/",
                "",
                "http://[::1]:80",
                "about:",
                "chrome://",
            ]
        ),
        st.text(st.sampled_from("aB9-.:@wé%"), max_size=12),
        st.text(st.sampled_from("/.aB%2Ee~ é;=+"), max_size=20)
        | st.sampled_from(["/index.html", "/a/../b/", "/default.ASP/"]),
        st.sampled_from(["", "?", "?id=1", "?b=2&id=3&ID=4&id=2", "#x", "?id=%7e#y", "?x=1", "#a?b=1"]),
    ),
)
RULES = st.builds(
    UrlRules,
    st.sampled_from(["page", "prefix", "host"]),
    st.integers(1, 3),
    st.sampled_from([(), ("id",), ("b", "id")]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("url", "item"),
    [
        ("HTTPS://Example.COM/Path", "https://example.com/Path"),
        ("https://www.example.com/a", "https://example.com/a"),
        ("https://www.www.example.com/a", "https://example.com/a"),
        ("https://www.com/a", "https://www.com/a"),
        ("http://example.com:80/a", "http://example.com/a"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("http://example.com:443/a", "http://example.com:443/a"),
        ("http://example.com:8080/a", "http://example.com:8080/a"),
        ("http://example.com:/a", "http://example.com/a"),
        ("http://[2001:DB8::1]:80/a", "http://[2001:db8::1]/a"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a"),
        ("https://user:secret@example.com/a", "https://example.com/a"),
        ("http://example.com./a", "http://example.com/a"),
        ("http://Bücher.example/ä", "http://xn--bcher-kva.example/%C3%A4"),
        ("https://example.com", "https://example.com/"),
        ("https://example.com/", "https://example.com/"),
        ("https://example.com/?utm_source=x", "https://example.com/"),
        ("https://example.com/a/", "https://example.com/a"),
        ("https://example.com/a//", "https://example.com/a"),
        ("https://example.com/index.html", "https://example.com/"),
        ("https://example.com/a/Index.PHP", "https://example.com/a"),
        ("https://example.com/a/default.aspx?x=1", "https://example.com/a"),
        ("https://example.com/a/index.html/", "https://example.com/a"),
        ("https://example.com/a/myindex.html", "https://example.com/a/myindex.html"),
        ("https://example.com/index", "https://example.com/index"),
        ("https://example.com/a/./b/../c", "https://example.com/a/c"),
        ("https://example.com/../../a", "https://example.com/a"),
        ("https://example.com/a/..", "https://example.com/"),
        ("https://example.com/%2E%2E/a", "https://example.com/a"),
        ("https://example.com/%7euser/%e4%b8%96", "https://example.com/~user/%E4%B8%96"),
        ("https://example.com/世 界", "https://example.com/%E4%B8%96%20%E7%95%8C"),
        ("https://example.com/100%", "https://example.com/100%25"),
        ("https://example.com/100%zz", "https://example.com/100%25zz"),
        ("https://example.com/a%2fb", "https://example.com/a%2Fb"),
        ("https://example.com/a?b=1&c=2", "https://example.com/a"),
        ("https://example.com/a?", "https://example.com/a"),
        ("https://example.com/a#section", "https://example.com/a"),
        ("https://example.com/a#section?x=1", "https://example.com/a"),
        ("  https://example.com/a\n", "https://example.com/a"),
        ("https://example.com/a ?x", "https://example.com/a"),
        ("ftp://example.com:21/a", "ftp://example.com/a"),
        # Paths: the normal form of RFC 3986, and nothing else.
        ("/", "/"),
        ("/a/b/", "/a/b/"),
        ("/a/index.html", "/a/index.html"),
        ("/a/../b", "/b"),
        ("/a?x=1#y", "/a"),
        ("/wiki/%c3%85land", "/wiki/%C3%85land"),
        ("/wiki/Åland", "/wiki/%C3%85land"),
        ("//cdn/a", "//cdn/a"),
        # Page ids pass.
        ("214536502", "214536502"),
        ("Who_is_it?", "Who_is_it?"),
        ("C#", "C#"),
        ("100% Wolf", "100% Wolf"),
        ("Data: a primer", "Data: a primer"),
        ("www.example.com/a/", "www.example.com/a/"),
        ("article.php?id=3&session=x", "article.php"),
        ("ISBN:123", "ISBN:123"),
        # Not a page.
        ("about:blank", None),
        ("javascript:void(0)", None),
        ("JavaScript:alert('http://x')", None),
        ("data:text/html,hi", None),
        ("mailto:someone@example.com", None),
        ("chrome://newtab/", None),
        ("file:///home/someone/x.html", None),
        ("http://", None),
        ("http:///a", None),
        ("https://:443/a", None),
        ("?x=1", None),
    ],
)
def test_pages(url: str, item: str | None) -> None:
    assert canonical_item(url, PAGE) == item


@pytest.mark.parametrize(
    ("url", "item"),
    [
        ("https://example.com/a?utm=1&id=3", "https://example.com/a?id=3"),
        ("https://example.com/a/?id=3#x", "https://example.com/a?id=3"),
        ("https://example.com/a?id=", "https://example.com/a?id="),
        ("https://example.com/a?identity=3", "https://example.com/a"),
        ("https://example.com/?%69d=%7e1", "https://example.com/?id=~1"),
        ("/a?id=3&x=1", "/a?id=3"),
        ("article.php?session=x&id=3", "article.php?id=3"),
    ],
)
def test_kept_query(url: str, item: str) -> None:
    assert canonical_item(url, ID) == item


def test_kept_keys_are_sorted_and_their_values_are_not() -> None:
    rules = UrlRules(keep_query=("b", "a"))
    assert canonical_item("https://example.com/?b=2&a=9&c=5&a=1", rules) == "https://example.com/?a=9&a=1&b=2"


@pytest.mark.parametrize(
    ("url", "depth_1", "depth_2", "host"),
    [
        (
            "https://www.example.com/a/b/c?id=1",
            "https://example.com/a",
            "https://example.com/a/b",
            "https://example.com/",
        ),
        ("https://example.com/a/index.html", "https://example.com/a", "https://example.com/a", "https://example.com/"),
        ("https://example.com", "https://example.com/", "https://example.com/", "https://example.com/"),
        ("/a/b/c/", "/a", "/a/b", "/"),
        ("214536502", "214536502", "214536502", "214536502"),
        ("about:blank", None, None, None),
    ],
)
def test_granularity(url: str, depth_1: str, depth_2: str, host: str) -> None:
    assert canonical_item(url, UrlRules("prefix", 1, ("id",))) == depth_1
    assert canonical_item(url, UrlRules("prefix", 2)) == depth_2
    assert canonical_item(url, UrlRules("host")) == host


@given(URLS, RULES)
@example("http://www.www.w/", PAGE)
@example("http://h/index.html/index.html", PAGE)
@example("http://h/%25%32%65", PAGE)
@example("a?b=1?c=2", ID)
def test_an_item_is_its_own_item(url: str, rules: UrlRules) -> None:
    item = canonical_item(url, rules)
    assert item is None or canonical_item(item, rules) == item


@given(URLS)
def test_secrets_do_not_get_into_items(url: str) -> None:
    assert "sesame" not in (canonical_item(f"https://user:sesame@example.com/a?token=sesame#{url}", PAGE) or "")


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        create_macro(con, "staging/page_key", ("url", "keeps_query", "max_url_bytes"))
        yield con


@given(URLS)
def test_the_cut_of_sql_changes_no_item(con: duckdb.DuckDBPyConnection, url: str) -> None:
    [(key,)] = con.execute("select page_key($url, false, 8192)", {"url": url}).fetchall()
    assert canonical_item(key, PAGE) == canonical_item(url, PAGE)


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


@pytest.mark.parametrize(
    "name", ["entree", "gowalla_test", "gowalla_train", "msnbc", "wikispeedia_unfinished", "yoochoose_100k"]
)
def test_paths_and_page_ids_of_real_logs_come_out_as_they_went_in(data_dir: Path, name: str) -> None:
    path = str(data_dir / f"{name}.parquet")
    with duckdb.connect() as con:
        urls = [url for (url,) in con.execute("select distinct url from read_parquet($p)", {"p": path}).fetchall()]
    changed = [url for url in urls if "?" not in url and canonical_item(url, PAGE) != url]
    assert changed == []
