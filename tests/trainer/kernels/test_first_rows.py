"""How the parameters begin."""

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.first_rows import at_rest, begin_items, begin_users
from surf2vec.trainer.store.layout import image_of_items, image_of_rows, items_of

HASHES = np.array([3, 2**63, 77], dtype=np.uint64)


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_users_begin_within_their_range_and_with_the_same_bias(optimizer: str) -> None:
    config = TrainConfig(parts="interest", vector_size=20, optimizer=optimizer, alpha=0.1, bias=0.75)  # type: ignore[arg-type]
    free, bias = np.split(begin_users(config, HASHES).vectors, [19], axis=1)
    assert (bias == 0.75).all()
    most = 0.1 if optimizer == "adagrad" else 1 / 20
    assert most / 2 < np.abs(free).max() <= most
    without = begin_users(
        TrainConfig(parts="interest", vector_size=20, optimizer=optimizer, alpha=0.1, bias=0), HASHES
    ).vectors  # type: ignore[arg-type]
    np.testing.assert_array_equal(without[:, :19], free)
    assert 0 < np.abs(without[:, 19]).max() <= most


def test_the_default_bias_is_the_same_at_rest_in_bfloat16() -> None:
    config = TrainConfig(parts="interest", vector_size=4, dtype="bfloat16")
    assert (at_rest(config, -1, HASHES, begin_users(config, HASHES)).widened()[:, 3] == config.bias).all()


def test_rows_of_whole_cache_lines_begin_where_a_line_does_in_memory_and_in_images() -> None:
    config = TrainConfig(parts="interest", vector_size=16, dm=1)
    users, items = begin_users(config, HASHES), begin_items(config, num_items=7, num_outputs=5)
    table = items_of(image_of_items(items).arrays)
    vectors = [rows.vectors for rows in (users, items.outputs, items.inputs, table.outputs, table.inputs)]
    vectors.append(image_of_rows(users).arrays["vectors"])
    assert [rows.shape for rows in vectors] == [(3, 16), (5, 16), (7, 16), (5, 16), (7, 16), (3, 16)]
    assert [rows.ctypes.data % 64 for rows in vectors] == [0] * 6
