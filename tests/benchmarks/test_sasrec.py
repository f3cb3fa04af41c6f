"""SASRec's parts: attention that looks back only, targets that are new, a loss that is the full softmax's, and the mark."""

import numpy as np
import pytest
import torch

from tests.benchmarks.defaults import METRICS, Side
from tests.benchmarks.sasrec import (
    BATCH_USERS,
    MOST_ITEMS,
    SasRec,
    Setting,
    batches,
    judge,
    last_states,
    read_sequences,
    sampled_softmax,
    slice_hit,
)

SETTING = Setting(size=8, blocks=2, dropout=0.5)


def test_what_follows_an_item_does_not_touch_its_state() -> None:
    torch.manual_seed(1)
    model = SasRec(9, SETTING).eval()
    states = model(torch.tensor([[1, 2, 3, 4], [1, 2, 5, 0]]))
    assert torch.allclose(states[0, :2], states[1, :2], atol=1e-6)
    assert not torch.allclose(states[0, 2], states[1, 2], atol=1e-3)


def test_the_last_state_of_histories_of_different_lengths() -> None:
    torch.manual_seed(1)
    model = SasRec(9, SETTING)
    histories = [np.array(one, dtype=np.int32) for one in ([1, 2, 3], [4], list(range(9)) * 10)]
    found = last_states(model, histories)
    for history, state in zip(histories, found, strict=True):
        expected = model(torch.from_numpy(history[-MOST_ITEMS:].astype(np.int64))[None])[0, -1]
        np.testing.assert_allclose(state, expected.detach().numpy(), atol=1e-5)


def test_targets_are_new_to_the_user_and_the_slice_is_in_no_loss() -> None:
    histories = [np.array(one, dtype=np.int32) for one in ([3, 4, 3, 5], [7], [1, 1, 2])]
    sequences = read_sequences(histories)
    assert sequences.items[:, :4].tolist() == [[3, 4, 3, 5], [1, 1, 2, 0]]
    assert sequences.lengths.tolist() == [4, 3]
    assert (sequences.slice_rows.tolist(), sequences.slice_places.tolist()) == ([0], [2])
    assert sequences.is_target[:, :4].tolist() == [[True, False, False, False], [False, True, False, False]]


def test_all_rows_are_in_one_batch_each() -> None:
    lengths = np.arange(5000) % 7
    rows = list(batches(lengths, np.random.default_rng(1)))
    assert np.sort(np.concatenate(rows)).tolist() == list(range(5000))
    assert max(len(batch) for batch in rows) == BATCH_USERS


def test_the_loss_against_all_other_items_is_that_of_the_full_softmax() -> None:
    torch.manual_seed(1)
    table, states, targets = torch.randn(6, 4), torch.randn(3, 4), torch.tensor([0, 5, 2])
    loss = sampled_softmax(states, targets, torch.arange(6), table, torch.zeros(6))
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(states @ table.T, targets).item(), rel=1e-5)


def test_the_correction_makes_a_negative_weigh_what_it_stands_for() -> None:
    table, states = torch.zeros(3, 4), torch.zeros(1, 4)
    log_odds = torch.tensor([0.5, 0.25, 0.25]).log()
    loss = sampled_softmax(states, torch.tensor([0]), torch.tensor([1, 1, 2]), table, log_odds)
    assert loss.item() == pytest.approx(np.log((2 + 3 * 4) / 2))


def test_the_slice_is_ranked_without_what_the_user_has_seen() -> None:
    model = SasRec(40, SETTING)
    torch.nn.init.zeros_(model.items.weight)
    with torch.no_grad():
        model.items.weight[:, 0] = torch.arange(40, 0, -1)  # with any state, the order of the items or its reverse
        model.norm.weight.zero_()
        model.norm.bias.fill_(1)
    assert slice_hit(model, read_sequences([np.array([*range(10), 29], dtype=np.int32)])) == 1
    assert slice_hit(model, read_sequences([np.array([*range(10), 30], dtype=np.int32)])) == 0


def test_the_mark_is_of_hits_and_of_time() -> None:
    def side(hits: int, seconds: float) -> Side:
        ranks = np.where(np.arange(100) < hits, 10.0, 30.0)
        return Side("", {name: metric(ranks) for name, metric in METRICS.items()}, seconds)

    assert judge("log", side(95, 1.0), side(100, 10.0))["passed"]
    assert not judge("log", side(94, 1.0), side(100, 10.0))["passed"]
    assert not judge("log", side(95, 1.1), side(100, 10.0))["passed"]
