"""The trail in Triton against its reference and the CPU's kernel: in the interpreter, or on a GPU where there is one."""

import dataclasses
from copy import deepcopy
from typing import Any
from unittest import mock

import numpy as np
import pytest

from surf2vec.trainer.kernels import signature
from surf2vec.trainer.kernels.cpu import train_trail
from surf2vec.trainer.kernels.signature import TRAIL_TILE_USERS, Pass
from surf2vec.trainer.model.objectives import TrailTables
from surf2vec.trainer.model.rows import TrailItems
from tests.trainer.kernels import reference, reference_trail
from tests.trainer.kernels.test_gpu import HAS_GPU, gpu, is_interpreted
from tests.trainer.kernels.test_trail import arrays, learn_cycles, make_config, make_tables
from tests.trainer.kernels.work import make_work

TOLERANCE, SHARE = (2e-3, 2e-3) if HAS_GPU else (1e-5, 1e-5)  # a card's factors have 11 bits
in_order = pytest.mark.skipif(HAS_GPU, reason="on a GPU equal rows move in any order, and the last digits differ")
Case = tuple[TrailItems, TrailTables, Pass]


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", str(int(is_interpreted)))


def make_case(num_users: int, num_items: int = 30, **settings: Any) -> Case:
    return make_tables(make_work(make_config(**settings), num_users, num_items), num_items)


def check_agreement(case: Case, backward: float) -> int:
    """A card and its reference end with the same rows. Returns the number of targets."""
    trail, tables, work = case
    expected = deepcopy(trail)
    num_at_once = gpu.negatives_at_once(work.config.trail_negative, work.config.trail_size)
    with mock.patch.multiple(reference, NUM_AT_ONCE=num_at_once, AT_ONCE=True):
        wanted = reference_trail.train_trail(expected, work, tables, backward)
    assert gpu.train_trail(trail, work, tables, backward) == wanted
    for found, other in zip(arrays(trail), arrays(expected), strict=True):
        np.testing.assert_allclose(found, other, atol=TOLERANCE, rtol=SHARE)
    return wanted


@in_order
@pytest.mark.parametrize(
    ("backward", "settings"),
    [
        (0.0, {}), (0.5, {"vector_size": 64, "trail_negative": 16}), (1.0, {"trail_window": 1, "trail_l2": 0.0}),
        (0.5, {"trail_negative": 33}),
        (0.0, {"vector_size": 16, "trail_negative": 1, "trail_window": 7}),
    ],
)  # fmt: skip
def test_it_does_what_the_reference_does(backward: float, settings: dict[str, float]) -> None:
    """Thirty items: most steps have lanes with the same target or page, and negatives that were drawn twice or are pages."""
    assert check_agreement(make_case(TRAIL_TILE_USERS + 8, **settings), backward) > 20


@in_order
def test_negatives_in_blocks_do_what_the_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are pages around a target, in any block."""
    monkeypatch.setattr(gpu, "MAX_BLOCK_VALUES", 256)
    assert check_agreement(make_case(6, trail_negative=40), 0.5) > 5


@in_order
@pytest.mark.parametrize("num_users", [1, 2 * TRAIL_TILE_USERS + 6])
def test_streams_of_any_number_of_users(num_users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that take a second user, and run empty at a stream's end."""
    monkeypatch.setattr(signature, "STREAM_USERS", 35)
    case = make_case(num_users, trail_negative=3)
    assert len(case[2].streams) == max(1, num_users // 35) + 1
    check_agreement(case, 0.5)


def apart(num_users: int, length: int = 4) -> Case:
    """Histories of pages that no other history has, and so many items that hardly one is drawn that is in one."""
    num_items = 40 * num_users * length
    _, _, work = make_case(1, trail_negative=2, trail_window=2)
    tokens = np.random.default_rng(3).permutation(num_items)[: num_users * length].astype(np.int32)
    starts = np.arange(num_users, dtype=np.int64) * length
    work = dataclasses.replace(
        work, tokens=tokens, starts=starts, ends=starts + length, order=np.arange(num_users),
        hashes=np.random.default_rng(4).integers(0, 2**63, num_users).astype(np.uint64),
        alphas=np.full(num_users, 0.1, np.float32),  # negatives move by the first lane's, and the card's lanes keep their turns
    )  # fmt: skip
    trail, tables, _ = make_tables(work, num_items)
    weights = np.full(num_items, 2**32, np.uint64)  # any item is drawn
    return trail, dataclasses.replace(tables, thresholds=weights, aliases=np.arange(num_items, dtype=np.int32)), work


def test_where_no_lane_meets_another_it_does_what_the_cpu_does() -> None:
    backward = 0.4
    trail, tables, work = apart(TRAIL_TILE_USERS + 5)
    expected, before = deepcopy(trail), deepcopy(trail)
    wanted = train_trail(expected, work, tables, backward)
    assert gpu.train_trail(trail, work, tables, backward) == wanted > TRAIL_TILE_USERS
    for found, other, first in zip(arrays(trail), arrays(expected), arrays(before), strict=True):
        assert not np.array_equal(other, first)
        np.testing.assert_allclose(found, other, atol=TOLERANCE, rtol=SHARE)


def test_targets_of_long_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a chunk, with many repeats: only the first event of an item is a target. The CPU counts the same."""
    monkeypatch.setattr(gpu, "TRAIL_CHUNK", 16)
    (trail, tables, work), backward = make_case(4), 0.7
    rng = np.random.default_rng(5)
    ends = np.array([1, 3 * gpu.TRAIL_CHUNK + 5, gpu.TRAIL_CHUNK, 2]).cumsum()
    work = dataclasses.replace(
        work, tokens=rng.integers(0, 30, ends[-1]).astype(np.int32), starts=np.append(0, ends[:-1]), ends=ends
    )
    other = deepcopy(trail)
    assert check_agreement((trail, tables, work), backward) == train_trail(other, work, tables, backward) <= 61


def test_users_without_two_pages_train_nothing() -> None:
    trail, tables, work = make_case(8)
    before = deepcopy(trail)
    for ends, tokens in (
        (np.minimum(work.starts + 1, work.ends), work.tokens),
        (work.ends, np.full_like(work.tokens, 7)),
    ):
        gpu.train_trail(trail, dataclasses.replace(work, ends=ends, tokens=tokens), tables, 0.5)
        for found, other in zip(arrays(trail), arrays(before), strict=True):
            np.testing.assert_array_equal(found, other)
    nobody = dataclasses.replace(work, order=work.order[:0], alphas=work.alphas[:0])
    assert gpu.train_trail(trail, nobody, tables, 0.5) == 0


def test_weights_of_lags_stay_above_the_least() -> None:
    """The page before the target is opposed to it, so that its weight falls, by a long first step."""
    trail, tables, work = make_case(1, trail_l2=0.0)
    ends = np.array([2])
    work = dataclasses.replace(work, tokens=np.array([0, 1], np.int32), starts=ends - 2, ends=ends, order=ends - 2)
    trail.outputs.vectors[:], trail.inputs.vectors[:], trail.lags.vectors[:], trail.lags.squares[:] = 0, 0, 0.02, 1e-6
    trail.outputs.vectors[1, 0], trail.inputs.vectors[0, 0] = 1, -1
    assert gpu.train_trail(trail, work, tables, 0.0) == 1
    np.testing.assert_array_equal(trail.lags.vectors.ravel(), np.float32([signature.LEAST_LAG] + 5 * [0.02]))
    assert trail.lags.squares[0] > 1e-6


def test_scores_far_out_stay_finite() -> None:
    trail, tables, work = make_case(8)
    trail.outputs.vectors *= 1000
    gpu.train_trail(trail, work, tables, 0.5)
    assert all(np.isfinite(array).all() for array in arrays(trail))


@pytest.mark.long
def test_it_learns_which_page_comes_next() -> None:
    """As the CPU, from as few users: the interpreter is slow."""
    (share, lags), (wanted, _) = (learn_cycles(train, 200, 20, 0.5) for train in (gpu.train_trail, train_trail))
    assert share > max(0.9, wanted - 0.05)
    assert lags[0] > lags[1:].max()
