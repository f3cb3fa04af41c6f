"""Distinct URLs as items, whole columns at once: the same that the rules make of each."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.source_pages import canonical_items, find_pages
from tasks.urls import UrlRules, canonical_item

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
RULES = [UrlRules(), UrlRules("host"), UrlRules("prefix", 1), UrlRules(keep_query=("c",))]
URL = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["https://", "http://", "HTTPS://", "", "/", "https:/"]),
    st.sampled_from(["www.", "WWW.", "www.www.", ""]),
    st.text("aAwW.:@43ä-", max_size=6),
    st.text("/.abAB?#%2 ä\n", max_size=10),
)


@pytest.mark.parametrize("rules", RULES)
def test_columns_are_what_the_rules_make_of_each(rules: UrlRules) -> None:
    assert canonical_items(pl.Series(PAGES), rules).to_list() == [canonical_item(page, rules) for page in PAGES]


@given(st.lists(URL, max_size=5), st.sampled_from(RULES))
def test_any_urls(pages: list[str], rules: UrlRules) -> None:
    made = canonical_items(pl.Series(pages, dtype=pl.String), rules).to_list()
    assert made == [canonical_item(page, rules) for page in pages]


def test_why_something_is_no_page() -> None:
    keys = ["/a", "https://www.example.com/b/", "about:blank", "/logo.png", "/x.css?v=1", "  ", "", None]
    pages = find_pages(pl.Series(keys), UrlRules(), drops_assets=True)
    assert dict(zip(keys, pages["verdict"], strict=True)) == {
        "/a": None, "https://www.example.com/b/": None, "about:blank": "not a page", "/logo.png": "static asset",
        "/x.css?v=1": "static asset", "  ": "no URL", "": "no URL", None: "no URL",
    }  # fmt: skip
    assert pages["item"][:2].to_list() == ["/a", "https://example.com/b"]
    kept = find_pages(pl.Series(keys), UrlRules(), drops_assets=False)
    assert kept["verdict"][3:5].to_list() == [None, None]
    assert kept["item"][3:5].to_list() == ["/logo.png", "/x.css"]
