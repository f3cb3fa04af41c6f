"""The Triton kernel against the reference, in Triton's interpreter, or on the GPU where there is one; and compiled.

Triton chooses between interpreter and compiler when it is imported and when a kernel is defined. So the environment says
"interpret" while this file does both, with a copy of the kernel of its own; and what is compiled is so by a process of its own,
`tests.benchmarks.gpu_compile`, which needs no GPU.
"""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from copy import deepcopy
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import epoch_key
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.kernels import signature
from surf2vec.trainer.kernels.first_rows import round_to_bfloat16
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import make_sampling
from surf2vec.trainer.model.rows import Items, Rows
from tests.trainer.kernels import reference

HAS_GPU = torch.cuda.is_available()
CARD_TOLERANCE = 1e-3  # products have factors of 11 bits: so rounded, the interpreter differs by 4.2e-4 at most
TOLERANCE = CARD_TOLERANCE if HAS_GPU else 2e-6


def define_kernel() -> ModuleType:
    """A copy of surf2vec.trainer.kernels.gpu, and of the programs it launches, that other tests do not see."""
    with mock.patch.dict(sys.modules):
        for part in ("programs", "tile_program", "gpu"):
            name = f"surf2vec.trainer.kernels.{part}"
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    return module


is_interpreted = not HAS_GPU
with mock.patch.dict(os.environ, TRITON_INTERPRET=str(int(is_interpreted))):
    import triton

    gpu = define_kernel()
assert isinstance(triton.language.sum, triton.JITFunction) != is_interpreted, (
    "another test imported triton before this one"
)


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter imports parts of Triton at its first call."""
    monkeypatch.setenv("TRITON_INTERPRET", str(int(is_interpreted)))


def make_work(
    config: TrainConfig, num_users: int, num_items: int, recency: float = 0, key: int = epoch_key(1, 0)
) -> Pass:
    """Random histories, the first one empty; few items, so that many are in a block twice."""
    rng = np.random.default_rng(num_users + num_items)
    lengths = rng.integers(2, 8, num_users)
    lengths[0] = 0
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = np.minimum(rng.zipf(1.3, offsets[-1]) - 1, num_items - 1).astype(np.int32)
    return Pass(
        config=config, tokens=tokens, starts=offsets[:-1], ends=offsets[1:],
        hashes=rng.integers(0, 2**64, num_users, dtype=np.uint64), order=rng.permutation(num_users),
        alphas=np.linspace(0.3, 0.1, num_users).astype(np.float32),
        sampling=make_sampling(np.bincount(tokens, minlength=num_items), config), tree=None, recency=recency, epoch_key=key,
    )  # fmt: skip


def make_rows(work: Pass) -> tuple[Rows, Items]:
    """Rows as in the middle of a training: Adagrad's step from a sum of zero makes much of a small gradient's last digit."""
    config, rng = work.config, np.random.default_rng(1)

    def draw(num_rows: int, spread: float) -> Rows:
        vectors = rng.normal(0, spread, (num_rows, config.interest_size)).astype(np.float32)
        return Rows(vectors, np.full(num_rows, 0.01, dtype=np.float32))

    users = draw(len(work.hashes), 0.1)
    users.vectors[:, config.num_free :] = config.bias
    return users, Items(draw(len(work.sampling.keep), 0.3), draw(0, 0.0))


def train(users: Rows, items: Items, work: Pass) -> int:
    """One call; on a GPU a call a user, since streams side by side differ from the reference by more than rounding. A single
    stream is one program.
    """
    if not HAS_GPU or len(work.streams) == 2:
        return gpu.train_users(users, items, work)
    steps = (
        dataclasses.replace(work, order=work.order[i : i + 1], alphas=work.alphas[i : i + 1])
        for i in range(len(work.order))
    )
    return sum(gpu.train_users(users, items, step) for step in steps)


def check_agreement(work: Pass, tile_users: int = 3, tolerance: float = TOLERANCE) -> None:
    """The kernel and the reference end with the same rows."""
    work = dataclasses.replace(work, config=dataclasses.replace(work.config, tile_users=tile_users))
    users, items = make_rows(work)
    expected_users, expected_items = deepcopy(users), deepcopy(items)
    num_at_once = gpu.negatives_at_once(work.config.negative, work.config.interest_size)
    with mock.patch.multiple(reference, NUM_AT_ONCE=num_at_once, AT_ONCE=True):
        expected = reference.train_users(expected_users, expected_items, work)
    assert train(users, items, work) == expected
    rtol = 5e-4 if tolerance == CARD_TOLERANCE else 1e-6  # of sums, which grow to 30
    for ours, theirs in ((users, expected_users), (items.outputs, expected_items.outputs)):
        np.testing.assert_allclose(ours.vectors, theirs.vectors, atol=tolerance)
        np.testing.assert_allclose(ours.squares, theirs.squares, rtol=rtol, atol=tolerance)


def make_config(**settings: Any) -> TrainConfig:
    return TrainConfig(**({"parts": "interest", "vector_size": 6, "negative": 3, "sample": 0} | settings))


SGD: dict[str, Any] = {"optimizer": "sgd"}


@pytest.mark.parametrize("settings", [{"negative": 40}, SGD | {"negative": 33, "item_l2": 0.2}])
def test_negatives_in_blocks_do_what_the_reference_does(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few items: the same item is drawn in several blocks, whose maximum and sum run along."""
    monkeypatch.setattr(gpu, "MAX_BLOCK_VALUES", 256)
    work = make_work(make_config(**settings), 5, 7, recency=3)
    assert gpu.negatives_at_once(work.config.negative, work.config.interest_size) == 16
    check_agreement(work, 4)


@pytest.mark.parametrize(
    ("settings", "num_items", "recency", "tile_users"),
    [
        ({"item_l2": 0.0}, 7, 0, 2), ({"item_l2": 0.2}, 7, 2.0, 3), ({"item_l2": 0.2}, 7, 1.0, 32),
        (SGD | {"item_l2": 0.2}, 7, 2.0, 32), (SGD | {"item_l2": 0.0}, 7, 0, 3),
        ({"vector_size": 1, "negative": 1, "bias": 0.0}, 1, 3, 2), ({"vector_size": 33, "negative": 9}, 1, 3, 5),
        ({"vector_size": 63, "negative": 1}, 40, 3, 17), ({"vector_size": 128, "negative": 5}, 100, 3, 16),
        ({"vector_size": 20, "negative": 33}, 9, 3, 40),
    ],
)  # fmt: skip
def test_it_does_what_the_reference_does(
    settings: dict[str, Any], num_items: int, recency: float, tile_users: int
) -> None:
    """Of few items: most steps have lanes with the same item, and negatives that were drawn twice. Odd sizes, too."""
    check_agreement(make_work(make_config(**settings), 9, num_items, recency=recency), tile_users)


def test_frozen_items_stand_still_and_users_move_as_in_the_reference() -> None:
    """Where items stand still the reference has private negatives; so each user moves by itself, whoever else is trained."""
    work = dataclasses.replace(make_work(make_config(tile_users=4), num_users=9, num_items=7), update_items=False)
    users, items = make_rows(work)
    first, alone, before = deepcopy(users), deepcopy(users), deepcopy(items)
    train(users, items, work)
    assert (users.vectors != first.vectors).any(axis=1).sum() == 8
    np.testing.assert_array_equal(items.outputs.vectors, before.outputs.vectors)
    np.testing.assert_array_equal(items.outputs.squares, before.outputs.squares)
    train(alone, items, dataclasses.replace(work, order=work.order[:4], alphas=work.alphas[:4]))
    np.testing.assert_array_equal(alone.vectors[work.order[4:]], first.vectors[work.order[4:]])


def round_to_tf32(x: np.ndarray) -> np.ndarray:
    """The nearest numbers of 11 significant bits, as tensor cores take factors."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.skipif(HAS_GPU, reason="a GPU has the rounding")
def test_factors_of_11_bits_agree_to_the_tolerance_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies float32; here it rounds the factors first. Adagrad's sums begin small, which is the worst."""
    from triton.runtime import interpreter  # not before Triton was imported to interpret

    roundings: list[float] = []
    create_dot = interpreter.InterpreterBuilder.create_dot

    def create_rounded_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        roundings.append(np.abs(round_to_tf32(a.data) - a.data).max())
        a, b = (interpreter.TensorHandle(round_to_tf32(np.ascontiguousarray(x.data)), x.dtype) for x in (a, b))
        return create_dot(self, a, b, *others)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_rounded_dot)
    check_agreement(make_work(make_config(vector_size=64, negative=16), 20, 40), 32, CARD_TOLERANCE)
    assert max(roundings) > 0


@pytest.mark.skipif(HAS_GPU, reason="on a GPU streams run side by side, and the last digits differ")
@pytest.mark.parametrize("num_users", [1, 30])
def test_streams_of_a_few_users(num_users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that take a second user, pass over those whose tokens are all thinned out, and run empty at a stream's end."""
    monkeypatch.setattr(signature, "STREAM_USERS", 12)
    work = make_work(make_config(sample=0.01), num_users=num_users, num_items=20)
    assert len(work.streams) == max(1, num_users // 12) + 1
    check_agreement(work, tile_users=5)


def test_lists_are_longer_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """More users than one turn of the list's loop takes, each with a token or two; the first of the order has none."""
    monkeypatch.setattr(gpu, "LIST_CHUNK", 16)
    work = make_work(make_config(negative=2), num_users=37, num_items=20)
    order = np.concatenate(([0], np.setdiff1d(work.order, [0])))
    assert work.starts[0] == work.ends[0]
    ends = np.minimum(work.ends, work.starts + 1)
    check_agreement(dataclasses.replace(work, ends=ends, order=order), tile_users=32)


def test_scores_far_out_stay_finite() -> None:
    work = make_work(make_config(optimizer="sgd"), num_users=5, num_items=9)
    users, items = make_rows(work)
    items.outputs.vectors *= 1000
    train(users, items, work)
    assert all(np.isfinite(vectors).all() for vectors in (users.vectors, items.outputs.vectors))


@pytest.mark.parametrize("key", [0, 2**64 - 1])
def test_subsampling_keeps_the_same_tokens(key: int) -> None:
    """A history longer than a chunk of the pass that thins it, in which almost every item is frequent."""
    work = make_work(make_config(vector_size=4, negative=2, sample=0.02), num_users=3, num_items=6, key=key)
    tokens = np.random.default_rng(0).integers(0, 6, 100).astype(np.int32)
    starts, ends = np.array([0, 90, 95]), np.array([90, 95, 100])
    sampling = make_sampling(np.bincount(tokens, minlength=6), work.config)
    check_agreement(dataclasses.replace(work, tokens=tokens, starts=starts, ends=ends, sampling=sampling))


def test_no_users_no_tokens() -> None:
    work = make_work(make_config(vector_size=5, negative=2), num_users=2, num_items=3)
    nobody = dataclasses.replace(work, order=work.order[:0], alphas=work.alphas[:0])
    for case in (nobody, dataclasses.replace(work, ends=work.starts)):
        users, items = make_rows(case)
        before_users, before_items = deepcopy(users), deepcopy(items)
        assert train(users, items, case) == 0
        np.testing.assert_array_equal(users.vectors, before_users.vectors)
        np.testing.assert_array_equal(items.outputs.vectors, before_items.outputs.vectors)
        np.testing.assert_array_equal(items.outputs.squares, before_items.outputs.squares)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dm": 1}, "train.dm"),
        ({"hs": 1}, "train.hs"),
        ({"accumulate": 2}, "train.accumulate"),
        ({"objective": "negative_sampling"}, "train.objective"),
        ({"tile_users": 1}, "train.tile_users above 1"),
        ({"vector_size": 4096}, "train.vector_size 4096"),
        ({"tile_users": 1024}, "train.tile_users 1024"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    config = TrainConfig(parts="interest", **settings)
    with pytest.raises(ConfigError, match=words):
        gpu.check_supported(config)
    work = make_work(config, num_users=2, num_items=3)
    with pytest.raises(ConfigError, match=words):
        train(*make_rows(work), work)


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "JITFunction", type(gpu.train_stream))  # as if this kernel were not interpreted
    with pytest.raises(ResourceError, match="needs an NVIDIA GPU"):
        gpu.find_device()


@pytest.fixture(scope="module", params=[90, pytest.param(80, marks=pytest.mark.long)])
def binaries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the compiler says of all programs for an H100, or an A100, with the warps that a launch takes."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.gpu_compile",
        "--used",
        "--json",
        "--targets",
        str(request.param),
    ]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_no_program_spills(binaries: list[dict[str, Any]]) -> None:
    """But for what stays in the first-level cache; and for 256 dimensions or negatives, and before sm_90 the larger programs."""
    assert len(binaries) == 12
    for binary in binaries:
        name, target = binary["program"], binary["target"]
        if "256" not in name and (target >= 90 or (not name.startswith("trail") and "128" not in name)):
            spilled = binary["spilled"] * 32 * binary["warps"]
            assert spilled <= 24_000, f"{name} spills {spilled:,} bytes on sm_{target}"


@pytest.mark.slow
def test_rows_are_read_and_moved_16_bytes_a_thread(binaries: list[dict[str, Any]]) -> None:
    """And read past the first-level cache, which does not see what other processors add. Before sm_90 adds have 4 bytes."""
    for binary in binaries:
        assert "LDG.E.128.STRONG.GPU" in binary["code"]
        assert ("REDG.E.ADD.F32x4" in binary["code"]) == (binary["target"] == 90)


@pytest.mark.slow
def test_products_are_those_of_tensor_cores(binaries: list[dict[str, Any]]) -> None:
    for binary in binaries:
        assert "HMMA" in binary["code"]


def test_users_are_rounded_with_the_bits_of_the_host() -> None:
    """Sizes beside powers of two, and numbers of all kinds."""
    rng = np.random.default_rng(3)
    for num_users, num_dims in ((1, 3), (5, 6), (3, 64)):
        config = TrainConfig(parts="interest", vector_size=num_dims, negative=2)
        work = make_work(config, num_users, num_items=9, key=epoch_key(1, 4))
        vectors = rng.normal(size=(num_users, num_dims)).astype(np.float32)
        vectors.flat[:3] = (0, np.inf, -1e-42)[: vectors.size]
        found = gpu.round_to_bfloat16(Rows(vectors, np.zeros(num_users, np.float32)), work)
        np.testing.assert_array_equal(found, round_to_bfloat16(vectors, seed=1, epoch=4, hashes=work.hashes))
