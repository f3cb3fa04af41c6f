"""The Triton kernel against the reference, in Triton's interpreter, or on the GPU where there is one; and compiled for Hopper.

Triton chooses between interpreter and compiler when it is imported and when a kernel is defined. So the environment says
"interpret" while this file does both, with a copy of the kernel of its own; and what is compiled is so by this file run as
a program, `python -m tests.trainer.kernels.test_gpu '{"negative": 5}'`, which needs no GPU.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.lockstep import lane_spread
from tests.lockstep import middle_rows as make_rows
from tests.trainer.kernels import reference
from trainer.config import TrainConfig
from trainer.draws import epoch_key
from trainer.errors import ConfigError, ResourceError
from trainer.kernels.signature import Pass
from trainer.model.objectives import make_sampling
from trainer.model.rows import Items, Rows

HAS_GPU = torch.cuda.is_available()
TOLERANCE = 2e-4 if HAS_GPU else 2e-6  # a GPU's exp, division and root are approximate
NUM_WIDE = 2
SETTINGS: list[dict[str, Any]] = [
    {}, {"negative": 5}, {"vector_size": 33, "negative": 3},
]  # fmt: skip
"""What is compiled for an H200; the first `NUM_WIDE` have rows of whole 16-byte pieces."""


def define_kernel() -> ModuleType:
    """A copy of trainer.kernels.gpu, and of the programs it launches, that other tests do not see."""
    with mock.patch.dict(sys.modules):
        for name in ("trainer.kernels.programs", "trainer.kernels.gpu"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    return module


is_interpreted = not HAS_GPU and __name__ != "__main__"
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


def train(users: Rows, items: Items, work: Pass) -> int:
    """One call; on a GPU a call a user, since those side by side differ from the reference by more than rounding."""
    if not HAS_GPU:
        return gpu.train_users(users, items, work)
    steps = (
        dataclasses.replace(work, order=work.order[i : i + 1], alphas=work.alphas[i : i + 1])
        for i in range(len(work.order))
    )
    return sum(gpu.train_users(users, items, step) for step in steps)


def check_agreement(work: Pass) -> None:
    """A card does not promise which of a user's equal negatives meets Adagrad's sum first: the tolerance has what that makes."""
    work = dataclasses.replace(work, config=dataclasses.replace(work.config, tile_users=1))
    users, items = make_rows(work)
    expected_users, expected_items = users.copy(), items.copy()
    expected = reference.train_users(expected_users, expected_items, work)
    assert train(users, items, work) == expected
    tolerance = TOLERANCE + 2 * lane_spread(work) * HAS_GPU
    for ours, theirs in ((users, expected_users), (items.outputs, expected_items.outputs)):
        np.testing.assert_allclose(ours.vectors, theirs.vectors, atol=tolerance)
        np.testing.assert_allclose(ours.squares, theirs.squares, atol=tolerance)


@pytest.mark.parametrize(
    ("objective", "optimizer", "recency", "update_items"),
    list(itertools.product(("sampled_softmax", "negative_sampling"), ("adagrad", "sgd"), (0, 2.0), (True, False))),
)
def test_it_does_what_the_reference_does(objective: Any, optimizer: Any, recency: float, update_items: bool) -> None:
    config = TrainConfig(
        parts="interest", vector_size=6, negative=3, objective=objective, optimizer=optimizer, sample=0
    )
    work = make_work(config, num_users=3, num_items=7, recency=recency)
    check_agreement(dataclasses.replace(work, update_items=update_items))


@pytest.mark.parametrize(("dims", "negative", "num_items"), [(1, 1, 1), (33, 9, 1), (63, 1, 40), (128, 5, 100)])
def test_odd_sizes(dims: int, negative: int, num_items: int) -> None:
    bias = 0.5 if dims > 1 else 0.0
    config = TrainConfig(parts="interest", vector_size=dims, negative=negative, sample=0, bias=bias)
    check_agreement(make_work(config, num_users=3, num_items=num_items, recency=3))


@pytest.mark.parametrize("key", [0, 2**64 - 1])
def test_subsampling_keeps_the_same_tokens(key: int) -> None:
    """A history longer than a chunk of the pass that thins it, in which almost every item is frequent."""
    work = make_work(
        TrainConfig(parts="interest", vector_size=4, negative=2, sample=0.02), num_users=3, num_items=6, key=key
    )
    tokens = np.random.default_rng(0).integers(0, 6, 100).astype(np.int32)
    starts, ends = np.array([0, 90, 95]), np.array([90, 95, 100])
    sampling = make_sampling(np.bincount(tokens, minlength=6), work.config)
    check_agreement(dataclasses.replace(work, tokens=tokens, starts=starts, ends=ends, sampling=sampling))


def test_only_the_users_in_the_order_change() -> None:
    work = make_work(TrainConfig(parts="interest", vector_size=5, negative=2), num_users=8, num_items=9)
    work = dataclasses.replace(work, order=np.array([4, 7]), alphas=np.full(2, 0.1, np.float32))
    users, items = make_rows(work)
    before = users.copy()
    users.vectors[[0, 3]] = np.nan  # poison: rows that nobody may read
    train(users, items, work)
    np.testing.assert_array_equal(users.vectors[[1, 2, 5, 6]], before.vectors[[1, 2, 5, 6]])
    assert not np.array_equal(users.vectors[[4, 7]], before.vectors[[4, 7]])
    assert np.isfinite(items.outputs.vectors).all()


def test_no_users_no_tokens() -> None:
    work = make_work(TrainConfig(parts="interest", vector_size=5, negative=2), num_users=2, num_items=3)
    nobody = dataclasses.replace(work, order=work.order[:0], alphas=work.alphas[:0])
    empty = dataclasses.replace(work, ends=work.starts)
    for case in (nobody, empty):
        users, items = make_rows(case)
        before_users, before_items = users.copy(), items.copy()
        assert train(users, items, case) == 0
        np.testing.assert_array_equal(users.vectors, before_users.vectors)
        np.testing.assert_array_equal(items.outputs.vectors, before_items.outputs.vectors)


@pytest.mark.skipif(HAS_GPU, reason="on a GPU users run side by side, and the last digits differ")
def test_the_same_call_gives_the_same_bits() -> None:
    work = make_work(TrainConfig(parts="interest", vector_size=7, negative=3), num_users=3, num_items=8)
    results = []
    for _ in range(2):
        users, items = make_rows(work)
        train(users, items, work)
        results.append((users, items.outputs))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.vectors, other.vectors)
        np.testing.assert_array_equal(one.squares, other.squares)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dm": 1}, "train.dm"),
        ({"dbow_words": 1}, "train.dbow_words"),
        ({"hs": 1}, "train.hs"),
        ({"accumulate": 2}, "train.accumulate"),
        ({"negative": 1000}, "train.negative 1000"),
        ({"vector_size": 4096}, "train.vector_size 4096"),
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
    monkeypatch.setattr(triton, "JITFunction", type(gpu.train_user))  # as if this kernel were not interpreted
    with pytest.raises(ResourceError, match="needs an NVIDIA GPU"):
        gpu.find_device()


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What this file as a program says of `SETTINGS`."""
    command = [sys.executable, "-m", "tests.trainer.kernels.test_gpu", *(json.dumps(settings) for settings in SETTINGS)]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    done = subprocess.run([*command, "--code"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(SETTINGS)))
def test_it_compiles_for_an_h200_without_spills(binaries: list[dict[str, str]], index: int) -> None:
    usage, code = binaries[index]["usage"], binaries[index]["code"]
    assert "STACK:0" in usage, usage
    assert "LOCAL:0" in usage, usage
    assert "ATOMG.E.ADD.F32" in code
    assert "REDG.E.ADD.F32" in code


@pytest.mark.slow
@pytest.mark.parametrize("index", range(NUM_WIDE))
def test_rows_are_read_and_moved_16_bytes_a_thread(binaries: list[dict[str, str]], index: int) -> None:
    """And read past the first-level cache, which does not see what other processors add."""
    assert "LDG.E.128.STRONG.GPU" in binaries[index]["code"]
    assert "REDG.E.ADD.F32x4" in binaries[index]["code"]


def compile_for_hopper(config: TrainConfig) -> bytes:
    """The training kernel for an H200, as a cubin."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = gpu.train_user
    constants: dict[str, Any] = {
        "D": config.vector_size, "K": config.negative, "NUM_FREE": config.num_free,
        "IS_FROZEN": False, "IS_SOFTMAX": config.objective == "sampled_softmax",
        "IS_ADAGRAD": config.optimizer == "adagrad",
    }  # fmt: skip
    types = dict.fromkeys(("users", "user_squares", "outputs", "output_squares", "alphas", "corrections"), "*fp32")
    types |= dict.fromkeys(("tokens", "kept", "num_kept", "aliases"), "*i32")
    types |= dict.fromkeys(("starts", "ends", "keys", "order", "thresholds"), "*i64")
    types |= dict.fromkeys(("recency_rate", "l2", "item_l2", "handicap"), "fp32")
    types |= {"num_items": "i32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types[name] for name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": gpu.num_warps(config)})
    return binary.asm["cubin"]


def main(arguments: list[str]) -> None:
    """Compile for each object of settings; print a line of JSON with what cuobjdump says of registers and memory."""
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for settings in (json.loads(argument) for argument in arguments if argument != "--code"):
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compile_for_hopper(TrainConfig(parts="interest", **settings)))
            file.flush()
            usage, code = (
                subprocess.run([cuobjdump, flag, file.name], capture_output=True, text=True, check=True).stdout
                for flag in ("--dump-resource-usage", "-sass")
            )
        line = next(line.strip() for line in usage.splitlines() if "REG:" in line)
        print(json.dumps({"usage": line} | ({"code": code} if "--code" in arguments else {})))


if __name__ == "__main__":
    main(sys.argv[1:])
