"""One behaviour suite for every kernel, and each kernel against the reference."""

import dataclasses
import math
import os
import shutil
import subprocess
import sys
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.draws import HELDOUT, counter, draws
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.kernels import cpu, pick_kernel, signature
from surf2vec.trainer.kernels.cpu import draw_negatives, score_rows
from surf2vec.trainer.kernels.losses import exp
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import make_sampling
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.model.trees import make_tree, path
from tests.trainer.kernels.work import SETTINGS, arrays, make_config, make_rows, make_work, train_users_of

KERNELS = ["reference", "cpu"]
ACCUMULATED = ["dbow", "dbow negative sampling"]
ROOT = Path(__file__).parents[3]


def assert_like_the_reference(work: Pass) -> None:
    users, items = make_rows(work)
    expected_users, expected_items = deepcopy(users), deepcopy(items)
    expected = train_users_of("reference", work.config)(expected_users, expected_items, work)
    assert pick_kernel("cpu", work.config).train_users(users, items, work) == expected
    for found, wanted in zip(arrays(users, items), arrays(expected_users, expected_items), strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("dims", [19, 64, 150])
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
@pytest.mark.parametrize("name", SETTINGS)
def test_cpu_does_what_the_reference_does(name: str, optimizer: str, dims: int) -> None:
    assert_like_the_reference(make_work(make_config(optimizer=optimizer, vector_size=dims, **SETTINGS[name])))


@pytest.mark.parametrize("dims", [19, 64, 150])
@pytest.mark.parametrize("accumulate", [2, 7, 40, 1000])
@pytest.mark.parametrize("name", ACCUMULATED)
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_accumulated_steps_are_those_of_the_reference(name: str, optimizer: str, accumulate: int, dims: int) -> None:
    settings = SETTINGS[name] | {"vector_size": dims, "optimizer": optimizer, "accumulate": accumulate}
    assert_like_the_reference(make_work(make_config(**settings)))


@pytest.mark.parametrize("name", ACCUMULATED)
@pytest.mark.parametrize("num_items", [1, 30, 1000])
def test_accumulated_steps_end_with_the_same_bits_on_any_number_of_threads(
    name: str, num_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items stand still while users are trained; more threads than cores, and than users, too."""
    monkeypatch.setattr(cpu, "max_threads", lambda: 64)
    results = set()
    for threads in (1, 2, 3, 7):
        work = make_work(make_config(accumulate=50, threads=threads, vector_size=80, **SETTINGS[name]), 120, num_items)
        users, items = make_rows(work)
        num_kept = cpu.train_users(users, items, work)
        results.add((num_kept, b"".join(array.tobytes() for array in arrays(users, items))))
    assert len(results) == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_with_frozen_items_each_user_trains_as_if_alone(name: str) -> None:
    """The reference trains each alone; the kernel in tiles, whose lanes are sorted by length. Items stay as they are."""
    work = dataclasses.replace(make_work(make_config(vector_size=80, **SETTINGS[name]), 90), update_items=False)
    users, items = make_rows(work)
    before, alone = deepcopy(items), deepcopy(users)
    assert_like_the_reference(work)
    cpu.train_users(users, items, work)
    for part in (slice(0, 1), slice(1, 8), slice(8, 90)):
        own = dataclasses.replace(work, order=work.order[part], alphas=work.alphas[part])
        cpu.train_users(alone, items, own)
    for found, wanted in zip(arrays(users, items), arrays(alone, before), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("num_users", "num_items", "dims"), [(1, 1, 1), (63, 100, 60), (100, 63, 33), (60, 5, 128)])
@pytest.mark.parametrize("sample", [0.0, 0.01])
@pytest.mark.parametrize("recency", [0.0, 3.0])
def test_cpu_does_what_the_reference_does_at_any_size(
    num_users: int, num_items: int, dims: int, sample: float, recency: float
) -> None:
    bias = 0.5 if dims > 1 else 0.0
    config = make_config(vector_size=dims, sample=sample, bias=bias)
    assert_like_the_reference(make_work(config, num_users, num_items, recency))


@pytest.mark.parametrize(
    "settings", [{}, {"l2": 0.0, "item_l2": 0.0}, {"negative": 1}, {"negative": 64}, {"bias": 0.0}]
)
@pytest.mark.parametrize("tile_users", [1, 7, 33])
def test_cpu_does_what_the_reference_does_under_other_settings(settings: dict[str, Any], tile_users: int) -> None:
    assert_like_the_reference(make_work(make_config(tile_users=tile_users, **settings)))


@pytest.mark.parametrize("num_users", [0, 1, 13, 90])
def test_streams_of_a_few_users_are_like_the_reference(num_users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that take a second user, and run empty at the end of each stream."""
    monkeypatch.setattr(signature, "STREAM_USERS", 12)
    work = make_work(make_config(tile_users=5), num_users)
    assert_like_the_reference(work)
    starts = work.streams
    assert len(starts) == max(1, num_users // 12) + (num_users > 0)
    assert (starts[0], starts[-1]) == (0, num_users)
    lengths = [int((work.ends - work.starts)[work.order[a:b]].sum()) for a, b in pairwise(starts)]
    assert max(lengths, default=0) - min(lengths, default=0) <= 2 * 12


def test_a_stream_ends_with_the_same_bits_whoever_trains_the_others() -> None:
    """As a part of a pass, and as a pass of its own: its draws and lanes hang on its own users alone."""
    work = make_work(make_config(vector_size=80), 1100)
    first, second = work.streams[1:]
    users, items = make_rows(work)
    alone_users, alone_items = deepcopy(users), deepcopy(items)
    cpu.train_users(users, items, work)
    for part in (slice(0, first), slice(first, second)):
        alone = dataclasses.replace(work, order=work.order[part], alphas=work.alphas[part])
        cpu.train_users(alone_users, alone_items, alone)
    for found, wanted in zip(arrays(users, items), arrays(alone_users, alone_items), strict=True):
        np.testing.assert_array_equal(found, wanted)


def one_token(settings: dict[str, Any]) -> tuple[Pass, Rows, Items]:
    """One user with the token 3, plain steps of rate 0.01 without L2: the change is the gradient's."""
    config = make_config(optimizer="sgd", l2=0.0, item_l2=0.0, sample=0.0, ns_exponent=0.5, **settings)
    counts = np.arange(1, 51, dtype=np.int64)
    work = dataclasses.replace(
        make_work(config, 1, 50, recency=0.0), tokens=np.array([3], np.int32), starts=np.array([0]),
        ends=np.array([1]), order=np.array([0]), alphas=np.array([0.01], np.float32),
        sampling=make_sampling(counts, config), tree=make_tree(config, counts),
    )  # fmt: skip
    return work, *make_rows(work)


def assert_gradient(before: np.ndarray, after: np.ndarray, tensor: torch.Tensor) -> None:
    assert tensor.grad is not None
    np.testing.assert_allclose(after - before, -0.01 * tensor.grad.numpy(), atol=1e-6)


def assert_user_gradient(before: np.ndarray, after: np.ndarray, tensor: torch.Tensor) -> None:
    """Of all coordinates but the last, the bias, which stands still although the loss would move it."""
    assert tensor.grad is not None
    assert tensor.grad[-1] != 0
    assert after[-1] == before[-1] == np.float32(TrainConfig().bias)
    tensor.grad[-1] = 0
    assert_gradient(before, after, tensor)


@pytest.mark.parametrize("objective", ["sampled_softmax", "negative_sampling"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_step_is_the_gradient_of_the_loss(name: str, objective: str) -> None:
    """Against autograd; which item was drawn is read off the change."""
    work, users, items = one_token({"negative": 1, "objective": objective})
    new_users, new_items = deepcopy(users), deepcopy(items)
    train_users_of(name, work.config)(new_users, new_items, work)
    changed = np.flatnonzero((new_items.outputs.vectors != items.outputs.vectors).any(axis=1))
    assert len(changed) == 2
    assert 3 in changed
    negative = int(changed[changed != 3][0])
    u = torch.tensor(users.vectors[0], requires_grad=True)
    v = torch.tensor(items.outputs.vectors, requires_grad=True)
    if objective == "sampled_softmax":
        scores = torch.stack([u @ v[3], u @ v[negative]]) - torch.from_numpy(work.sampling.corrections[[3, negative]])
        loss = -torch.log(scores[0].exp() / (scores[0].exp() + work.config.negative_weight * scores[1].exp()))
    else:
        loss = -torch.nn.functional.logsigmoid(u @ v[3]) - torch.nn.functional.logsigmoid(-(u @ v[negative]))
    loss.backward()
    assert_user_gradient(users.vectors[0], new_users.vectors[0], u)
    assert_gradient(items.outputs.vectors, new_items.outputs.vectors, v)


@pytest.mark.parametrize("dims", [19, 128])
@pytest.mark.parametrize("accumulate", [1, 5])
@pytest.mark.parametrize("name", KERNELS)
def test_l2_holds_back_all_of_an_item_but_its_bias(name: str, accumulate: int, dims: int) -> None:
    work, users, items = one_token({"negative": 1, "accumulate": accumulate, "vector_size": dims})
    rows = []
    for item_l2 in (0.0, 0.5):
        held = dataclasses.replace(work, config=dataclasses.replace(work.config, item_l2=item_l2))
        new_items = deepcopy(items)
        train_users_of(name, held.config)(deepcopy(users), new_items, held)
        rows.append(new_items.outputs.vectors[3])
    np.testing.assert_allclose(rows[1][:-1], (rows[0] - 0.01 * 0.5 * items.outputs.vectors[3])[:-1], atol=1e-7)
    assert rows[1][-1] == pytest.approx(rows[0][-1], abs=1e-7) != items.outputs.vectors[3, -1]


@pytest.mark.parametrize("score", [5.9, 6.1, -5.9, -6.1])
@pytest.mark.parametrize("name", KERNELS)
def test_negative_sampling_leaves_scores_far_out_alone(name: str, score: float) -> None:
    """gensim's rule: beyond ±6 a score is certain, or an outlier."""
    work, users, items = one_token({"negative": 3, "objective": "negative_sampling"})
    u = users.vectors[0]
    items.outputs.vectors[:] = score * u / (u @ u)
    before = deepcopy(users), deepcopy(items)
    train_users_of(name, work.config)(users, items, work)
    has_moved = [(a != b).any() for a, b in zip(arrays(*before), arrays(users, items), strict=True)]
    assert any(has_moved) == (abs(score) < 6)


@pytest.mark.parametrize("tree", ["huffman", "two_level", "balanced"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_step_down_a_tree_is_the_gradient_of_the_loss(name: str, tree: str) -> None:
    work, users, items = one_token({"hs": 1, "tree": tree, "tree_branching": 5})
    assert work.tree is not None
    new_users, new_items = deepcopy(users), deepcopy(items)
    train_users_of(name, work.config)(new_users, new_items, work)
    u = torch.tensor(users.vectors[0], requires_grad=True)
    v = torch.tensor(items.outputs.vectors, requires_grad=True)
    loss = torch.zeros(())
    for node, slot in path(work.tree, 3):
        first, width = int(work.tree.first_rows[node]), int(work.tree.widths[node])
        if width == 2:
            loss = loss - torch.nn.functional.logsigmoid((1 - 2 * slot) * (u @ v[first]))
        elif width > 2:
            loss = loss - torch.log_softmax(v[first : first + width] @ u, dim=0)[slot]
    loss.backward()
    assert_user_gradient(users.vectors[0], new_users.vectors[0], u)
    assert_gradient(items.outputs.vectors, new_items.outputs.vectors, v)


@pytest.mark.parametrize("name", KERNELS)
def test_the_mean_of_user_and_context_predicts(name: str) -> None:
    """PV-DM, window 1, two tokens: the first is predicted by the mean of the user and the second."""
    config = make_config(dm=1, window=1, optimizer="sgd", l2=0.0, sample=0.0, objective="negative_sampling", negative=1)
    work = dataclasses.replace(
        make_work(config, 1, 50, recency=0.0), tokens=np.array([3, 4], np.int32), starts=np.array([0]),
        ends=np.array([2]), order=np.array([0]), alphas=np.array([0.01], np.float32),
        sampling=make_sampling(np.ones(50, np.int64), config),
    )  # fmt: skip
    users, items = make_rows(work)
    items.outputs.vectors[:] = 0  # nothing pulls the hidden vector: only outputs move, by half a rate of it
    before = users.vectors[0].copy()
    train_users_of(name, work.config)(users, items, work)
    hidden = (before + items.inputs.vectors[4]) / 2
    cosine = items.outputs.vectors[3] @ hidden / np.linalg.norm(items.outputs.vectors[3]) / np.linalg.norm(hidden)
    assert cosine == pytest.approx(1, abs=1e-3)
    assert np.linalg.norm(items.outputs.vectors[3]) == pytest.approx(0.005 * np.linalg.norm(hidden), rel=0.05)


@pytest.mark.parametrize("name", KERNELS)
def test_adagrad_divides_by_the_root_of_the_squares_so_far(name: str) -> None:
    work, users, items = one_token({"negative": 1})
    plain_users = deepcopy(users)
    train_users_of(name, work.config)(plain_users, deepcopy(items), work)
    gradient = (plain_users.vectors[0] - users.vectors[0]) / np.float32(0.01)
    adagrad = dataclasses.replace(work, config=dataclasses.replace(work.config, optimizer="adagrad"))
    new_users = deepcopy(users)
    new_users.squares[0] = 0.5
    train_users_of(name, work.config)(new_users, deepcopy(items), adagrad)
    squares = 0.5 + np.mean(gradient**2)
    assert new_users.squares[0] == pytest.approx(squares, rel=1e-4)
    np.testing.assert_allclose(
        new_users.vectors[0] - users.vectors[0], 0.01 / math.sqrt(squares) * gradient, rtol=1e-3, atol=1e-7
    )


@pytest.mark.parametrize("name", KERNELS)
def test_only_the_users_in_the_order_change(name: str) -> None:
    work = dataclasses.replace(make_work(make_config()), order=np.array([4, 7]), alphas=np.full(2, 0.05, np.float32))
    users, items = make_rows(work)
    before = users.vectors.copy()
    users.vectors[[0, 39]] = np.nan  # poison: rows that nobody may read
    train_users_of(name, work.config)(users, items, work)
    untouched = [row for row in range(1, 39) if row not in (4, 7)]
    np.testing.assert_array_equal(users.vectors[untouched], before[untouched])
    assert np.isfinite(items.outputs.vectors).all()


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("setting", ["dbow", "dbow negative sampling", "dm", "dm two levels"])
def test_the_bits_do_not_hang_on_where_memory_was_free(setting: str, is_frozen: bool) -> None:
    """Compiled loops over arrays that lie close together round otherwise than over arrays far apart."""
    settings = SETTINGS[setting] | {"vector_size": 80, "negative": 20}
    config, between = make_config(**settings), np.random.default_rng(2)
    work = dataclasses.replace(make_work(config, num_users=15), update_items=not is_frozen)
    results, kept = set(), []
    for _ in range(100):
        kept.append([np.empty(size) for size in between.integers(1, 60, 3)])
        if len(kept) > 30:
            kept.pop(between.integers(len(kept)))
        users, items = make_rows(work)
        pick_kernel("cpu", config).train_users(users, items, work)
        results.add(b"".join(array.tobytes() for array in arrays(users, items)))
    assert len(results) == 1


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", KERNELS)
def test_one_item_has_no_rivals(name: str, setting: str) -> None:
    work = make_work(make_config(**SETTINGS[setting]), 3, 1)
    users, items = make_rows(work)
    train_users_of(name, work.config)(users, items, work)
    assert all(np.isfinite(array).all() for array in arrays(users, items))


@pytest.mark.parametrize("name", KERNELS)
def test_scores_far_out_stay_finite(name: str) -> None:
    for objective in ("sampled_softmax", "negative_sampling"):
        work = make_work(make_config(objective=objective, optimizer="sgd"))
        users, items = make_rows(work)
        items.outputs.vectors *= 1000
        train_users_of(name, work.config)(users, items, work)
        assert all(np.isfinite(array).all() for array in arrays(users, items))


def test_threads_share_the_users_and_lose_none() -> None:
    """With frozen items users do not touch each other: any number of threads gives the same bits."""
    results = []
    for threads in (1, 2):
        work = dataclasses.replace(make_work(make_config(threads=threads), 300), update_items=False)
        users, items = make_rows(work)
        num_kept = pick_kernel("cpu", work.config).train_users(users, items, work)
        results.append((num_kept, users.vectors.tobytes()))
    assert results[0] == results[1]


def test_items_drawn_for_a_key_are_those_of_the_draws() -> None:
    """As trainer/draws.py defines a draw, and the alias method an item of it."""
    sampling, keys = make_work(make_config()).sampling, np.arange(1, 40, dtype=np.uint64)
    found = draw_negatives(keys, HELDOUT, sampling, 5)
    bits = draws(keys[:, None], np.array([counter(0, HELDOUT, k) for k in range(5)], dtype=np.uint64))
    slots = ((bits >> np.uint64(32)) * np.uint64(len(sampling.aliases)) >> np.uint64(32)).astype(np.int64)
    is_slot = (bits & np.uint64(2**32 - 1)) < sampling.thresholds[slots]
    np.testing.assert_array_equal(found, np.where(is_slot, slots, sampling.aliases[slots]))
    assert 0 < is_slot.mean() < 1


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_scores_are_dot_products(num_rows: int) -> None:
    rng = np.random.default_rng(1)
    users, outputs = (rng.normal(size=(n, 19)).astype(np.float32) for n in (11, 30))
    rows = rng.integers(0, 30, (11, num_rows))
    expected = np.einsum("nd,nkd->nk", users.astype(np.float64), outputs[rows].astype(np.float64))
    np.testing.assert_allclose(score_rows(users, outputs, rows), expected, atol=1e-5)


def test_powers_of_e_are_those_of_numpy() -> None:
    x = np.linspace(-87, 80, 100_001, dtype=np.float32)
    all_at_once = numba.njit(lambda x: np.array([exp(value) for value in x]))
    np.testing.assert_allclose(all_at_once(x), np.exp(x.astype(np.float64)), rtol=2e-7)
    beyond = np.array([-1e30, -88, 81, 1e30], dtype=np.float32)
    np.testing.assert_array_equal(all_at_once(beyond), all_at_once(np.array([-87, -87, 80, 80], dtype=np.float32)))


DRAW = """
import numpy as np
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.cpu import draw_negatives
from surf2vec.trainer.model.objectives import make_sampling
print(draw_negatives(np.arange(2, dtype=np.uint64), 2, make_sampling(np.arange(9), TrainConfig()), 3).tolist())
"""


def test_machine_code_of_other_sources_is_passed_over(tmp_path: Path) -> None:
    """numba would read of it, too, and fail where a type of its arguments is no more."""
    trainer = tmp_path / "surf2vec" / "trainer"
    shutil.copytree(ROOT / "trainer", trainer, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "surf2vec" / "__init__.py").touch()
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    outputs = []
    for _ in range(2):
        command = [sys.executable, "-c", DRAW]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment | {"PYTHONPATH": "."}, capture_output=True, text=True
        )
        outputs.append(done.stdout or done.stderr)
        for name in ("model", "cpu"):
            path = trainer / "kernels" / f"{name}.py"
            path.write_text(path.read_text().replace("Noise", "Drawn"))
    assert outputs[0].startswith("[[")
    assert outputs[1] == outputs[0]
    assert len(list((trainer / "kernels" / "__pycache__").rglob("compiled_draws.draw_each-*.nbi"))) == 2


def test_a_kernel_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no kernel 'tpu'"):
        pick_kernel("tpu", TrainConfig())


def test_the_reason_says_what_threads_mean() -> None:
    assert "tiles of 32 users, deterministic" in pick_kernel("cpu", TrainConfig(threads=1)).reason
    assert "tiles" not in pick_kernel("cpu", TrainConfig(hs=1)).reason
    assert "tiles of 2 users" in pick_kernel("cpu", TrainConfig(objective="negative_sampling")).reason
    assert "without locks" in pick_kernel("cpu", TrainConfig(threads=2)).reason
    assert "deterministic" in pick_kernel("cpu", TrainConfig(threads=2, accumulate=64)).reason
