"""Accumulated steps: items move once in a step, by the same sum on every kernel and any number of threads."""

import numpy as np
import pytest

from surf2vec.trainer.kernels import cpu
from tests.trainer.kernels.test_kernels import KERNELS
from tests.trainer.kernels.work import SETTINGS, arrays, make_config, make_rows, make_work, train_users_of

ACCUMULATED = ["dbow", "dbow negative sampling"]


@pytest.mark.parametrize("dims", [19, 64, 150])
@pytest.mark.parametrize("accumulate", [2, 7, 40, 1000])
@pytest.mark.parametrize("setting", ACCUMULATED)
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_accumulated_steps_are_the_same_on_every_kernel(
    setting: str, optimizer: str, accumulate: int, dims: int
) -> None:
    settings = SETTINGS[setting] | {"vector_size": dims, "optimizer": optimizer, "accumulate": accumulate}
    work = make_work(make_config(**settings))
    results = []
    for name in KERNELS:
        users, items = make_rows(work)
        train_users_of(name, work.config)(users, items, work)
        results.append(arrays(users, items))
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("setting", ACCUMULATED)
@pytest.mark.parametrize("num_items", [1, 30, 1000])
def test_accumulated_steps_end_with_the_same_bits_on_any_number_of_threads(
    setting: str, num_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items stand still while users are trained; more threads than cores, and than users, too."""
    monkeypatch.setattr(cpu, "max_threads", lambda: 64)
    results = set()
    for threads in (1, 2, 3, 7):
        config = make_config(accumulate=50, threads=threads, vector_size=80, **SETTINGS[setting])
        work = make_work(config, 120, num_items)
        users, items = make_rows(work)
        num_kept = cpu.train_users(users, items, work)
        results.add((num_kept, b"".join(array.tobytes() for array in arrays(users, items))))
    assert len(results) == 1
