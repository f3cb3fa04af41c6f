"""The loader: batches like DataLoader's, a true permutation every epoch, views in order, and its refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.loader import FastLoader, permutation

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
EVERY_DTYPE = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.bool]
EVERY_DTYPE += [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
sizes = st.tuples(st.integers(0, 70), st.integers(1, 80), st.booleans())


def table(num_rows: int, width: int = 3) -> torch.Tensor:
    """Rows that tell where they came from: row i begins with i * width."""
    return torch.arange(num_rows * width, dtype=torch.float32).reshape(num_rows, width)


def joined(loader: FastLoader) -> list[torch.Tensor]:
    """All batches of an epoch, one after the other, a tensor a table."""
    return [torch.cat(pieces) for pieces in zip(*loader, strict=True)]


@given(sizes)
@settings(max_examples=60)
def test_in_order_it_yields_what_dataloader_yields(size: tuple[int, int, bool]) -> None:
    num_rows, batch_size, drop_last = size
    tables = (table(num_rows), torch.arange(num_rows))
    ours = FastLoader(*tables, batch_size=batch_size, drop_last=drop_last)
    theirs = DataLoader(TensorDataset(*tables), batch_size=batch_size, drop_last=drop_last)
    assert len(ours) == len(theirs)
    for batch, expected in zip(ours, theirs, strict=True):
        assert isinstance(batch, list)
        assert [(part.shape, part.dtype) for part in batch] == [(part.shape, part.dtype) for part in expected]
        assert all(map(torch.equal, batch, expected))


@given(sizes, st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_a_shuffled_epoch_has_every_row_once_and_rows_stay_together(size: tuple[int, int, bool], seed: int) -> None:
    num_rows, batch_size, drop_last = size
    loader = FastLoader(
        table(num_rows), torch.arange(num_rows), batch_size=batch_size, shuffle=True, drop_last=drop_last, seed=seed
    )
    batches = list(loader)
    full, rest = divmod(num_rows, batch_size)
    assert [len(batch[0]) for batch in batches] == [batch_size] * full + [rest] * (rest > 0 and not drop_last)
    rows = torch.cat([torch.empty(0, dtype=torch.int64), *(batch[1] for batch in batches)])
    assert len(rows.unique()) == len(rows) == (full * batch_size if drop_last else num_rows)
    assert all(torch.equal(features, table(num_rows)[labels]) for features, labels in batches)


def test_each_epoch_has_its_own_order_as_a_function_of_seed_and_epoch() -> None:
    loader = FastLoader(torch.arange(1000), batch_size=64, shuffle=True, seed=7)
    first, second, third = (joined(loader)[0] for _ in range(3))
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    resumed = FastLoader(torch.arange(1000), batch_size=100, shuffle=True, seed=7)
    resumed.set_epoch(2)
    assert torch.equal(joined(resumed)[0], third)
    other = FastLoader(torch.arange(1000), batch_size=64, shuffle=True, seed=8)
    assert not torch.equal(joined(other)[0], first)


def test_an_epoch_left_early_counts() -> None:
    loader = FastLoader(torch.arange(100), batch_size=10, shuffle=True)
    next(iter(loader))
    assert torch.equal(joined(loader)[0], torch.from_numpy(permutation(100, 0, 1)).long())


def test_every_order_is_as_likely_as_another() -> None:
    epochs = 4800
    orders, counts = np.unique([permutation(4, 1, epoch) for epoch in range(epochs)], axis=0, return_counts=True)
    assert len(orders) == 24
    chi_square = ((counts - epochs / 24) ** 2 / (epochs / 24)).sum()
    assert chi_square < 49.7  # the 99.9 % point of 23 degrees of freedom: fixed seed, so never by chance


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.parametrize("shape", [(63,), (63, 1), (63, 5), (63, 2, 3), (63, 0), (1, 4)], ids=str)
def test_every_dtype_and_shape_is_gathered_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check_gathered(torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(1)).to(dtype))


def check_gathered(values: Any, expected: torch.Tensor | None = None) -> None:
    expected = values if expected is None else expected
    (shuffled,) = joined(FastLoader(values, batch_size=10, shuffle=True, seed=3))
    assert shuffled.dtype == expected.dtype
    assert torch.equal(shuffled, expected[torch.from_numpy(permutation(len(expected), 3, 0)).long()])
    assert torch.equal(joined(FastLoader(values, batch_size=7))[0], expected)


def test_tables_that_are_not_contiguous_and_memory_maps(tmp_path: Path) -> None:
    for values in (table(40, 6)[:, 1:4], table(40, 6)[::2], table(6, 40).T, torch.arange(40.0).reshape(1, 40).T):
        check_gathered(values)
    np.save(tmp_path / "table.npy", table(50).numpy())
    for mode in ("r", "c", "r+"):
        check_gathered(np.load(tmp_path / "table.npy", mmap_mode=mode), table(50))  # type: ignore[call-overload]


def test_batches_in_order_are_views_and_shuffled_ones_are_not() -> None:
    values = table(20)
    in_order = list(FastLoader(values, batch_size=8))
    assert [batch[0].data_ptr() for batch in in_order] == [values[start].data_ptr() for start in (0, 8, 16)]
    for batch in FastLoader(values, batch_size=8, shuffle=True):
        batch[0].zero_()
    assert torch.equal(values, table(20))


@pytest.mark.parametrize(
    ("tables", "arguments", "message"),
    [
        ([np.array(["a", "b"])], {}, "table 0 is an array of <U1 that torch cannot use"),
        ([np.zeros(3, dtype=">f4")], {}, "table 0 is an array of >f4 that torch cannot use"),
        ([np.zeros(3)[::-1]], {}, "table 0 is an array of float64 that torch cannot use"),
        ([[1, 2, 3]], {}, "table 0 is a list: give a tensor"),
        ([torch.tensor(1.0)], {}, "table 0 is a single number"),
        ([torch.eye(3).to_sparse()], {}, "the loader reads dense tables on the CPU"),
        ([table(1000), table(999)], {}, "tables differ in length: 1,000, 999 rows"),
        ([], {}, "there is no table to load"),
        ([table(8)], {"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ([table(8)], {"device": "tpu"}, "there is no device 'tpu' to load to: take cpu, cuda or cuda:N"),
        ([table(8)], {"device": "cuda:99"}, "'cuda:99' is not there, torch .* give device='cpu'"),
    ],
)
def test_what_is_refused(tables: list[Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FastLoader(*tables, **{"batch_size": 8} | arguments)


def test_no_epoch_before_the_first() -> None:
    with pytest.raises(ConfigError, match="epoch is -1: epochs are counted from 0"):
        FastLoader(table(8), batch_size=8).set_epoch(-1)


@needs_gpu
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 64, 1000, 1027])
def test_a_gpu_gets_the_same_batches(num_rows: int, shuffle: bool) -> None:
    tables = (table(num_rows), torch.arange(num_rows))
    expected = list(FastLoader(*tables, batch_size=64, shuffle=shuffle, seed=5))
    held = list(FastLoader(*tables, batch_size=64, shuffle=shuffle, seed=5, device="cuda"))
    for batch, wanted in zip(held, expected, strict=True):
        assert all(part.device.type == "cuda" for part in batch)
        assert all(torch.equal(part.cpu(), other) for part, other in zip(batch, wanted, strict=True))


@needs_gpu
def test_a_slow_step_on_the_gpu_never_sees_the_next_batch() -> None:
    values = torch.arange(64 * 4096, dtype=torch.float32).reshape(-1, 64)
    sums = []
    for (batch,) in FastLoader(values, batch_size=128, device="cuda"):
        torch.cuda._sleep(2_000_000)  # the host runs ahead: memory given out or refilled too early would show
        sums.append(batch.sum(dtype=torch.float64))
        del batch
    assert torch.equal(torch.stack(sums).cpu(), torch.stack([p.sum(dtype=torch.float64) for p in values.split(128)]))


@needs_gpu
def test_a_gpu_loader_left_early_begins_anew() -> None:
    loader = FastLoader(table(1000), batch_size=64, device="cuda")
    next(iter(loader))
    assert torch.equal(joined(loader)[0].cpu(), table(1000))
