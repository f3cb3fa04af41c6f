"""Rows of a tile: whatever the order of programs and lanes no update is lost, and rows may be anywhere in a large table.

In Triton's interpreter, whose atomic adds are done here in any order, and whose programs take turns at each of them.
"""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from greenlet import getcurrent, greenlet
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.trainer.kernels import signature
from surf2vec.trainer.model.rows import Rows
from tests.trainer.kernels.test_gpu import HAS_GPU, check_agreement, gpu, interpret, make_config, make_rows, make_work
from tests.trainer.kernels.test_gpu_trail import check_agreement as check_trail
from tests.trainer.kernels.test_gpu_trail import make_case

__all__ = ["interpret"]  # a fixture
pytestmark = pytest.mark.skipif(HAS_GPU, reason="a card has its own order")
interpreter = importlib.import_module("triton.runtime.interpreter")  # after test_gpu has imported Triton to interpret
Builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
few = settings(max_examples=5)


class AnyOrder:
    """Does the elements of an atomic operation in any order; sums: what was added to a float32, by its address."""

    def __init__(self, seed: int) -> None:
        self.rng, self.sums = np.random.default_rng(seed), dict[int, float]()
        self.real = Builder.create_atomic_rmw
        self.between: Callable[[], None] = lambda: None

    def __enter__(self) -> "AnyOrder":
        Builder.create_atomic_rmw = lambda builder, *arguments: self.move(builder, *arguments)
        return self

    def __exit__(self, *_: object) -> None:
        Builder.create_atomic_rmw = self.real

    def move(self, builder: Any, op: Any, at: Any, value: Any, mask: Any, *others: Any) -> Any:
        self.between()
        order = self.rng.permutation(at.data.size)
        parts = [Handle(np.broadcast_to(x.data, at.data.shape).reshape(-1)[order], x.dtype) for x in (at, value, mask)]
        found = self.real(builder, op, *parts, *others)
        if op == interpreter._ir.ATOMIC_OP.FADD:
            for address, added, is_on in zip(*(part.data for part in parts), strict=True):
                self.sums[int(address)] = self.sums.get(int(address), 0.0) + float(added) * bool(is_on)
        before = np.empty_like(found.data)
        before[order] = found.data
        return Handle(before.reshape(at.data.shape), found.dtype)

    def added_to(self, array: np.ndarray) -> np.ndarray:
        """What was added to the elements of an array."""
        first = array.ctypes.data
        return np.array([self.sums.get(first + 4 * i, 0.0) for i in range(array.size)]).reshape(array.shape)


class TakingTurns:
    """In place of `train_stream`: its programs run side by side; at each atomic operation any of them may be next."""

    def __init__(self, program: Any, any_order: AnyOrder) -> None:
        self.program, self.any_order, self.num_programs = program, any_order, 0

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        function, builder, main = self.program.rewrite(), interpreter.interpreter_builder, getcurrent()

        def run(*tensors: Any, num_warps: int, **constants: Any) -> None:
            named = inspect.getcallargs(function, *tensors, **constants)
            named = {
                name: each if name in constants else interpreter._implicit_cvt(each) for name, each in named.items()
            }
            scope, self.any_order.between = interpreter._patch_lang(function), main.switch
            builder.set_grid_dim(*grid, 1, 1)
            programs = [greenlet(lambda: function(**named)) for _ in range(grid[0])]
            while running := [place for place, program in enumerate(programs) if not program.dead]:
                place = int(self.any_order.rng.choice(running))
                builder.set_grid_idx(place, 0, 0)
                programs[place].switch()
            scope.restore()
            self.any_order.between, self.num_programs = lambda: None, grid[0]

        return run


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


@pytest.mark.slow
@few
@given(seed=st.integers(0, 2**32), num_items=st.integers(4, 12))
def test_programs_side_by_side_lose_no_update(seed: int, num_items: int) -> None:
    """Each row of items ends as it began plus all that was added to it, by whichever program; so do Adagrad's sums."""
    with AnyOrder(seed) as any_order, pytest.MonkeyPatch.context() as patch:
        turns = TakingTurns(gpu.train_stream, any_order)
        patch.setattr(signature, "STREAM_USERS", 3)
        patch.setattr(gpu, "train_stream", turns)
        work = make_work(make_config(tile_users=2), 12, num_items)
        users, items = make_rows(work)
        rows = gpu.on_device(items.outputs, torch.device("cpu"))
        scratch = gpu.make_scratch(len(work.hashes), len(work.tokens), torch.device("cpu"))
        gpu.launch(
            gpu.on_device(users, rows.vectors.device),
            rows,
            gpu.on_device(work, rows.vectors.device, streams=work.streams),
            scratch,
        )
        check_sums(any_order, [(rows, items.outputs)])
        trail, tables, work = make_case(12, num_items, trail_negative=5)
        rows = gpu.on_device(trail, torch.device("cpu"), **vars(tables))
        scratch = gpu.make_scratch(len(work.hashes), len(work.tokens), torch.device("cpu"))
        gpu.launch_trail(rows, gpu.on_device(work, rows.outputs.vectors.device, streams=work.streams), scratch, 0.5)
        check_sums(any_order, [(rows.outputs, trail.outputs), (rows.inputs, trail.inputs)])
        assert turns.num_programs > 1


def check_sums(any_order: AnyOrder, tables: list[tuple[Any, Rows]]) -> None:
    for found, begun in tables:
        for after, before in ((found.vectors.numpy(), begun.vectors), (found.squares.numpy(), begun.squares)):
            added = any_order.added_to(after)
            assert np.abs(added).max() > 0
            np.testing.assert_allclose(after, before + added, atol=1e-5, rtol=1e-5)


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
