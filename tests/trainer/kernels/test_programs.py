"""Rows of a tile: whatever the order of lanes no update is lost, and rows may be anywhere in a large table.

In Triton's interpreter, whose atomic adds are done here in any order.
"""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.kernels.test_gpu import HAS_GPU, check_agreement, gpu, interpret, make_config, make_work
from tests.trainer.kernels.test_gpu_trail import check_agreement as check_trail
from tests.trainer.kernels.test_gpu_trail import make_case

__all__ = ["interpret"]  # a fixture
pytestmark = pytest.mark.skipif(HAS_GPU, reason="a card has its own order")
interpreter = importlib.import_module("triton.runtime.interpreter")  # after test_gpu has imported Triton to interpret
Builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
few = settings(max_examples=5)


class AnyOrder:
    """Does the elements of an atomic operation in any order."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.real = Builder.create_atomic_rmw

    def __enter__(self) -> "AnyOrder":
        Builder.create_atomic_rmw = lambda builder, *arguments: self.move(builder, *arguments)
        return self

    def __exit__(self, *_: object) -> None:
        Builder.create_atomic_rmw = self.real

    def move(self, builder: Any, op: Any, at: Any, value: Any, mask: Any, *others: Any) -> Any:
        order = self.rng.permutation(at.data.size)
        parts = [Handle(np.broadcast_to(x.data, at.data.shape).reshape(-1)[order], x.dtype) for x in (at, value, mask)]
        found = self.real(builder, op, *parts, *others)
        before = np.empty_like(found.data)
        before[order] = found.data
        return Handle(before.reshape(at.data.shape), found.dtype)


@pytest.mark.slow
@few
@given(seed=st.integers(0, 2**32), num_items=st.integers(1, 9), negative=st.integers(1, 20))
def test_lanes_in_any_order_do_what_the_reference_does(seed: int, num_items: int, negative: int) -> None:
    """Of few items: lanes have the same item, and negatives are drawn twice. No step is lost, and each is made once."""
    with AnyOrder(seed):
        check_agreement(make_work(make_config(negative=negative, item_l2=0.2), 7, num_items), 5, 1e-5)


@pytest.mark.slow
@few
@given(seed=st.integers(0, 2**32), num_items=st.integers(4, 12), window=st.integers(1, 5))
def test_lanes_of_the_trail_in_any_order_do_what_the_reference_does(seed: int, num_items: int, window: int) -> None:
    """Lanes have the same target, the same page at a lag, and the same lags."""
    with AnyOrder(seed):
        check_trail(make_case(9, num_items, trail_window=window, trail_negative=5), 0.5)


@pytest.mark.parametrize("is_trail", [False, True])
def test_rows_beyond_2_to_the_31_numbers_are_the_right_ones(
    is_trail: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows after 2**31 numbers, in files with holes, move as few in a small table do: with the same bits."""
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)  # it would fill the holes
    dims, num, first = 256, 8, 2**23
    ends = []
    for base in (0, first):
        ends.append(train_from(base, base + num, dims, is_trail, tmp_path))
    for small, large in zip(*ends, strict=True):
        assert small.any()
        np.testing.assert_array_equal(large, small)


def train_from(base: int, num_rows: int, dims: int, is_trail: bool, folder: Path) -> list[np.ndarray]:
    """Train 8 items and 3 users whose rows are the last of large tables; returns their rows."""
    rng, own = np.random.default_rng(2), slice(base, base + 8)
    parts = {"parts": "trail" if is_trail else "interest"}
    config = make_config(vector_size=dims, negative=3, trail_negative=3, tile_users=3, **parts)

    def make(name: str, *shape: int) -> torch.Tensor:
        values = np.memmap(folder / f"{name}-{base}", np.float32, "w+", shape=shape)
        values[own] = 0.3 * rng.normal(size=(8, *shape[1:])) ** 2
        return torch.from_numpy(values)

    def put(values: Any, dtype: Any) -> torch.Tensor:
        array = np.zeros(num_rows, dtype)
        array[base : base + len(values)] = values
        return torch.from_numpy(array)

    def table(name: str, width: int) -> SimpleNamespace:
        return SimpleNamespace(vectors=make(name, num_rows, width), squares=make(f"{name}-squares", num_rows))

    tokens = base + rng.integers(0, 8, 30).astype(np.int32)
    aliases = torch.from_numpy(
        (base + np.arange(num_rows) // (num_rows // 8)).astype(np.int32)
    )  # the same as of 8 items
    thresholds, everything = torch.zeros(num_rows, dtype=torch.int64), np.full(8, 2**32)
    noise = {"thresholds": thresholds, "aliases": aliases, "corrections": put(np.zeros(8), np.float32)}
    outputs = table("outputs", dims)
    work = SimpleNamespace(
        config=config, tokens=torch.from_numpy(tokens), starts=put([0, 10, 20], np.int64), ends=put([10, 20, 30], np.int64),
        hashes=put([5, 6, 7], np.int64), order=torch.arange(base, base + 3), alphas=torch.full((3,), 0.1),
        streams=torch.tensor([0, 3]), sampling=SimpleNamespace(keep=put(everything, np.int64), **noise), recency=0.0,
        epoch_key=9, update_items=True,
    )  # fmt: skip
    scratch = gpu.make_scratch(num_rows, len(tokens), torch.device("cpu"))
    if not is_trail:
        users = table("users", dims)
        gpu.launch(users, outputs, work, scratch)
        return [each[own].numpy() for each in (users.vectors, users.squares, outputs.vectors, outputs.squares)]
    inputs, lags = (
        table("inputs", dims),
        SimpleNamespace(vectors=torch.full((10, 1), 0.5), squares=torch.full((10,), 0.1)),
    )
    l2s, shares = put(np.full(8, 0.01), np.float32), put(np.ones(8), np.float32)
    trail = SimpleNamespace(outputs=outputs, inputs=inputs, lags=lags, l2s=l2s, shares=shares, **noise)
    gpu.launch_trail(trail, work, scratch, 0.5)
    return [each[own].numpy() for each in (outputs.vectors, outputs.squares, inputs.vectors, inputs.squares)]
