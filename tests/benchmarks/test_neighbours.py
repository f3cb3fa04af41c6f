"""The scores of the peers that count, on logs of which a person can work them out."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.neighbours import ItemNeighbours, Seen, SessionNeighbours, break_ties, keep_highest, read_seen
from tests.benchmarks.peers import RowPeer, answer_held_out
from tests.data.corpora import write_corpus

HISTORIES = {"a": [0, 1, 0, 2], "b": [0, 1, 3], "c": [1, 2, 0], "d": [3, 2, 1, 4]}
"""Training sees 0 1 0, 0 1, 1 2, and 3 2 1; the last item of each is asked."""
TRAINED = [[0, 1, 0], [0, 1], [1, 2], [3, 2, 1]]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "corpus", HISTORIES, partitions=1)


@pytest.fixture
def seen(corpus: Corpus) -> Seen:
    return read_seen(corpus)


def scores_of(peer: RowPeer, seen: Seen) -> np.ndarray:
    """The scores of all items for all asked users, without what breaks ties, the highest of each row 1."""
    return peer.score_rows(np.arange(len(seen.asked))) - 1e-5 * seen.places


def test_what_training_sees(seen: Seen) -> None:
    assert [history.tolist() for history in seen.histories] == TRAINED
    assert seen.asked.tolist() == [0, 1, 2, 3]
    assert seen.users.toarray().tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 1, 0]]
    assert seen.ages.toarray().tolist() == [[1, 2, 0, 0, 0], [2, 1, 0, 0, 0], [0, 2, 1, 0, 0], [0, 1, 2, 3, 0]]
    assert np.argsort(-seen.places)[:2].tolist() == [1, 0]  # four events and three
    assert 0 <= seen.places.min() < seen.places.max() < 1


@pytest.mark.parametrize(
    ("decay", "weights"),
    [("none", [1, 1, 1]), ("last", [1, 0, 0]), ("1/age", [1, 1 / 2, 1 / 3]), (".5", [1, 0.5, 0.25])],
)
def test_weights_by_age(seen: Seen, decay: str, weights: list[float]) -> None:
    assert seen.weigh(decay).toarray()[3].tolist() == pytest.approx([0, *weights, 0])


def test_the_highest_of_each_row_are_kept_and_of_equal_ones_the_first() -> None:
    kept = keep_highest(csr_matrix([[1, 3, 2, 3], [0, 0, 5, 0], [0, 0, 0, 0], [1, 1, 1, 0]]), 2)
    assert kept.toarray().tolist() == [[0, 3, 0, 3], [0, 0, 5, 0], [0, 0, 0, 0], [1, 1, 0, 0]]


def test_items_are_near_by_the_cosine_of_their_users(seen: Seen) -> None:
    near = ItemNeighbours(seen, 10, has_iuf=False).nearest.toarray()
    assert near[1].tolist() == pytest.approx([2 / 8**0.5, 0, 2 / 8**0.5, 1 / 2, 0])
    assert near[0].tolist() == pytest.approx([0, 2 / 8**0.5, 0, 0, 0])
    assert (near == near.T).all()
    nearest = ItemNeighbours(seen, 1, has_iuf=False).nearest.toarray()
    assert np.count_nonzero(nearest, axis=1).tolist() == [1, 1, 1, 1, 0]


def test_users_of_many_items_weigh_less_with_inverse_user_frequency(seen: Seen) -> None:
    near = ItemNeighbours(seen, 10, has_iuf=True).nearest.toarray()
    two, three = np.log(5 / 2), np.log(5 / 3)
    assert near[1, 2] == pytest.approx((two**2 + three**2) / np.sqrt((3 * two**2 + three**2) * (two**2 + three**2)))


def test_item_neighbours_add_up_over_the_items_of_a_user(seen: Seen) -> None:
    scores = scores_of(ItemNeighbours(seen, 10, has_iuf=False).peer(10, "1/age"), seen)
    low, high = 1 / 2, 2 / 8**0.5  # of user b: the last item 1, and 0 at half its weight
    assert scores[1].tolist() == pytest.approx([1, high / 2 / high, 1, low / high, 0], abs=1e-6)


def test_sessions_score_their_items_by_cosine_and_the_age_of_the_newest_common_item(seen: Seen) -> None:
    scores = scores_of(SessionNeighbours(seen, "1/age", has_iuf=False).peer(3, near="all"), seen)
    weights = {0: 1, 1: 1 / 2}  # of user a, whose last item is 0
    length = sum(weight**2 for weight in weights.values()) ** 0.5
    b = (weights[0] + weights[1]) / length / 2**0.5  # cosine; the newest common item, 0, is the last
    c = weights[1] / length / 2**0.5 / 2  # the newest common item, 1, is one event older
    d = weights[1] / length / 3**0.5 / 2
    expected = np.array([b, b + c + d, c + d, d, 0])
    np.testing.assert_allclose(scores[0], expected / expected.max(), atol=1e-6)


def test_sessions_that_score_what_followed(seen: Seen) -> None:
    scores = scores_of(SessionNeighbours(seen, "1/age", has_iuf=False).peer(3, near="after"), seen)
    length = (1 + 1 / 4) ** 0.5
    b, c = 1.5 / length / 2**0.5, 0.5 / length / 2**0.5 / 2  # b had 1 after 0, c had 2 after 1, d had nothing after 1
    np.testing.assert_allclose(scores[0], np.array([0, b, c, 0, 0]) / b, atol=1e-6)


def test_stan_scores_by_the_distance_from_the_newest_common_item(seen: Seen) -> None:
    peer = SessionNeighbours(seen, "1/age", has_iuf=False).peer(3, near=".3", match="none", iuf_weight=2.0)
    length = (1 + 1 / 4) ** 0.5  # of user a, whose last item is 0
    b, c, d = 1.5 / length / 2**0.5, 0.5 / length / 2**0.5, 0.5 / length / 3**0.5  # b has 0 1, c 1 2, d 3 2 1
    plain = np.array([b, 0.3 * b + c + d, 0.3 * c + 0.3 * d, 0.09 * d, 0])
    expected = plain * (1 + 2 * np.log(4 / np.array([2, 4, 2, 1, 1])))
    np.testing.assert_allclose(scores_of(peer, seen)[0], expected / expected.max(), atol=1e-6)


def test_sessions_far_off_in_time_weigh_less(corpus: Corpus) -> None:
    seen = read_seen(corpus, np.array([0, 0, 9, 0, 7, 0, 10, 0, 0, 29], dtype=float))  # newest of a, b, c, d: 9 7 10 29
    scores = scores_of(SessionNeighbours(seen, "none", has_iuf=False, lifetime=10).peer(3, match="none"), seen)
    a, c, d = np.exp(-0.2), np.exp(-0.3) / 2, np.exp(-2.2) / 6**0.5  # cosine with b by seconds between
    np.testing.assert_allclose(scores[1], np.array([a, a + c + d, c + d, d, 0]) / (a + c + d), atol=1e-6)


def test_an_item_that_a_session_repeats_counts_once_and_where_it_stood_last(tmp_path: Path) -> None:
    histories = {"a": [0, 4], "b": [1, 0, 2, 2, 1, 3]}  # of b training sees 1 0 2 2 1
    seen = read_seen(write_corpus(tmp_path / "corpus", histories, partitions=1, num_items=5))
    model = SessionNeighbours(seen, "none", has_iuf=False)
    np.testing.assert_allclose(scores_of(model.peer(1, near="all"), seen)[0], [1, 1, 1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(scores_of(model.peer(1, near="after"), seen)[0], [0, 1, 1, 0, 0], atol=1e-6)


def test_only_the_nearest_sessions_score_and_never_the_own(seen: Seen) -> None:
    scores = scores_of(SessionNeighbours(seen, "none", has_iuf=False).peer(1, near="all"), seen)
    np.testing.assert_allclose(scores[0], [1, 1, 0, 0, 0], atol=1e-6)  # b
    np.testing.assert_allclose(scores[2], [0, 1, 1, 1, 0], atol=1e-6)  # d


def test_items_that_all_have_say_nothing_with_inverse_user_frequency(seen: Seen) -> None:
    scores = scores_of(SessionNeighbours(seen, "none", has_iuf=True).peer(3, near="all"), seen)
    np.testing.assert_allclose(scores[0], [1, 1, 0, 0, 0], atol=1e-6)  # only b shares more than item 1


def test_of_equal_scores_the_more_frequent_item_is_first(corpus: Corpus) -> None:
    broken = break_ties(np.zeros((1, 3), np.float32), np.array([0.3, 0.6, 0], np.float32))
    assert np.argsort(-broken[0]).tolist() == [1, 0, 2]
    assert break_ties(np.array([[4, 2, 0]], np.float32), np.zeros(3, np.float32)).tolist() == [[1, 0.5, 0]]


def test_a_peer_that_is_no_dot_product_is_ranked_without_what_a_user_has_seen(corpus: Corpus) -> None:
    asked = []

    def score(rows: np.ndarray) -> np.ndarray:
        asked.extend(rows.tolist())
        return np.tile(np.array([9, 8, 3, 2, 1], np.float32), (len(rows), 1))

    answer = answer_held_out(corpus, RowPeer(score, 0.0))
    assert asked == [0, 1, 2, 3]
    assert answer.ranks.tolist() == [1, 2, 1, 2]  # held out: 2, 3, 0, 4
