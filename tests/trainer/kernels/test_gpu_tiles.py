"""Tiles in Triton against the reference, and the suite of all kernels: in the interpreter, or on a GPU where there is one."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels import signature
from tests.trainer.kernels import test_kernels as suite
from tests.trainer.kernels.test_gpu import (
    CARD_TOLERANCE,
    HAS_GPU,
    check_agreement,
    gpu,
    is_interpreted,
    make_rows,
    make_work,
    train,
)

several_streams = pytest.mark.skipif(HAS_GPU, reason="on a GPU streams run side by side, and the last digits differ")


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", str(int(is_interpreted)))


def make_config(**settings: Any) -> TrainConfig:
    return TrainConfig(**({"parts": "interest", "vector_size": 6, "negative": 3, "sample": 0} | settings))


@pytest.mark.parametrize("tile_users", [2, 3, 32])
@pytest.mark.parametrize(
    ("optimizer", "recency", "item_l2"), list(itertools.product(("adagrad", "sgd"), (0, 2.0), (0.0, 0.2)))
)
def test_it_does_what_the_reference_does(optimizer: Any, recency: float, item_l2: float, tile_users: int) -> None:
    """Seven items: most steps have lanes with the same item, and negatives that were drawn twice."""
    config = make_config(optimizer=optimizer, item_l2=item_l2)
    check_agreement(make_work(config, num_users=9, num_items=7, recency=recency), tile_users)


@pytest.mark.parametrize(
    ("dims", "negative", "num_items", "tile_users"),
    [(1, 1, 1, 2), (33, 9, 1, 5), (63, 1, 40, 17), (128, 5, 100, 16), (64, 16, 50, 32), (20, 33, 9, 40)],
)
def test_odd_sizes(dims: int, negative: int, num_items: int, tile_users: int) -> None:
    bias = 0.5 if dims > 1 else 0.0
    config = make_config(vector_size=dims, negative=negative, bias=bias)
    check_agreement(make_work(config, num_users=12, num_items=num_items, recency=3), tile_users)


def round_to_tf32(x: np.ndarray) -> np.ndarray:
    """The nearest numbers of 11 significant bits, as tensor cores take factors."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.skipif(HAS_GPU, reason="a GPU has the rounding")
@pytest.mark.parametrize("tile_users", [3, 32])
def test_factors_of_11_bits_agree_to_the_tolerance_of_a_card(monkeypatch: pytest.MonkeyPatch, tile_users: int) -> None:
    """The interpreter multiplies float32; here it rounds the factors first. Adagrad's sums begin small, which is the worst."""
    from triton.runtime import interpreter  # not before test_gpu imported Triton to interpret

    roundings: list[float] = []
    create_dot = interpreter.InterpreterBuilder.create_dot

    def create_rounded_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        roundings.append(np.abs(round_to_tf32(a.data) - a.data).max())
        a, b = (interpreter.TensorHandle(round_to_tf32(np.ascontiguousarray(x.data)), x.dtype) for x in (a, b))
        return create_dot(self, a, b, *others)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_rounded_dot)
    config = make_config(vector_size=64, negative=16)
    check_agreement(make_work(config, num_users=20, num_items=40), tile_users, CARD_TOLERANCE)
    assert max(roundings) > 0


@several_streams
@pytest.mark.parametrize("num_users", [1, 13, 60])
def test_streams_of_a_few_users(num_users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that take a second user, pass over those whose tokens are all thinned out, and run empty at a stream's end."""
    monkeypatch.setattr(signature, "STREAM_USERS", 12)
    work = make_work(make_config(sample=0.01), num_users=num_users, num_items=20)
    assert len(work.streams) == max(1, num_users // 12) + 1
    check_agreement(work, tile_users=5)


def test_lists_are_longer_than_a_chunk() -> None:
    """More users than one turn of the list's loop takes, each with a token or two."""
    work = make_work(make_config(negative=2), num_users=2 * gpu.LIST_CHUNK + 5, num_items=20)
    check_agreement(dataclasses.replace(work, ends=np.minimum(work.ends, work.starts + 1)), tile_users=32)


def test_the_first_user_of_a_stream_may_have_no_token() -> None:
    work = make_work(make_config(), num_users=6, num_items=9)
    order = np.concatenate(([0], np.setdiff1d(work.order, [0])))
    assert work.starts[0] == work.ends[0]
    check_agreement(dataclasses.replace(work, order=order), tile_users=4)


def test_nobody_has_a_token() -> None:
    work = make_work(make_config(), num_users=3, num_items=9)
    work = dataclasses.replace(work, ends=work.starts)
    users, items = make_rows(work)
    before = items.outputs.copy()
    assert train(users, items, work) == 0
    np.testing.assert_array_equal(items.outputs.vectors, before.vectors)
    np.testing.assert_array_equal(items.outputs.squares, before.squares)


def test_scores_far_out_stay_finite() -> None:
    work = make_work(make_config(optimizer="sgd"), num_users=5, num_items=9)
    users, items = make_rows(work)
    items.outputs.vectors *= 1000
    train(users, items, work)
    assert all(np.isfinite(vectors).all() for vectors in (users.vectors, items.outputs.vectors))


BEHAVIOURS: dict[str, Callable[[], None]] = {
    "gradient": partial(suite.test_a_step_is_the_gradient_of_the_loss, "gpu", "sampled_softmax"),
    "L2 and bias": partial(suite.test_l2_holds_back_all_of_an_item_but_its_bias, "gpu", 1, 19),
    "adagrad": partial(suite.test_adagrad_divides_by_the_root_of_the_squares_so_far, "gpu"),
    "order": partial(suite.test_only_the_users_in_the_order_change, "gpu"),
    "frozen items": partial(suite.test_frozen_items_do_not_change, "gpu", "dbow"),
    "same bits": partial(suite.test_the_same_call_gives_the_same_bits, "gpu", "dbow small tiles"),
    "one item": partial(suite.test_one_item_has_no_rivals, "gpu", "dbow"),
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_it_behaves_as_all_kernels_do(behaviour: str) -> None:
    if HAS_GPU and behaviour == "same bits":
        pytest.skip("on a GPU the sum of several adds to a row hangs on their order")
    BEHAVIOURS[behaviour]()
