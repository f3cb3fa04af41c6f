"""Scaled activity: bounded, in order, 0 for the median and the unknown, and by the quantiles of the first release of a space."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surf2vec.tasks.activity.count import NAMES, read_activity
from surf2vec.tasks.activity.scale import RANGE, scale_activity, settle_activity
from tests.data.corpora import write_corpus

QUANTILES = [[float(level) for level in range(32)]]
numbers = st.floats(-1e6, 1e6, width=32)


@given(st.lists(numbers, min_size=1), st.lists(numbers, min_size=1))
def test_any_numbers_are_bounded_and_stay_in_order(seen: list[float], later: list[float]) -> None:
    quantiles = [np.quantile(np.array(seen), (np.arange(32) + 0.5) / 32).tolist()]
    column = np.sort(np.array(seen + later, np.float32))
    scaled = scale_activity(column[:, None], quantiles)[:, 0]
    assert (np.diff(scaled) >= -1e-6).all()  # interpolation rounds
    assert (np.abs(scaled) <= RANGE).all()


def test_ranks_by_hand() -> None:
    column = np.array([[15.5], [0.0], [31.0], [62.0], [np.nan], [-1e9]], np.float32)
    half = RANGE / 2
    expected = [0, -half * 31 / 32, half * 31 / 32, half * (31 / 32 + 0.5), 0, -half * (31 / 32 + 1)]
    np.testing.assert_allclose(scale_activity(column, QUANTILES)[:, 0], expected, atol=1e-6)
    assert scale_activity(column, [[3.0] * 32])[:, 0].tolist()[4] == 0.0  # equal quantiles have one rank
    assert scale_activity(np.full((2, 1), 3, np.float32), [[3.0] * 32]).tolist() == [[0], [0]]
    assert scale_activity(column, [[]]).tolist() == [[0]] * 6  # nobody had it when the space began


def test_quantiles_are_of_the_users_in_any_micro_partitions_and_stay_with_the_space(tmp_path: Path) -> None:
    histories = {f"user-{n}": [1, 2, 3] for n in range(50)}
    one, other = (write_corpus(tmp_path / str(n), histories, n) for n in (1, 8))
    settled = settle_activity(one, {})
    assert settled == settle_activity(other, {})
    assert settled["names"] == list(NAMES)
    expected = np.quantile(read_activity(one, 0).astype(np.float64), (np.arange(32) + 0.5) / 32, axis=0)
    np.testing.assert_array_equal(np.array(settled["quantiles"]), expected.T)
    others = write_corpus(tmp_path / "2", {f"guest-{n}": [1, 2] for n in range(50)}, 2)
    assert settle_activity(others, {"activity": settled}) == settled != settle_activity(others, {})
