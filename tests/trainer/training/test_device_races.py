"""What holds on a card, too: the same bits where items are frozen, and the budget.

With frozen items users are independent. So the engine that copies users ahead and home ends with the same bits as the kernel that
copies everything each time, whatever the order of programs. Another bit is a race of copies with training, or a wrong place.
"""

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training import device_engine, loop
from surf2vec.trainer.training.loop import StoppedError, train
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import assert_same_bits
from tests.trainer.kernels.test_gpu import HAS_GPU, gpu
from tests.trainer.training.late_device import LateDevice
from tests.trainer.training.test_device_engine import corpus_dir, interpret, make_job, staying, use_device
from tests.trainer.training.test_loop import divided

__all__ = ["corpus_dir", "interpret", "use_device"]  # fixtures


def launch_frozen(users: Any, outputs: Any, work: Any, scratch: Any) -> None:
    gpu.launch(users, outputs, dataclasses.replace(work, update_items=False), scratch)


def copy_all_frozen(users: Any, items: Any, work: Any) -> int:
    return gpu.train_users(users, items, dataclasses.replace(work, update_items=False))


@pytest.fixture(scope="module")
def frozen(corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The store of a training with frozen items that copies everything to the device and back each time."""
    known: dict[tuple[str, int], Path] = {}

    def find(dtype: str, num_blocks: int) -> Path:
        if (dtype, num_blocks) not in known:
            folder = known[dtype, num_blocks] = tmp_path_factory.mktemp("copied")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "surf2vec.trainer.training.preparation.plan_training",
                    divided(1 if num_blocks > 1 else 8, num_blocks),
                )
                patch.setattr(loop, "pick_kernel", lambda *_: Kernel("gpu", "a test's", copy_all_frozen))
                train(make_job(corpus_dir, folder, dtype=dtype))
        return known[dtype, num_blocks]

    return find


@pytest.mark.parametrize(
    ("chunk_partitions", "num_blocks", "dtype"),
    [(8, 1, "float32"), (3, 1, "float32"), (1, 1, "float32"), (3, 1, "bfloat16"), (1, 2, "float32")],
)
def test_with_frozen_items_the_engine_ends_with_the_bits_of_copying_all(
    corpus_dir: Path, tmp_path: Path, frozen: Callable[..., Path], use_device: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch, chunk_partitions: int, num_blocks: int, dtype: str,
) -> None:  # fmt: skip
    expected = frozen(dtype, num_blocks)
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", divided(chunk_partitions, num_blocks))
    use_device(launch_frozen)
    train(make_job(corpus_dir, tmp_path, dtype=dtype))
    assert_same_bits(tmp_path, expected)
    first, ended = (open_generation(store) for store in (expected, tmp_path))
    assert any(np.abs(ended.read_users(p)).max(initial=0) > 0.2 for p in range(8)), "the users were trained"
    np.testing.assert_array_equal(first.read_items(), ended.read_items())


@pytest.mark.parametrize(
    ("at_once", "stays", "dtype"),
    [(2, False, "float32"), (3, True, "float32"), (3, True, "bfloat16"), (7, False, "float32")],
)
def test_several_micro_partitions_at_once_end_with_the_same_bits(
    corpus_dir: Path, tmp_path: Path, frozen: Callable[..., Path], use_device: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch, at_once: int, stays: bool, dtype: str,
) -> None:  # fmt: skip
    """Without a card by a device that does what it may in any order."""
    expected = frozen(dtype, 1)
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", staying(at_once, stays))
    device = LateDevice(at_once)
    if not HAS_GPU:
        monkeypatch.setattr(device_engine, "Stream", device.stream)
    use_device(launch_frozen)
    train(make_job(corpus_dir, tmp_path, dtype=dtype))
    assert HAS_GPU or len(device.streams) == 2 + at_once
    assert_same_bits(tmp_path, expected)


def test_stopped_again_and_again_it_ends_with_the_same_bits(
    corpus_dir: Path, tmp_path: Path, frozen: Callable[..., Path], use_device: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    expected, num_stops = frozen("float32", 1), 0
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", divided(1))
    use_device(launch_frozen)
    while True:
        stop = threading.Event()
        try:
            train(
                make_job(corpus_dir, tmp_path),
                lambda name, values, stop=stop: stop.set() if name == "progress" and values["done"] % 5 == 0 else None,
                stop=stop,
            )
            break
        except StoppedError:
            num_stops += 1
    assert num_stops > 1
    assert_same_bits(tmp_path, expected)


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_card_the_budget_holds(tmp_path: Path, dtype: str) -> None:
    """The driver's figure, context included, by --device-memory; nobody else may use the card meanwhile."""
    from tests.benchmarks.acceptance.core import watch_device
    from tests.benchmarks.acceptance.training import run_trainer

    write_corpus(tmp_path / "corpus", planted_histories(num_users=4000), partitions=8)
    settings = {"parts": "interest", "vector_size": 64, "epochs": 5, "negative": 5, "threads": 1, "dtype": dtype}
    with watch_device() as taken:
        done = run_trainer(tmp_path / "corpus", tmp_path / "store", settings, device_bytes=10**9)
    assert done.returncode == 0, done.stderr
    assert 0 < max(taken) - taken[0] <= 10**9
