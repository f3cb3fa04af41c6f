"""The linear models beside the same regressions written down row by row, and solved at once."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tests.benchmarks import linear
from tests.benchmarks.neighbours import Seen, read_seen
from tests.benchmarks.test_neighbours import HISTORIES, TRAINED, scores_of
from tests.data.corpora import write_corpus

TIMES = np.array([0, 8, 12, 0, 40, 3, 5, 20, 21, 50], dtype=float)


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return read_seen(write_corpus(tmp_path / "corpus", HISTORIES, partitions=1), TIMES)


def expect(seen: Seen, decay: str, sources: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scores x B of an L2 of 2, the highest of each row 1; what training says nothing of has 0."""
    solved = np.linalg.solve(sources.T @ sources + 2 * np.eye(5), sources.T @ targets)
    scores = seen.weigh(decay).toarray() @ solved
    return scores / scores.max(axis=1, keepdims=True)


def test_rules_weigh_what_followed_by_its_distance(seen: Seen) -> None:
    one, two = (linear.SequenceRules(seen, steps).rules.toarray() for steps in (1, 2))
    assert one[0].tolist() == [0, 1, 0, 0, 0]  # twice followed by 1
    assert one[1].tolist() == [0.5, 0, 0.5, 0, 0]  # once by 0, once by 2
    assert two[3].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0, 0])  # 2 one step, 1 two steps after
    assert two[4].tolist() == [0] * 5


def test_rules_score_from_the_last_items(seen: Seen) -> None:
    last = scores_of(linear.SequenceRules(seen, 1).peer("last"), seen)
    np.testing.assert_allclose(last[1], [1, 0, 1, 0, 0], atol=1e-6)
    both = scores_of(linear.SequenceRules(seen, 1).peer(".5"), seen)
    np.testing.assert_allclose(both[1], [1, 1, 1, 0, 0], atol=1e-6)  # .5, .5 x 1 after item 0, .5


def test_ease_is_a_ridge_regression_of_each_item_on_all_others(seen: Seen) -> None:
    [(l2, peer)] = linear.solve_ease(seen, [2.0])
    users, scores = seen.users.toarray(), np.zeros((4, 5))
    for item in range(5):
        others = np.delete(users, item, axis=1)
        weights = np.linalg.solve(others.T @ others + l2 * np.eye(4), others.T @ users[:, item])
        scores[:, item] = others @ weights
    np.testing.assert_allclose(scores_of(peer, seen), scores / scores.max(axis=1, keepdims=True), atol=1e-5)


def test_slist_regresses_what_is_left_of_a_history_on_what_was_before_and_each_history_on_itself(seen: Seen) -> None:
    low = np.exp(-1 / 2)  # of one step, with a span of 2
    old, new = low / (1 + low), 1 / (1 + low)  # of two sources
    before = [
        [1, 0, 0, 0, 0],
        [old, new, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, new, old, 0],
    ]
    after = [[low, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, low, 1, 0, 0], [0, 1, 0, 0, 0]]
    whole, owners = seen.users.toarray(), [0, 0, 1, 2, 3, 3, 0, 1, 2, 3]
    old_users = np.exp((np.array([12, 40, 5, 50]) - 50) / 30)[owners]
    roots = np.sqrt(np.repeat([0.7, 0.3], [6, 4]) * old_users)[:, None]
    both = linear.regress_slis(seen, lifetime=30.0).mix(linear.regress_slit(seen, 2.0, lifetime=30.0), 0.3)
    sources = roots * np.concatenate([before, whole / whole.sum(axis=1, keepdims=True)])
    expected = expect(seen, ".5", sources, roots * np.concatenate([after, whole]))
    np.testing.assert_allclose(scores_of(linear.score_by_regression(seen, ".5", both, 2.0), seen), expected, atol=1e-5)


def test_tale_weighs_sources_by_the_time_between_and_both_by_what_is_popular_lately(seen: Seen) -> None:
    lately = [2, 2, 1, 2, 1, 1, 1, 1, 1, 1]  # 0 twice at 0, 1 at 3 and at 8
    assert linear.count_lately(seen, 5.0).tolist() == lately
    power = np.array(lately) ** -0.5
    pairs = {(1, 0), (2, 0), (2, 1), (4, 3), (6, 5), (8, 7), (9, 7), (9, 8)}  # events and those before them
    tokens, sources, targets = np.concatenate(TRAINED), np.zeros((10, 5)), np.zeros((10, 5))
    for event, source in pairs:
        sources[event, tokens[source]] += power[source] * max(np.exp((TIMES[source] - TIMES[event]) / 8), 0.2)
        targets[event, tokens[event]] = power[event]
    peer = linear.score_by_regression(seen, "1/age", linear.regress_tale(seen, tau=8.0, least=0.2, trend=-0.5), 2.0)
    np.testing.assert_allclose(scores_of(peer, seen), expect(seen, "1/age", sources, targets), atol=1e-5)


def test_steps_end_near_the_solution() -> None:
    draw = np.random.default_rng(1)
    rows = csr_matrix((draw.random((300, 40)) < 0.1) * draw.random((300, 40)), dtype=np.float32)
    gram, asked = (rows.T @ rows).tocsr(), draw.random((7, 40)).astype(np.float32)
    exact = asked @ np.linalg.inv(gram.toarray() + 3 * np.eye(40))
    np.testing.assert_allclose(linear.make_solver(gram, 3.0)(asked), exact, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(linear.solve_by_steps(gram, 3.0, asked), exact, atol=0.03 * np.abs(exact).max())
    assert not linear.solve_by_steps(gram, 3.0, np.zeros((1, 40), np.float32)).any()
