"""A trail beside the interest on a device: trained there it ends as on the CPU, also where it is stopped and resumed; and the
programs of both are compiled before the training.

In Triton's interpreter, on a tiny corpus, as test_device_engine.py.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.kernels.first_rows import begin_trail
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training import loop
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.warm_up import warm_up
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.store_contents import assert_same_bits
from tests.trainer.kernels.test_gpu import gpu
from tests.trainer.kernels.test_trail import arrays
from tests.trainer.training.stopping import train_until
from tests.trainer.training.test_device_engine import (
    CONFIG,
    exact,
    interpret,
    losses_of,
    make_job,
    several_streams,
    use_device,
)

__all__ = ["interpret", "several_streams", "use_device"]  # fixtures
BOTH: dict[str, Any] = {"parts": "both", "vector_size": 16, "trail_negative": 3}


@pytest.fixture(scope="module")
def ordered_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 users with up to 9 events each, so that a trail has targets, in 3 micro-partitions."""
    folder = tmp_path_factory.mktemp("corpora") / "ordered"
    write_corpus(folder, planted_histories(num_users=6, num_items=12, topics=2, length=10), partitions=3)
    return folder


@exact
@pytest.mark.parametrize("settings", [{}, pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.slow)])
def test_a_trail_ends_as_on_the_cpu_where_ever_it_is_trained(
    ordered_dir: Path, tmp_path: Path, use_device: Callable[..., None], settings: dict[str, Any]
) -> None:
    """On the host beside the device with the same bits; on the device but for rows that several lanes move at once.

    The interest beside it has the same bits either way.
    """
    records = [train(make_job(ordered_dir, tmp_path / "cpu", **BOTH, **settings))]
    for place in ("beside", "device"):
        use_device(3, has_trail=place == "device")
        records.append(train(make_job(ordered_dir, tmp_path / place, **BOTH, **settings)))
    untrained = arrays(begin_trail(dataclasses.replace(CONFIG, **BOTH), 12))
    ended = [arrays(open_generation(tmp_path / place).trail) for place in ("cpu", "beside", "device")]
    for wanted, beside, found, first in zip(*ended, untrained, strict=True):
        np.testing.assert_array_equal(beside, wanted)
        moved = np.abs(wanted - first).max()
        assert moved > 0
        assert np.abs(found - wanted).max() < 0.2 * moved  # lanes end in other turns there
    for point, other in zip(records[2]["curve"], records[0]["curve"], strict=True):
        assert point["trail_loss"] == pytest.approx(other["trail_loss"], rel=5e-3)
        assert point["trail_heldout_loss"] == pytest.approx(other["trail_heldout_loss"], rel=5e-3)
    assert losses_of(records[2]) == losses_of(records[1])


@pytest.mark.slow
@exact
def test_a_trail_on_the_device_stopped_and_resumed_ends_as_undisturbed(
    ordered_dir: Path, tmp_path: Path, use_device: Callable[..., None]
) -> None:
    """Whatever the device does when."""
    use_device(3, has_trail=True)
    expected = train(make_job(ordered_dir, tmp_path / "whole", **BOTH))
    use_device(1, has_trail=True, seed=6)
    job = make_job(ordered_dir, tmp_path / "stopped", **BOTH)
    assert not train_until(job, [4])
    stopped, whole = (arrays(open_generation(tmp_path / name).trail) for name in ("stopped", "whole"))
    assert not all(map(np.array_equal, stopped, whole))
    record = train(job)
    assert_same_bits(tmp_path / "stopped", tmp_path / "whole")
    assert record["curve"][-1]["trail_loss"] == expected["curve"][-1]["trail_loss"]


class Compilations:
    """A program of Triton as it is, which notes what Triton would compile: types, alignments and constants of each start."""

    def __init__(self, program: Any) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import make_backend
        from triton.runtime.jit import JITFunction, create_function_from_signature  # after test_gpu has imported Triton

        jit = JITFunction(program.fn, **program.kwargs)
        target = make_backend(GPUTarget("cuda", 90, 32))
        self.program, self.found = program, list[str]()
        self.bind = create_function_from_signature(jit.signature, jit.params, target)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def start(*arguments: Any, **constants: Any) -> Any:
            _, specialization, options = self.bind(*arguments, **constants)
            self.found += [key for key in [f"{specialization} {options}"] if key not in self.found]
            return self.program[grid](*arguments, **constants)

        return start


@exact
def test_each_program_is_compiled_once_before_the_training(
    ordered_dir: Path, tmp_path: Path, use_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card would stop in the middle of it for seconds: for arrays of another alignment, or numbers of another kind."""
    names = ("list_targets", "list_users", "train_stream", "round_user")
    programs = {name: Compilations(getattr(gpu, name)) for name in names}
    for name, program in programs.items():
        monkeypatch.setattr(gpu, name, program)
    use_device(3, has_trail=True)
    job = make_job(ordered_dir, tmp_path, **BOTH, dtype="bfloat16")
    warm_up(loop.pick_kernel("gpu", job.training_config), job.training_config)
    before = {name: list(program.found) for name, program in programs.items()}
    assert {name: len(found) for name, found in before.items()} == dict(zip(names, (2, 1, 2, 1), strict=True))
    train(job)
    assert {name: program.found for name, program in programs.items()} == before
