"""Short names of pages, and the sections of a site."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.report.pictures import OTHER, sections, short_names


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/wiki/Albert_Einstein", "Albert Einstein"),
        ("/wiki/S%C3%A3o_Paulo", "São Paulo"),
        ("https://news.example.com/politics/a-long-vote.html", "a-long-vote"),
        ("https://news.example.com", "news.example.com"),
        ("https://www.shop.example/p/4711", "p/4711"),
        ("https://www.shop.example/4711", "shop.example/4711"),
        ("shop.example/4711", "shop.example/4711"),
        ("/entree/C/369", "C/369"),
        ("/shuttle/countdown/", "countdown"),
        ("/", "/"),
        ("", "/"),
        ("214826705", "214826705"),
        ("/日本語", "日本語"),
    ],
)
def test_a_page_alone(url: str, name: str) -> None:
    assert short_names([url], 40) == [name]


def test_equal_endings_differ_by_what_is_before_them() -> None:
    urls = ["/apollo/images", "/gemini/images", "/gemini/crew"]
    assert short_names(urls, 40) == ["apollo/images", "gemini/images", "crew"]
    hosts = [f"https://{host}.example/soups" for host in ("www.slow-pot", "pepper-mill")]
    assert short_names(hosts, 40) == ["slow-pot.example/soups", "pepper-mill.example/soups"]


@given(st.lists(st.text(max_size=40), max_size=12), st.integers(8, 40))
def test_names_are_short_printable_and_not_empty(urls: list[str], max_chars: int) -> None:
    for name in short_names(urls, max_chars):
        assert 0 < len(name) <= max_chars
        assert name.isprintable()


def test_sections_are_the_first_depth_that_divides() -> None:
    assert sections(["/shuttle/a", "/shuttle/b", "/history/a", "/history/x/b"], 8) == [
        "shuttle", "shuttle", "history", "history",
    ]  # fmt: skip
    hosts = ["https://a.example/x", "https://b.example/x", "https://a.example/y"]
    assert sections(hosts, 8) == ["a.example", "b.example", "a.example"]
    one_host = [f"https://a.example/{part}/x{ix}" for part in ("news", "shop") for ix in range(3)]
    assert sections(one_host, 8) == ["a.example/news"] * 3 + ["a.example/shop"] * 3


def test_small_sections_are_elsewhere() -> None:
    urls = [f"/{section}/{ix}" for section, n in (("a", 5), ("b", 4), ("c", 1)) for ix in range(n)]
    assert sections(urls, 2) == ["a"] * 5 + ["b"] * 4 + [OTHER]


@pytest.mark.parametrize(
    "urls", [[], ["17", "18"], ["/wiki/A", "/wiki/B"], ["/a", "/b"], [f"/{ix}/p" for ix in range(100)]]
)
def test_urls_without_sections(urls: list[str]) -> None:
    assert sections(urls, 8) is None
