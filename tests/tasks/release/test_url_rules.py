"""URL → item: a table of literal examples. What must hold for any URL: tests/hostile/urls.py."""

import gzip
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from random import Random

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.release.url_rules import TOKEN_PATTERN, UrlRules, canonical_item, find_tokens
from tests.hostile.urls import Found, check_batch, connect_with_cut

PAGE = UrlRules()
ID = UrlRules(keep_query=("id",))
DEPTH_2 = UrlRules("prefix", 2)


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
        # As browsers read it.
        ("https://e.com\\@evil.com/x", "https://e.com/@evil.com/x"),
        ("https://e.com\\x\\..\\y", "https://e.com/y"),
        ("http:\\\\e.com/x", "http://e.com/x"),
        ("http:///e.com/x", "http://e.com/x"),
        ("https://a@b@e.com/x", "https://e.com/x"),
        ("https://e.com#@evil.com/x", "https://e.com/"),
        ("https://faß.de/", "https://xn--fa-hia.de/"),
        ("https://fass.de/", "https://fass.de/"),
        ("https://www.BÜCHER.example/", "https://xn--bcher-kva.example/"),
        ("https://www.foo。example/", "https://foo.example/"),
        ("https://e%2Dx.com/a", "https://e-x.com/a"),
        ("http://0x7f.1/a", "http://127.0.0.1/a"),
        ("https://e.com:00443/a", "https://e.com/a"),
        ("https://e.com/a\tb", "https://e.com/ab"),
        ("https://e.com/a/%2E./.%2e/b/%2e", "https://e.com/b"),
        ("app://Foo.example/../x", "app://Foo.example/x"),
        # Paths: the normal form of RFC 3986, and nothing else.
        ("/", "/"),
        ("/a/b/", "/a/b/"),
        ("/a/index.html", "/a/index.html"),
        ("/a/../b", "/b"),
        ("/a?x=1#y", "/a"),
        ("/wiki/%c3%85land", "/wiki/%C3%85land"),
        ("/wiki/Åland", "/wiki/%C3%85land"),
        ("//cdn/a", "//cdn/a"),
        ("/a\\b", "/a/b"),
        # Page ids pass.
        ("214536502", "214536502"),
        ("Who_is_it?", "Who_is_it?"),
        ("C#", "C#"),
        ("100% Wolf", "100% Wolf"),
        ("Data: a primer", "Data: a primer"),
        ("www.example.com/a/", "www.example.com/a/"),
        ("article.php?id=3&session=x", "article.php"),
        ("ISBN:123", "ISBN:123"),
        ("shop.example.de/kontakt", "shop.example.de/kontakt"),
        ("shop.example.de/kontakt/?utm_source=x", "shop.example.de/kontakt/"),
        ("HTTP:_The_Definitive_Guide", "HTTP:_The_Definitive_Guide"),
        ("%C3%81edan_mac_Gabr%C3%A1in", "%C3%81edan_mac_Gabr%C3%A1in"),
        ("5f4dcc3b5aa765d61d8327deb882cf99", "5f4dcc3b5aa765d61d8327deb882cf99"),
        ("x:/;jsessionid=7/B/../a", "x://B/a"),  # without its session id it is a URL
        # Not a page.
        ("-?x=1", None),
        ("about:blank", None),
        ("javascript:void(0)", None),
        ("JavaScript:alert('http://x')", None),
        ("data:text/html,hi", None),
        ("mailto:someone@example.com", None),
        ("chrome://newtab/", None),
        ("file:///home/someone/x.html", None),
        ("http://", None),
        ("https://:443/a", None),
        ("http://./a", None),
        ("http://exa mple.com/a", None),
        ("https://example.com:99999/a", None),
        ("-", None),
        (" -\n", None),
        ("\t", None),
        ("\u00a0", None),
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


@pytest.mark.parametrize(
    ("url", "rules"),
    [
        ("http://www.www.w/", PAGE), ("http://h/index.html/index.html", PAGE), ("http://h/%25%32%65", PAGE),
        ("a?b=1?c=2", ID), ("http://faß.example/%2E./a", PAGE), ("http://1../a", PAGE), ("https://www.a.example.:443/", PAGE),
        ("https://a.example/b//c", DEPTH_2), ("//b", DEPTH_2), ("/b//", DEPTH_2), ("https://a.example//b", DEPTH_2),
        ("https://a.example/b/c/d/", DEPTH_2), ("/eyJhbGciOiJ.b.c", PAGE), ("https://a.example/eyJhbGciOiJ.b.c/", PAGE),
        ("https://www.1.2/a", PAGE), ("https://a..example/b", PAGE), ("https://xn--a.example/", PAGE), ("https://-/", PAGE),
    ],
)  # fmt: skip
def test_what_holds_for_any_url_holds_where_it_did_not_once(
    con: duckdb.DuckDBPyConnection, url: str, rules: UrlRules
) -> None:
    """Any: tests/hostile/urls.py."""
    found = Found()
    check_batch(con, [url], rules, found)
    assert found.faults == []


HASH = "5f4dcc3b5aa765d61d8327deb882cf99"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


@pytest.mark.parametrize(
    ("url", "item"),
    [
        ("https://example.com/u/jane.doe@example.org/edit", "https://example.com/u/(email)/edit"),
        ("https://example.com/u/jane%2Edoe%40example%2Eorg", "https://example.com/u/(email)"),
        ("https://example.com/unsubscribe/mail=j+x@mail.example.org", "https://example.com/unsubscribe/(email)"),
        ("/u/jürgen@bücher.example/x", "/u/(email)/x"),
        ("jane@example.org", "(email)"),
        ("https://example.com/@jane/status", "https://example.com/@jane/status"),
        ("https://example.com/npm/react@18.2.0", "https://example.com/npm/react@18.2.0"),
        ("https://example.com/shop/cart.jsp;jsessionid=1A2B.node1", "https://example.com/shop/cart.jsp"),
        ("https://example.com/shop;v=1;JSESSIONID=1A2B/cart;x=2", "https://example.com/shop;v=1/cart;x=2"),
        ("https://example.com/index.jsp%3bjsessionid=1A2B?x", "https://example.com/"),
        ("/shop/cart.do;jsessionid=1A2B", "/shop/cart.do"),
        ("cart.do;jsessionid=1A2B?x=1", "cart.do"),
        (f"https://example.com/verify/{JWT}", "https://example.com/verify/(token)"),
        (f"/verify/{JWT}/", "/verify/(token)/"),
        (f"https://example.com/reset/{HASH}/x", "https://example.com/reset/(token)/x"),
        (f"https://example.com/{HASH.upper()}.html", "https://example.com/(token).html"),
        ("/s/550e8400-e29b-41d4-a716-446655440000", "/s/(token)"),
        ("/s/kR3vT9wXz1QmN8bLp5YcHs2Df7Gj4AuE", "/s/(token)"),
        ("/s/Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZmdoaWo%3D", "/s/(token)"),
        (f"/s/é{HASH}/x", "/s/%C3%A9(token)/x"),  # no character is cut in half
        ("https://example.com/a/..;jsessionid=1A2B/b", "https://example.com/b"),  # a dot segment comes to light
        ("/a/.;jsessionid=1A2B/b", "/a/b"),
        # What is none: short, words, or a page id.
        ("/s/5f4dcc3b5aa765d61d8327deb882cf9", "/s/5f4dcc3b5aa765d61d8327deb882cf9"),
        ("/wiki/List_of_Nobel_laureates_in_Physics_1901", "/wiki/List_of_Nobel_laureates_in_Physics_1901"),
        ("/p/best-smartphones-of-2024-under-500-euro-5g-4k-8gb-ram", "/p/best-smartphones-of-2024-under-500-euro-5g-4k-8gb-ram"),
        (HASH, HASH),
    ],
)  # fmt: skip
def test_secrets_in_paths_are_masked(url: str, item: str) -> None:
    assert canonical_item(url, PAGE) == item
    unmasked = canonical_item(url, UrlRules(mask_secrets=False))
    assert canonical_item(unmasked or "", UrlRules(mask_secrets=False)) == unmasked
    assert "(" not in (unmasked or "")


def test_a_token_that_several_users_have_is_a_page() -> None:
    shared = frozenset([HASH])
    assert canonical_item(f"/doc/{HASH}", PAGE, shared) == f"/doc/{HASH}"
    assert canonical_item(f"/doc/{HASH[::-1]}", PAGE, shared) == "/doc/(token)"
    assert canonical_item(f"/doc/{JWT}", PAGE, frozenset(find_tokens(f"/{JWT}"))) == "/doc/(token)"


def test_kept_values_are_masked() -> None:
    rules = UrlRules(keep_query=("id", "to"))
    url = f"https://example.com/?to=jane%40example.org&id={JWT}"
    assert canonical_item(url, rules) == "https://example.com/?id=(token)&to=(email)"
    assert canonical_item(f"https://example.com/?id={HASH}", rules) == f"https://example.com/?id={HASH}"


def test_random_tokens_are_told_from_words() -> None:
    draws = Random(1)
    texts = [urlsafe_b64encode(draws.randbytes(24)).decode() for _ in range(2000)]
    missed = [text for text in texts if find_tokens(f"/{text}") != [text]]
    assert len(missed) < 20


@given(st.from_regex(TOKEN_PATTERN, fullmatch=True, alphabet=st.characters(codec="ascii")))
def test_sql_finds_the_same_tokens(con: duckdb.DuckDBPyConnection, run: str) -> None:
    [(found,)] = con.execute(
        "select regexp_extract_all($path, $pattern)", {"path": f"/a/{run}/b", "pattern": TOKEN_PATTERN}
    ).fetchall()
    assert found == [run]
    assert find_tokens(f"/a/{run}/b") in ([], [run])


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect_with_cut() as con:
        yield con


@pytest.mark.parametrize(
    "name", ["entree", "gowalla_test", "gowalla_train", "msnbc", "wikispeedia_unfinished", "yoochoose_100k"]
)
def test_paths_and_page_ids_of_real_logs_come_out_as_they_went_in(data_dir: Path, name: str) -> None:
    path = str(data_dir / f"{name}.parquet")
    with duckdb.connect() as con:
        urls = [url for (url,) in con.execute("select distinct url from read_parquet($p)", {"p": path}).fetchall()]
    changed = [url for url in urls if "?" not in url and canonical_item(url, PAGE) != url]
    assert changed == []


def test_in_a_real_access_log_nothing_is_taken_for_a_secret(data_dir: Path) -> None:
    text = gzip.decompress((data_dir / "nasa_19950801.tsv.gz").read_bytes()).decode(errors="replace")
    paths = set(re.findall(r"(?<=\t)/[^\t]*", text))
    assert len(paths) > 1000
    unmasked = UrlRules(mask_secrets=False)
    assert [path for path in paths if canonical_item(path, PAGE) != canonical_item(path, unmasked)] == []
