"""Sums of pages: by hand, against the trainer's kernel, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.release.trail_sums import TrailSums
from surf2vec.tasks.release.url_rules import FoundPages, KnownItems, UrlRules
from surf2vec.trainer.kernels.cpu import trail_vectors
from surf2vec.trainer.model.rows import Rows, TrailItems

MANIFEST = {
    "release": "r1",
    "vector_size": 3,
    "trail": {"columns": [1, 3], "lags": [4.0, 3.0], "bias": [0.0, 0.5], "weight": 0.5},
}
SUMS = TrailSums.of_release(MANIFEST, np.array([[1, 0], [10, 2]], np.float32))


def find(*pages: Any, items: tuple[str, ...] = ("/a", "/b")) -> FoundPages:
    return KnownItems({item: number for number, item in enumerate(items)}, UrlRules()).find(pages)


def renew(*pages: Any, vectors: Any = None) -> tuple[list[list[float]], list[bool]]:
    nobody = np.zeros((len(pages), 3), np.float32)
    renewed, is_known = SUMS.renew(nobody if vectors is None else np.array(vectors, np.float32), *find(*pages))
    return renewed.round(4).tolist(), is_known.tolist()


def test_literal_sums() -> None:
    one, two = 4**0.5, 5**0.5  # 4 / (4^2)^(1/4); the root of the root of 4^2 + 3^2 is that of 5
    expected = [
        [0, 0.5 * one, 0.25],
        [0, round(0.5 * (4 * 10 + 3 * 1) / two, 4), round(0.5 * (4 * 2) / two + 0.25, 4)],
    ]
    assert renew(["/a"], ["/a", "/b"])[0] == [pytest.approx(row, abs=1e-4) for row in expected]
    assert renew(("/b", "/a", "/b"))[0] == [pytest.approx(expected[1], abs=1e-4)], "two lags, two pages"


def test_unknown_pages_and_repeats_are_left_out_as_from_a_corpus() -> None:
    both = renew(["/a", "/b"])
    assert renew(["/a", "/elsewhere", "/b", "/b", "/elsewhere"]) == both
    assert renew(["/a", "/a", "/b"]) == renew(np.array(["/a", "/b"])) == both
    assert renew(["/b", "/elsewhere", "/b"]) != renew(["/b", "/b"]), "a page between, known or not, makes two visits"


def test_who_is_known_keeps_the_interest_and_without_a_known_page_all() -> None:
    last = [[7, 8, 9], [7, 8, 9], [7, 8, 9]]
    renewed, is_known = renew(["/a"], [], ["/elsewhere"], vectors=last)
    assert renewed == [[7, 1, 0.25], [7, 8, 9], [7, 8, 9]]
    assert is_known == [True, False, False]
    assert last[0] == [7, 8, 9]
    assert renew() == ([], [])


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=1200), st.integers(1, 6))
def test_they_are_those_of_the_trainers_kernel(histories: list[list[int]], window: int) -> None:
    rng = np.random.default_rng(window)
    inputs = rng.standard_normal((10, 19), np.float32)
    inputs[:, -2:] = 0
    tables = (inputs, inputs, rng.random((2 * window, 1), np.float32))
    path = TrailItems(*(Rows(table, np.zeros(len(table), np.float32)) for table in tables))
    histories = [[item for n, item in enumerate(one) if n == 0 or item != one[n - 1]] for one in histories]
    offsets = np.cumsum([0, *map(len, histories)])
    tokens = np.array([item for one in histories for item in one], np.int32)
    expected = trail_vectors(path, tokens, offsets[:-1], offsets[1:], window)
    about = {
        "columns": [0, 19],
        "lags": path.lags.vectors[:window, 0].tolist(),
        "bias": [0.0] * 18 + [0.5],
        "weight": 0.6,
    }
    sums = TrailSums.of_release({"trail": about, "vector_size": 19}, inputs)
    pages = find(*([f"/{item}" for item in one] for one in histories), items=tuple(f"/{n}" for n in range(10)))
    found = sums.sum_pages(sums.choose_last(*pages))
    np.testing.assert_allclose(found, expected * np.float32(0.6), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "row 1 is null: give a list of URLs, oldest first, empty if there are none"),
        (float("nan"), "row 1 is null"),
        ("/secret", "row 1 is of type str: give a list"),
        (3, "row 1 is of type int"),
        (["/a", None], "row 1 has an entry that is not a string"),
        ([["/secret"]], "row 1 has an entry that is not a string"),
    ],
)
def test_what_is_no_list_of_strings_is_refused_without_naming_a_page(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^pages in {words}") as caught:
        renew(["/a"], given)
    assert "secret" not in str(caught.value)


def test_vectors_of_another_shape_are_refused() -> None:
    for shape in ((2, 3), (1, 2), (1, 4), (3,)):
        with pytest.raises(ValueError, match=r"vectors of shape .* are given, where the pages need \(1, 3\)"):
            SUMS.renew(np.zeros(shape, np.float32), *find(["/a"]))
