"""The engine for a GPU ends as copying everything each time does, and its events suffice, whatever the device does when.

In Triton's interpreter, which is deterministic, on tiny corpora, as it is slow. On a card with frozen items: users are then
independent, whatever the order of programs, so that another bit is a race of copies with training, or a wrong place.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import TrainingError
from surf2vec.trainer.kernels import Kernel, signature
from surf2vec.trainer.plan.schedule import partition_order
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.training import device_engine
from surf2vec.trainer.training.device_memory import Buffers
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.slots import Slots
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import assert_same_bits
from tests.trainer.kernels.test_gpu import HAS_GPU, gpu, is_interpreted
from tests.trainer.training.late_device import LateDevice, kernel_of
from tests.trainer.training.stopping import PLAN, divided, every, train_until

CONFIG = TrainConfig(parts="interest", vector_size=3, epochs=2, threads=1, alpha=0.1, negative=2, sample=0)
NUM_PARTITIONS = 5
PICK_KERNEL = "surf2vec.trainer.training.loop.pick_kernel"
exact = pytest.mark.skipif(HAS_GPU, reason="on a GPU users run side by side, and the last digits differ")


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", str(int(is_interpreted)))


@pytest.fixture(autouse=True, scope="module")
def several_streams() -> Iterator[None]:
    """A stream of tiles has one or two users, so that a micro-partition has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signature, "STREAM_USERS", 1)
        yield


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7 users in 5 micro-partitions, of which one has none."""
    folder = tmp_path_factory.mktemp("corpora") / "planted"
    histories = planted_histories(num_users=7, num_items=12, topics=3, length=4)
    corpus = write_corpus(folder, histories, partitions=NUM_PARTITIONS)
    assert sorted(corpus.users.tolist())[:2] == [0, 1]
    return folder


def launch(users: Any, outputs: Any, work: Any, scratch: Any) -> None:
    gpu.launch(users, outputs, SimpleNamespace(**vars(work) | {"update_items": not HAS_GPU}), scratch)


def copy_all(users: Any, items: Any, work: Any) -> int:
    """The kernel that copies everything to the device and back each time."""
    return gpu.train_users(users, items, dataclasses.replace(work, update_items=not HAS_GPU))


@pytest.fixture
def use_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Trains by the engine from now on, divided as given; seed: on a device that acts late."""

    def use(
        chunk_partitions: int = NUM_PARTITIONS, num_blocks: int = 1, seed: int | None = None, launch: Any = launch,
        has_trail: bool = False,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(PLAN, divided(chunk_partitions, num_blocks, has_trail))
        kernel = kernel_of(launch, gpu.find_device().type, gpu)
        monkeypatch.setattr(PICK_KERNEL, lambda *_: kernel)
        if seed is not None and not HAS_GPU:
            monkeypatch.setattr(device_engine, "Stream", LateDevice(seed).stream)

    return use


def make_job(corpus_dir: Path, store_dir: Path, **changes: Any) -> Job:
    return Job(corpus_dir, store_dir, dataclasses.replace(CONFIG, **changes), host_memory_bytes=4 * 10**9)


Copied = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def copied(corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """The store and the record of a training that copies everything each time; chunks do not matter, but with blocks."""
    known: dict[str, tuple[Path, dict[str, Any]]] = {}

    def find(num_blocks: int = 1, corpus_dir: Path = corpus_dir, **settings: Any) -> tuple[Path, dict[str, Any]]:
        key = f"{num_blocks} {corpus_dir} {settings}"
        if key not in known:
            folder = tmp_path_factory.mktemp("copied")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(PLAN, divided(1 if num_blocks > 1 else NUM_PARTITIONS, num_blocks))
                patch.setattr(PICK_KERNEL, lambda *_: Kernel("gpu", "a test's", copy_all))
                known[key] = folder, train(make_job(corpus_dir, folder, **settings))
        return known[key]

    return find


def losses_of(record: dict[str, Any]) -> list[Any]:
    return [(point["epoch"], point["loss"], point["heldout_loss"], point["tokens"]) for point in record["curve"]]


def assert_same_training(found: Path, record: dict[str, Any], expected: Path, expected_record: dict[str, Any]) -> None:
    assert_same_bits(found, expected)
    assert losses_of(record) == losses_of(expected_record)


@pytest.mark.parametrize(
    ("chunk_partitions", "num_blocks", "settings"),
    [
        (NUM_PARTITIONS, 1, {}), (1, 1, {}), (3, 1, {"dtype": "bfloat16"}), (1, 2, {}),
        pytest.param(3, 1, {}, marks=pytest.mark.slow), pytest.param(1, 3, {}, marks=pytest.mark.slow),
        pytest.param(NUM_PARTITIONS, 1, {"dtype": "bfloat16", "optimizer": "sgd", "l2": 0.0}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_it_ends_as_copying_everything_each_time_does_whatever_a_device_does_when(
    corpus_dir: Path, tmp_path: Path, copied: Copied, use_device: Callable[..., None], chunk_partitions: int,
    num_blocks: int, settings: dict[str, Any],
) -> None:  # fmt: skip
    expected = copied(num_blocks, **settings)
    use_device(chunk_partitions, num_blocks, seed=chunk_partitions)
    assert_same_training(tmp_path, train(make_job(corpus_dir, tmp_path, **settings)), *expected)


@pytest.mark.parametrize(
    ("num_blocks", "settings"),
    [(1, {}), (2, {}), (1, {"patience": 1, "alpha": 5.0, "min_alpha": 5.0, "l2": 0.0, "epochs": 4})],
)
def test_stopped_and_resumed_it_ends_as_undisturbed(
    corpus_dir: Path, tmp_path: Path, copied: Copied, use_device: Callable[..., None], num_blocks: int,
    settings: dict[str, Any],
) -> None:  # fmt: skip
    store_dir, expected = copied(num_blocks, **settings)
    use_device(1 if num_blocks == 2 else 3, num_blocks)
    job, num_stops = make_job(corpus_dir, tmp_path, commit_seconds=0, **settings), 0
    while not (record := train_until(job, every(3))):
        num_stops += 1
    assert num_stops > 1
    assert_same_training(tmp_path, record, store_dir, expected)
    assert (record["best"] or {}).get("epoch") == (expected["best"] or {}).get("epoch")
    assert record["stopped_after_epoch"] == expected["stopped_after_epoch"]
    assert bool(record["stopped_after_epoch"]) == ("patience" in settings) or HAS_GPU


@pytest.mark.parametrize("chunk_partitions", [NUM_PARTITIONS, 1])
def test_a_loss_that_is_not_finite_stops_before_anything_is_written(
    corpus_dir: Path, tmp_path: Path, use_device: Callable[..., None], chunk_partitions: int
) -> None:
    """Also where the micro-partition has left its slot before the host notices it."""
    users = open_corpus(corpus_dir).users[partition_order(CONFIG.seed, 0, NUM_PARTITIONS)]
    place = max(place for place in range(NUM_PARTITIONS - 1) if users[place] and users[place + 1])
    last, begun = np.count_nonzero(users[: place + 1]), []

    def explode(users: Any, *others: Any) -> None:
        launch(users, *others)
        begun.append(users)
        if len(begun) == last:
            users.vectors[-1, -1] = np.inf

    use_device(chunk_partitions, launch=explode)
    words = r"no longer finite in epoch 1, micro-partition \d.*lower train.alpha"
    with pytest.raises(TrainingError, match=words) as error:
        train(make_job(corpus_dir, tmp_path))
    assert len(begun) == last + 1, "the pass after it had begun"
    partition = str(error.value).split("micro-partition ")[1][0]
    assert not (tmp_path / "MANIFEST.json").exists()
    written = {path.name[10] for path in tmp_path.glob("users-*.safetensors")}
    assert partition not in written
    assert bool(written) == (chunk_partitions == 1)


@pytest.mark.parametrize(
    ("num_users", "num_items", "partitions", "num_blocks"),
    [pytest.param(3, 6, 1, 1, id="one, over and over"), pytest.param(4, 64, 2, 2, id="blocks that share items")],
)
def test_few_micro_partitions(
    tmp_path: Path, copied: Copied, use_device: Callable[..., None], num_users: int, num_items: int, partitions: int,
    num_blocks: int,
) -> None:  # fmt: skip
    """With one the next pass needs what this one changes, so it may not be copied ahead. Of 64 items two are in both blocks."""
    histories = planted_histories(num_users=num_users, num_items=6, topics=2, length=4)
    write_corpus(tmp_path / "corpus", histories, partitions=partitions, num_items=num_items)
    expected = copied(num_blocks, tmp_path / "corpus")
    use_device(1, num_blocks, seed=1)
    record = train(make_job(tmp_path / "corpus", tmp_path / "store"))
    assert_same_training(tmp_path / "store", record, *expected)


def test_the_next_pass_is_copied_and_begins_before_the_last_one_is_looked_at(
    corpus_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(Buffers, name)

        def note(buffers: Buffers, rows: Any) -> Any:
            steps.append(name)
            return real(buffers, rows)

        return note

    for name in ("copy_in", "copy_out"):
        monkeypatch.setattr(Buffers, name, noting(name))
    use_device()
    train(
        make_job(corpus_dir, tmp_path, epochs=1),
        lambda name, _: steps.append("finished") if name == "progress" else None,
    )
    steps = [
        step for step, following in zip(steps, [*steps[1:], ""], strict=True) if (step, following) != ("finished",) * 2
    ]
    num = np.count_nonzero(open_corpus(corpus_dir).users)
    assert steps.count("copy_in") == steps.count("copy_out") == num
    text = " ".join(steps)
    assert text.startswith("copy_in copy_out copy_in copy_out finished copy_in copy_out finished"), text


def test_the_time_when_the_device_has_nothing_to_train_is_stall(
    corpus_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the disk is waited for or the host is slow; and what is waited for counts once."""
    use_device()
    real_admit, slow = Slots.admit, 0.05

    def admit_slowly(slots: Slots, partition: int) -> Any:
        time.sleep(slow)
        return real_admit(slots, partition)

    def admit_late(slots: Slots, partition: int) -> Any:
        with slots.background.stall():
            time.sleep(slow)
        return real_admit(slots, partition)

    for name, admit in (("host", admit_slowly), ("disk", admit_late)):
        monkeypatch.setattr(Slots, "admit", admit)
        record = train(make_job(corpus_dir, tmp_path / name, epochs=1))
        stall_seconds = record["stall"] * record["train_seconds"]
        assert stall_seconds >= 3 * slow
        assert stall_seconds <= record["train_seconds"]
