"""The map of items: which pages are read, that alike lies together, that the same gives the same; short names and sections."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.manifold import TSNE, trustworthiness

from surf2vec.tasks.report.pictures import OTHER, Matrix, lay_out, nearest_pages, read_pages, sections, short_names
from tests.tasks.report.test_report import write_vectors


def plant_groups(num: int, groups: int, dim: int = 16) -> tuple[Matrix, np.ndarray]:
    """Vectors (num, dim) around `groups` directions, all shifted by one vector, and the group of each."""
    rng = np.random.default_rng(5)
    group = np.arange(num) % groups
    X = rng.normal(size=(groups, dim))[group] + 0.2 * rng.normal(size=(num, dim)) + 5
    return X.astype(np.float32), group


def test_the_most_frequent_pages_are_read_in_order(tmp_path: Path) -> None:
    counts = [5, 9, 1, 9, 3, 8, 2, 7]
    X = np.eye(8, dtype=np.float32)
    pages = read_pages(write_vectors(tmp_path, [f"/{ix}" for ix in range(8)], counts, X), max_pages=4)
    assert pages.urls == ["/1", "/3", "/5", "/7"]
    assert pages.counts.tolist() == [9, 9, 8, 7]
    assert np.array_equal(pages.directions, X[[1, 3, 5, 7]])
    assert pages.num_items == 8


def test_a_bias_is_no_direction(tmp_path: Path) -> None:
    X = np.array([[1, 0, 9], [0, 2, -9], [0, 0, 5]], np.float32)
    pages = read_pages(write_vectors(tmp_path, list("abc"), [3, 2, 1], X, bias_columns=[X.shape[1] - 1]))
    assert pages.urls == ["a", "b"]
    assert np.array_equal(pages.directions, np.eye(2))


def test_rows_without_a_direction_are_left_out(tmp_path: Path) -> None:
    X = np.array([[1, 0], [0, 0], [np.nan, 1], [0, 2]], np.float32)
    pages = read_pages(write_vectors(tmp_path, list("abcd"), [4, 3, 2, 1], X))
    assert pages.urls == ["a", "d"]
    assert np.allclose(np.linalg.norm(pages.directions, axis=1), 1)


def test_neighbours_are_of_the_planted_group_though_all_share_a_shift(tmp_path: Path) -> None:
    X, group = plant_groups(60, 5)
    pages = read_pages(write_vectors(tmp_path, [str(ix) for ix in range(60)], list(range(60, 0, -1)), X))
    for ix in range(60):
        near = nearest_pages(pages, ix, 6)
        assert {int(group[other]) for other, _ in near} == {int(group[ix])}
        assert [cosine for _, cosine in near] == sorted((cosine for _, cosine in near), reverse=True)
        assert ix not in [other for other, _ in near]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_pages_with_equal_vectors(groups: int) -> None:
    X = np.repeat(np.eye(4, dtype=np.float32)[:groups], 40 // groups, axis=0)
    assert np.isfinite(lay_out(X)).all()


def test_the_map_keeps_neighbours_as_scikit_learn_does() -> None:
    rng = np.random.default_rng(3)
    X = np.cumsum(rng.normal(size=(400, 16)), axis=0)[rng.permutation(400)].astype(np.float32)  # a curve that winds
    other, places = TSNE(init="pca", max_iter=500, random_state=0).fit_transform(X), lay_out(X)
    assert trustworthiness(X, places, n_neighbors=10) > trustworthiness(X, other, n_neighbors=10) - 0.02
    assert np.array_equal(places, places.clip(0, 1))


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
