"""The simulated card: with one stream in step it makes the steps of the reference."""

import dataclasses
from copy import deepcopy
from unittest import mock

import numpy as np
import pytest

from tests.trainer.kernels import reference, reference_trail, test_trail
from tests.trainer.kernels.work import arrays, make_config, make_rows, make_work

pytestmark = pytest.mark.slow  # numba compiles it


def test_one_stream_in_step_does_what_the_reference_does() -> None:
    """The trail with a window of 1 and without L2, which more lags see by rows that are a little older."""
    from tests.benchmarks.lockstep_kernel import make_kernel

    train_users, train_trail = make_kernel(1)
    work = make_work(make_config(sample=0.01))
    users, items = make_rows(work)
    expected = deepcopy((users, items))
    trail, tables, of_trail = test_trail.make_tables(
        make_work(test_trail.make_config(trail_window=1, trail_l2=0.0), 50, 30)
    )
    of_trail = dataclasses.replace(of_trail, alphas=np.full(50, 0.1, np.float32))
    expected_trail = deepcopy(trail)
    with mock.patch.object(reference, "AT_ONCE", True):
        wanted = reference.train_users(*expected, work)
        wanted_targets = reference_trail.train_trail(expected_trail, of_trail, tables, 0.5)
    assert train_users(users, items, work) == wanted > 100
    assert train_trail(trail, of_trail, tables, 0.5) == wanted_targets > 100
    pairs = [*zip(arrays(users, items), arrays(*expected), strict=True)]
    pairs += zip(test_trail.arrays(trail), test_trail.arrays(expected_trail), strict=True)
    for found, other in pairs:
        np.testing.assert_allclose(found, other, atol=1e-5, rtol=1e-4)
