"""What a release makes of a URL: its own items stay, others become items by its rules, and its tokens are no secrets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.release.url_rules import KnownItems
from tests.data.corpora import RULES

SHARED, OWN = "9f86d081884c7d659a2feaa0c55ad015", "5e884898da28047151d0e56f8dc62927"
BARE = "https://golden-hour.example/lenses"
ITEMS = [BARE, "/a", "7", f"/doc/{SHARED}", "/reset/(token)", f"/of/(token)/doc/{SHARED}"]


def known(*items: str, **rules: Any) -> KnownItems:
    return KnownItems.of_release({"rules": RULES | rules}, list(items))


@pytest.mark.parametrize(
    ("page", "item"),
    [
        ("https://golden-hour.example/lenses/?utm_source=x", BARE),
        ("HTTPS://www.Golden-Hour.example:443/lenses/index.html#top", BARE),
        ("/a?id=1", "/a"),
        ("7", "7"),
        (f"/doc/{SHARED}?page=2", f"/doc/{SHARED}"),
        (f"/reset/{OWN}", "/reset/(token)"),
        (f"/reset/{SHARED}?x=1", "/reset/(token)"),
        (f"/of/{OWN}/doc/{SHARED}?x", f"/of/(token)/doc/{SHARED}"),
    ],
)
def test_a_page_is_found_however_it_is_written(page: str, item: str) -> None:
    items = known(*ITEMS)
    assert items.make_item(page) == item
    assert items.find([[page]]).rows == [ITEMS.index(item)]


@pytest.mark.parametrize(
    ("page", "item"),
    [
        ("https://golden-hour.example/other?x", "https://golden-hour.example/other"),
        (f"/other/{OWN}", "/other/(token)"),
        ("mailto:me@e.example", None),
        ("-", None),
        ("", None),
        ("\ud800", None),
        ("https://e.example/\ud800", None),
        ("/" + "x" * 8192, None),
    ],
)
def test_a_page_that_is_not_there_is_unknown(page: str, item: str | None) -> None:
    assert known(*ITEMS).make_item(page) == item
    assert known(*ITEMS).find([[page]]).rows == [-1]


@pytest.mark.parametrize(
    ("rules", "item"),
    [
        ({"granularity": "host"}, "https://e.example/"),
        ({"granularity": "prefix", "prefix_depth": 1}, "https://e.example/shop"),
        ({"keep_query": ["id"]}, "https://e.example/shop/(token)/lenses?id=3"),
        ({"mask_secrets": False}, f"https://e.example/shop/{OWN}/lenses"),
    ],
)
def test_the_rules_are_those_of_the_release(rules: dict[str, Any], item: str) -> None:
    assert known(**rules).make_item(f"https://e.example/shop/{OWN}/lenses/?id=3&utm_source=x") == item


@given(
    st.one_of(st.text(), st.text("aA0/%?#=.:-_@; é\\", max_size=60).map("https://e.example/{}".format)),
    st.sampled_from([{}, {"granularity": "host"}, {"keep_query": ["a"]}, {"mask_secrets": False}]),
    st.lists(st.sampled_from([*ITEMS, "not / canonical?a=1"])),
)
def test_an_item_stays_one(page: str, rules: dict[str, Any], items: list[str]) -> None:
    there = known(*items, **rules)
    assert all(there.make_item(item) == item for item in items)
    made = there.make_item(page)
    if made is not None:
        assert there.make_item(made) == made
        assert page in items or known(made, **rules).find([[page]]).rows == [0]


@given(st.lists(st.lists(st.sampled_from([BARE, f"{BARE}/?b", "/a", "/b?c", "", "\ud800"]))))
def test_pages_of_many_users_are_looked_up_as_one_by_one(pages: list[list[str]]) -> None:
    items = known(*ITEMS)
    found = items.find(pages)
    expected = [[items.numbers.get(items.make_item(page) or "", -1) for page in one] for one in pages]
    assert found.rows.tolist() == [row for rows in expected for row in rows]
    assert found.count_unknown().tolist() == [rows.count(-1) for rows in expected]
    assert [one.tolist() for one in found.list_known()] == [[row for row in rows if row >= 0] for rows in expected]


def test_an_item_needs_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnownItems, "make_item", None)
    assert known(*ITEMS).find([["/a", BARE], []]).rows.tolist() == [1, 0]
