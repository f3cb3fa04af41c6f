"""Distinct URLs as items, whole columns at once: the same that the rules make of each."""

import re

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surf2vec.tasks.ingest import make_items as source_pages
from surf2vec.tasks.ingest.make_items import ASSET_PATTERN, PLACEHOLDERS, find_pages
from surf2vec.tasks.release.url_rules import UrlRules, canonical_item
from tests.hostile.urls import draw_url

PAGES = [
    "https://www.a.example/b", "https://www.a.example/b/", "https://www.a.example/b//", "https://www.a.example",
    "https://www.a.example/", "https://www.a.example//", "http://www.a.example/b/", "https://www.www.a.example/b",
    "https://www.example", "https://www.a.example/index.html", "https://www.a.example/b/index.html/", "httpfoo/",
    "https://WWW.a.example/b", "https://WWW.A.example/b/", "https://www.a.example:443/b",
    "http://A.example:80/b/", "http://a.example:443/b", "https://a.example:443:443/b", "https://a.example:0443/b",
    "https://a.example:80/b", "https://www.a.example/ä/",
    "/b/", "www.a.example/", "http://a.example/www.b/", "https://www.a.example/b/../c", "http:///b/", "https://A.example",
    "http://A.example/B//C/", "HTTP://A.example/b", "https://A.example/b?c#d", "about:blank", "  ", "", "https://", "http://A",
    "https://\N{KELVIN SIGN}.example/a", "https://\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}.example/a", "id-7", "A/b\n",
    "https://a.example/b\n", "https://A.example/b\n",
]  # fmt: skip
HASH = "5f4dcc3b5aa765d61d8327deb882cf99"
RULES = [UrlRules(), UrlRules("host"), UrlRules("prefix", 2), UrlRules(keep_query=("c",)), UrlRules(mask_secrets=False)]
URL = st.randoms().map(draw_url)


def ALL(tokens: pl.Series) -> pl.Series:  # noqa: N802
    return tokens


def items_of(page_keys: pa.Array, rules: UrlRules) -> pa.Array:
    return find_pages(page_keys, rules, False, ALL)[0]


def rows_of(pages: tuple[pa.Array, pa.Array]) -> list[tuple[str | None, str | None]]:
    items, verdicts = pages
    return list(zip(items.to_pylist(), verdicts.to_pylist(), strict=True))


@pytest.mark.parametrize("rules", RULES)
def test_columns_are_what_the_rules_make_of_each(rules: UrlRules) -> None:
    assert items_of(pa.array(PAGES), rules).to_pylist() == [canonical_item(page, rules) for page in PAGES]


@pytest.mark.parametrize("width", [pa.string(), pa.large_string()])
def test_arrays_of_any_kind(width: pa.DataType) -> None:
    pages = ["https://www.a.example/b/", None, "/ä", "about:blank", "https://a.example", "7"]
    items = ["https://a.example/b", None, "/%C3%A4", None, "https://a.example/", "7"]
    array = pa.array(pages, width)
    for first in range(len(pages) + 1):
        for last in range(first, len(pages) + 1):
            made = items_of(array.slice(first, last - first), UrlRules())
            assert made.type == pa.large_string()
            assert made.to_pylist() == items[first:last]
    assert items_of(pa.array([], width), UrlRules()).to_pylist() == []
    assert items_of(pa.nulls(2, width), UrlRules()).to_pylist() == [None, None]
    assert rows_of(find_pages(pa.array([], width), UrlRules(), True, ALL)) == []


def test_nulls_stay_null_whatever_bytes_are_theirs() -> None:
    offsets, is_there = pa.array([0, 2, 4], pa.int32()).buffers()[1], pa.py_buffer(b"\x01")
    keys = pa.Array.from_buffers(pa.string(), 2, [is_there, offsets, pa.py_buffer(b"/a/b")])
    assert rows_of(find_pages(keys, UrlRules(), True, ALL)) == [("/a", None), (None, "no page")]


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = pa.array([*PAGES, f"/{HASH}", f"/x/{HASH}", f"/{HASH[::-1]}", None])
    whole = rows_of(find_pages(keys, UrlRules(), True, lambda tokens: tokens.filter(tokens == HASH)))
    monkeypatch.setattr(source_pages, "BATCH", 3)
    assert rows_of(find_pages(keys, UrlRules(), True, lambda tokens: tokens.filter(tokens == HASH))) == whole
    assert [item for item, _ in whole[-4:]] == [f"/{HASH}", f"/x/{HASH}", "/(token)", None]


def test_it_is_asked_once_who_has_a_token_and_only_where_there_is_one() -> None:
    asked: list[list[str]] = []

    def ask(tokens: pl.Series) -> pl.Series:
        asked.append(sorted(tokens))
        return tokens

    slug = "/how-to-make-the-best-sourdough-bread-at-home-in-2024"
    find_pages(pa.array([slug, "https://a.example" + slug, "7"]), UrlRules(), True, ask)
    find_pages(pa.array([f"/{HASH}"]), UrlRules(mask_secrets=False), True, ask)
    assert asked == []
    find_pages(pa.array([f"/{HASH}", f"https://a.example/{HASH}/x", slug]), UrlRules(), True, ask)
    assert asked == [[HASH]]


@given(st.lists(URL | st.none(), max_size=5), st.sampled_from(["", ".css", ".Woff2", ".js?", ".js/"]), st.booleans())
@example(["NaN", " Null", "NaN/"], "", False)
def test_verdicts_on_any_urls(urls: list[str | None], end: str, drops_assets: bool) -> None:
    keys = [None if url is None else url + end for url in urls]
    expected = []
    for key in keys:
        item = None if key is None else canonical_item(key, UrlRules())
        if key is None or key.strip().lower() in PLACEHOLDERS:
            verdict = "no page"
        elif drops_assets and re.search(ASSET_PATTERN.removesuffix("$") + r"\Z", re.split("[?#]", key)[0]):
            verdict = "static asset"
        else:
            verdict = None if item is not None else "not a page"
        expected.append((item, verdict))
    pages = find_pages(pa.array(keys, pa.string()), UrlRules(), drops_assets, lambda tokens: tokens[:0])
    assert rows_of(pages) == expected


def test_why_something_is_no_page() -> None:
    expected = {
        "/a": None, "https://www.example.com/b/": None, "about:blank": "not a page", "/logo.png": "static asset",
        "/x.css?v=1": "static asset", "/LOGO.GIF": "static asset", "/f.woff2": "static asset", "/a.html": None, "/css": None,
        "/a.js/b": None, "  ": "no page", "": "no page", None: "no page", "\t": "no page", "\u00a0": "no page", "-": "no page",
    }  # fmt: skip
    items, verdicts = find_pages(pa.array(list(expected)), UrlRules(), True, ALL)
    assert dict(zip(expected, verdicts.to_pylist(), strict=True)) == expected
    assert items.to_pylist()[:2] == ["/a", "https://example.com/b"]
    items, verdicts = find_pages(pa.array(list(expected)), UrlRules(), False, ALL)
    assert verdicts.to_pylist()[3:5] == [None, None]
    assert items.to_pylist()[3:5] == ["/logo.png", "/x.css"]
