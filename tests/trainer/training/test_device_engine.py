"""The engine for a GPU ends as copying everything each time does, and its events suffice, whatever the device does when.

In Triton's interpreter, which is deterministic; on tiny corpora, for it is slow.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import TrainingError
from surf2vec.trainer.kernels import Kernel, signature
from surf2vec.trainer.plan.alone import plan_training
from surf2vec.trainer.plan.schedule import partition_order
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.training import device_engine
from surf2vec.trainer.training.device_engine import DeviceEngine
from surf2vec.trainer.training.device_memory import Place
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import StoppedError, train
from surf2vec.trainer.training.slots import Slots
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import assert_same_bits
from tests.trainer.kernels.test_gpu import HAS_GPU, gpu, is_interpreted
from tests.trainer.training.late_device import LateDevice, accelerator_of
from tests.trainer.training.test_loop import divided

CONFIG = TrainConfig(parts="interest", vector_size=3, epochs=2, threads=1, alpha=0.1, negative=2, sample=0)
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
    """10 users in 8 micro-partitions, of which some have none."""
    folder = tmp_path_factory.mktemp("corpora") / "planted"
    corpus = write_corpus(folder, planted_histories(num_users=10, num_items=12, topics=3, length=5), partitions=8)
    assert 0 in corpus.users
    return folder


@pytest.fixture
def use_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Trains by the engine from now on."""

    def use(launch: Callable[..., Any] = gpu.launch) -> None:
        accelerator = accelerator_of(launch, gpu.find_device().type, gpu)
        kernel = Kernel("gpu", "a test's", gpu.train_users, accelerator)
        monkeypatch.setattr("surf2vec.trainer.training.loop.pick_kernel", lambda *_: kernel)

    return use


def make_job(corpus_dir: Path, store_dir: Path, **changes: Any) -> Job:
    return Job(corpus_dir, store_dir, dataclasses.replace(CONFIG, **changes), host_memory_bytes=4 * 10**9)


def staying(at_once: int = 1, stays: bool = True, has_trail: bool = False) -> Callable[..., Any]:
    """A planner by whom all users stay on the device, and so many micro-partitions are trained at once."""
    changes = {"stays_on_device": stays, "at_once": at_once, "trail_on_device": has_trail}
    return lambda *arguments: dataclasses.replace(plan_training(*arguments[:4]), **changes)


Copied = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def copied(corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """The store and the record of a training that copies everything to the device and back each time; chunks do not matter."""
    known: dict[str, tuple[Path, dict[str, Any]]] = {}

    def find(num_blocks: int = 1, **settings: Any) -> tuple[Path, dict[str, Any]]:
        key = f"{num_blocks} {settings}"
        if key not in known:
            folder = tmp_path_factory.mktemp("copied")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "surf2vec.trainer.training.preparation.plan_training",
                    divided(1 if num_blocks == 2 else 8, num_blocks),
                )
                patch.setattr(
                    "surf2vec.trainer.training.loop.pick_kernel", lambda *_: Kernel("gpu", "a test's", gpu.train_users)
                )
                known[key] = folder, train(make_job(corpus_dir, folder, **settings))
        return known[key]

    return find


def losses_of(told: dict[str, Any]) -> list[Any]:
    return [(point["epoch"], point["loss"], point["heldout_loss"], point["tokens"]) for point in told["curve"]]


@pytest.mark.slow
@exact
@pytest.mark.parametrize(
    ("chunk_partitions", "num_blocks", "settings"),
    [
        *((chunk_partitions, 1, {"dtype": "float32"}) for chunk_partitions in (8, 3, 1)),
        (3, 1, {"dtype": "bfloat16"}), (8, 3, {"negative": 2}), (1, 2, {}),
        (8, 1, {"dtype": "bfloat16", "optimizer": "sgd", "l2": 0.0}),
    ],
)  # fmt: skip
def test_it_ends_as_copying_everything_each_time_does(
    corpus_dir: Path, tmp_path: Path, copied: Copied, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    chunk_partitions: int, num_blocks: int, settings: dict[str, Any],
) -> None:  # fmt: skip
    store_dir, expected = copied(num_blocks, **settings)
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", divided(chunk_partitions, num_blocks))
    use_device()
    told = train(make_job(corpus_dir, tmp_path, **settings))
    assert_same_bits(tmp_path, store_dir)
    assert losses_of(told) == losses_of(expected)


@exact
@pytest.mark.parametrize(
    ("num_blocks", "settings"),
    [
        (1, {"dtype": "float32"}), (2, {}),
        (1, {"patience": 1, "alpha": 5.0, "min_alpha": 5.0, "l2": 0.0, "epochs": 4}),
    ],
)  # fmt: skip
def test_stopped_and_resumed_ends_as_undisturbed(
    corpus_dir: Path, tmp_path: Path, copied: Copied, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    num_blocks: int, settings: dict[str, Any],
) -> None:  # fmt: skip
    store_dir, expected = copied(num_blocks, **settings)
    monkeypatch.setattr(
        "surf2vec.trainer.training.preparation.plan_training", divided(1 if num_blocks == 2 else 3, num_blocks)
    )
    use_device()
    job, num_stops = make_job(corpus_dir, tmp_path, commit_seconds=0, **settings), 0
    told: dict[str, Any] = {}
    while not told:
        stop = threading.Event()

        def stop_later(name: str, values: dict[str, Any], stop: threading.Event = stop) -> None:
            if name == "progress" and values["done"] % 5 == 0:
                stop.set()

        try:
            told = train(job, stop_later, stop=stop)
        except StoppedError:
            num_stops += 1
    assert num_stops > 1
    assert_same_bits(tmp_path, store_dir)
    assert losses_of(told) == losses_of(expected)
    assert (told["best"] or {}).get("epoch") == (expected["best"] or {}).get("epoch")
    assert told["stopped_after_epoch"] == expected["stopped_after_epoch"]
    assert bool(told["stopped_after_epoch"]) == ("patience" in settings)


@pytest.mark.parametrize("chunk_partitions", [8, 1])
def test_a_loss_that_is_not_finite_stops_before_anything_is_written(
    corpus_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    chunk_partitions: int,
) -> None:  # fmt: skip
    """Also where the micro-partition has left its slot before the host hears of it."""
    users = open_corpus(corpus_dir).users[partition_order(CONFIG.seed, 0, 8)]
    place = max(place for place in range(7) if users[place] and users[place + 1])
    last, begun = np.count_nonzero(users[: place + 1]), []

    def explode(users: Any, *others: Any) -> None:
        gpu.launch(users, *others)
        begun.append(users)
        if len(begun) == last:
            users.vectors[-1, -1] = np.inf

    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", divided(chunk_partitions))
    use_device(explode)
    with pytest.raises(
        TrainingError, match=r"no longer finite in epoch 1, micro-partition \d.*lower train.alpha"
    ) as error:
        train(make_job(corpus_dir, tmp_path))
    assert len(begun) == last + 1, "the visit after it had begun"
    partition = str(error.value).split("micro-partition ")[1][0]
    assert not (tmp_path / "MANIFEST.json").exists()
    written = {path.name[10] for path in tmp_path.glob("users-*.safetensors")}
    assert partition not in written
    assert bool(written) == (chunk_partitions == 1)


@exact
@pytest.mark.parametrize(
    ("chunk_partitions", "dtype", "seed"),
    [(8, "float32", 0), (1, "float32", 1), (1, "float32", 2), (3, "bfloat16", 3)],
)
def test_events_suffice_whatever_a_device_does_when(
    corpus_dir: Path, tmp_path: Path, copied: Copied, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    chunk_partitions: int, dtype: str, seed: int,
) -> None:  # fmt: skip
    store_dir, expected = copied(dtype=dtype)
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", divided(chunk_partitions))
    device = LateDevice(seed)
    monkeypatch.setattr(device_engine, "Stream", device.stream)
    use_device()
    told = train(make_job(corpus_dir, tmp_path, dtype=dtype))
    assert device.num_done > 50
    assert_same_bits(tmp_path, store_dir)
    assert losses_of(told) == losses_of(expected)


@exact
@pytest.mark.parametrize(("dtype", "seed"), [("float32", 4), ("bfloat16", 5)])
def test_users_who_stay_on_the_device_have_the_same_bits_and_are_copied_in_once(
    corpus_dir: Path, tmp_path: Path, copied: Copied, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    dtype: str, seed: int,
) -> None:  # fmt: skip
    """Also where the training is stopped in the middle, and goes on in a device's empty memory."""
    store_dir, expected = copied(dtype=dtype)
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", staying())
    monkeypatch.setattr(device_engine, "Stream", LateDevice(seed).stream)
    came, real = [], Place.copy_in

    def copy_in(place: Place, rows: Any) -> None:
        came.append(rows)
        real(place, rows)

    monkeypatch.setattr(Place, "copy_in", copy_in)
    use_device()
    job, stop = make_job(corpus_dir, tmp_path, dtype=dtype), threading.Event()
    with pytest.raises(StoppedError):
        train(job, lambda name, values: stop.set() if name == "progress" and values["done"] == 11 else None, stop=stop)
    num_partitions = np.count_nonzero(open_corpus(corpus_dir).users)
    assert len(came) == num_partitions, "in two epochs, of which the second is not whole"
    told = train(job)
    assert len(came) <= 2 * num_partitions
    assert_same_bits(tmp_path, store_dir)
    assert losses_of(told) == losses_of(expected)


@exact
def test_a_single_micro_partition_visited_again_and_again(
    tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next visit needs what this one changes, so it may not be copied ahead."""
    write_corpus(tmp_path / "corpus", planted_histories(num_users=3, num_items=6, topics=2, length=4), partitions=1)
    use_device()
    monkeypatch.setattr(device_engine, "Stream", LateDevice(1).stream)
    train(make_job(tmp_path / "corpus", tmp_path / "stayed", epochs=3))
    monkeypatch.setattr(
        "surf2vec.trainer.training.loop.pick_kernel", lambda *_: Kernel("gpu", "a test's", gpu.train_users)
    )
    train(make_job(tmp_path / "corpus", tmp_path / "copied", epochs=3))
    assert_same_bits(tmp_path / "stayed", tmp_path / "copied")


@exact
def test_blocks_that_share_items_fit_the_device(
    tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 items in two blocks two are in both, so a block has 33."""
    histories = planted_histories(num_users=4, num_items=12, topics=3, length=5)
    write_corpus(tmp_path / "corpus", histories, partitions=2, num_items=64)
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", divided(1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "surf2vec.trainer.training.loop.pick_kernel", lambda *_: Kernel("gpu", "a test's", gpu.train_users)
        )
        expected = train(make_job(tmp_path / "corpus", tmp_path / "copied"))
    use_device()
    assert losses_of(train(make_job(tmp_path / "corpus", tmp_path / "held"))) == losses_of(expected)
    assert_same_bits(tmp_path / "held", tmp_path / "copied")


def test_the_next_visit_begins_before_the_last_one_is_looked_at(
    corpus_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []

    def telling(name: str, position: Callable[[Any], int]) -> None:
        real = getattr(DeviceEngine, name)

        def tell(engine: DeviceEngine, what: Any) -> Any:
            told.append((name, position(what)))
            return real(engine, what)

        monkeypatch.setattr(DeviceEngine, name, tell)

    telling("stage", lambda visit: visit.position)
    telling("_train", lambda flight: flight.visit.position)
    use_device()
    train(
        make_job(corpus_dir, tmp_path),
        lambda name, values: told.append(("ended", values["done"] - 1)) if name == "progress" else None,
    )
    users = open_corpus(corpus_dir).users
    assert told.count(("ended", 15)) == 1
    num_overlapped = 0
    for position in range(15):
        if ("_train", position) in told and ("_train", position + 1) in told:
            order = [
                ("stage", position + 1),
                ("_train", position + 1),
                ("ended", position),
            ]
            places = [told.index(one) for one in order]
            num_overlapped += places == sorted(places)
    assert num_overlapped >= np.count_nonzero(users) - 2  # but beside those without users


def test_the_time_when_the_device_has_nothing_to_train_is_stall(
    corpus_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the disk is waited for or the host is slow; and what is waited for counts once."""
    use_device()
    real_admit, slow = Slots.admit, 0.02

    def admit_slowly(slots: Slots, partition: int) -> Any:
        time.sleep(slow)
        return real_admit(slots, partition)

    def admit_late(slots: Slots, partition: int) -> Any:
        with slots.background.stall():
            time.sleep(slow)
        return real_admit(slots, partition)

    for name, admit in (("host", admit_slowly), ("disk", admit_late)):
        monkeypatch.setattr(Slots, "admit", admit)
        told = train(make_job(corpus_dir, tmp_path / name, epochs=1))
        stall_seconds = told["stall"] * told["train_seconds"]
        assert stall_seconds >= 7 * slow
        assert stall_seconds <= told["train_seconds"]
