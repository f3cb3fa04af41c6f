"""A trail beside the interest on a device: trained there it ends as on the CPU, also where it is stopped and goes on.

In Triton's interpreter, on a tiny corpus, as test_device_engine.py.
"""

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.kernels.first_rows import begin_trail
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training import device_engine
from surf2vec.trainer.training.loop import StoppedError, train
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import assert_same_bits
from tests.trainer.training.late_device import LateDevice
from tests.trainer.training.test_device_engine import (
    CONFIG,
    exact,
    interpret,
    losses_of,
    make_job,
    several_streams,
    staying,
    use_device,
)

__all__ = ["interpret", "several_streams", "use_device"]  # fixtures


@pytest.fixture(scope="module")
def ordered_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 users with up to 11 events each, so that a trail has targets, in 4 micro-partitions."""
    folder = tmp_path_factory.mktemp("corpora") / "ordered"
    write_corpus(folder, planted_histories(num_users=8, num_items=12, topics=2, length=12), partitions=4)
    return folder


BOTH: dict[str, Any] = {"parts": "both", "vector_size": 16, "trail_negative": 3}


def trail_arrays(store_dir: Path) -> list[np.ndarray]:
    trail = open_generation(store_dir).trail
    return [array for rows in (trail.outputs, trail.inputs, trail.lags) for array in (rows.vectors, rows.squares)]


def untrained(num_items: int = 12) -> list[np.ndarray]:
    trail = begin_trail(dataclasses.replace(CONFIG, **BOTH), num_items)
    return [array for rows in (trail.outputs, trail.inputs, trail.lags) for array in (rows.vectors, rows.squares)]


def test_a_trail_is_trained_on_the_host_meanwhile(
    ordered_dir: Path, tmp_path: Path, use_device: Callable[..., None]
) -> None:
    """Where the plan has no room for it there. Its rows have the same bits as beside the CPU's kernel."""
    train(make_job(ordered_dir, tmp_path / "cpu", **BOTH))
    use_device()
    result = train(make_job(ordered_dir, tmp_path / "device", **BOTH))
    found, wanted = (trail_arrays(tmp_path / name) for name in ("device", "cpu"))
    for ours, theirs, first in zip(found, wanted, untrained(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert not np.array_equal(ours, first)
    assert result["trail_loss"] is not None


@pytest.mark.parametrize("settings", [{}, pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.slow)])
def test_a_trail_on_the_device_ends_as_on_the_cpu(
    ordered_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:  # fmt: skip
    """But for rows that several lanes move at once. The interest beside it has the bits that it has alone on the device."""
    told = [train(make_job(ordered_dir, tmp_path / "cpu", **BOTH, **settings))]
    use_device()
    told.append(train(make_job(ordered_dir, tmp_path / "beside", **BOTH, **settings)))
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", staying(stays=False, has_trail=True))
    told.append(train(make_job(ordered_dir, tmp_path / "device", **BOTH, **settings)))
    for found, wanted, first in zip(
        trail_arrays(tmp_path / "device"), trail_arrays(tmp_path / "cpu"), untrained(), strict=True
    ):
        moved = np.abs(wanted - first).max()
        assert moved > 0
        assert np.abs(found - wanted).max() < 0.05 * moved
    for point, other in zip(told[2]["curve"], told[0]["curve"], strict=True):
        assert point["trail_loss"] == pytest.approx(other["trail_loss"], rel=1e-3)
        assert point["trail_heldout_loss"] == pytest.approx(other["trail_heldout_loss"], rel=1e-3)
    assert losses_of(told[2]) == losses_of(told[1])


@exact
@pytest.mark.parametrize(("stays", "seed"), [pytest.param(False, 6, marks=pytest.mark.slow), (True, 7)])
def test_a_trail_on_the_device_stopped_and_resumed_ends_as_undisturbed(
    ordered_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    stays: bool, seed: int,
) -> None:  # fmt: skip
    """Whether users stay there or not, and whatever the device does when."""
    monkeypatch.setattr("surf2vec.trainer.training.preparation.plan_training", staying(stays=stays, has_trail=True))
    use_device()
    expected = train(make_job(ordered_dir, tmp_path / "whole", **BOTH))
    monkeypatch.setattr(device_engine, "Stream", LateDevice(seed).stream)
    job, stop = make_job(ordered_dir, tmp_path / "stopped", **BOTH), threading.Event()
    with pytest.raises(StoppedError):
        train(job, lambda name, values: stop.set() if name == "progress" and values["done"] == 5 else None, stop=stop)
    assert any(
        not np.array_equal(one, two)
        for one, two in zip(trail_arrays(tmp_path / "stopped"), trail_arrays(tmp_path / "whole"), strict=True)
    )
    told = train(job)
    assert_same_bits(tmp_path / "stopped", tmp_path / "whole")
    assert told["curve"][-1]["trail_loss"] == expected["curve"][-1]["trail_loss"]
