"""Batches of large tables without per-sample Python: in place of `DataLoader(TensorDataset(*tables), ...)`.

    from surf2vec.trainer.loader import FastLoader

    features, labels = np.load("features.npy", mmap_mode="c"), np.load("labels.npy")
    loader = FastLoader(features, labels, batch_size=4096, shuffle=True, seed=1, device="cuda")
    for epoch in range(3):
        for batch, targets in loader:
            train_step(batch, targets)

A batch in order is a view of the table on the CPU, without a copy. Writing to it writes to the table; never write to a table
that is mapped read-only, as torch cannot protect it. A shuffled batch is one gather of whole rows into new memory. On a GPU
each batch goes through pinned memory and is copied one batch ahead on a separate stream.

The price: a shuffled epoch first makes a full permutation, 4 bytes a row (8 above 2**31 rows). Over a memory-mapped table
larger than memory, that is a random read from disk for every row. A table that fits into the GPU's memory needs no loader:
move it there once and slice it.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.trainer.draws import epoch_key
from surf2vec.trainer.errors import ConfigError


class FastLoader:
    """Iterates over batches of tables whose first dimensions are equal; each iteration is an epoch."""

    def __init__(
        self, *tables: torch.Tensor | NDArray[Any], batch_size: int, shuffle: bool = False, drop_last: bool = False,
        seed: int = 0, device: str | torch.device = "cpu",
    ) -> None:  # fmt: skip
        """Tables are tensors on the CPU, numpy arrays or `np.memmap`, [n, ...] each, of any dtype that torch knows.

        `drop_last` leaves out the last batch of an epoch when it is not full. With `shuffle` the order is a function of
        (`seed`, epoch). `device` is "cpu", "cuda" or "cuda:1".
        Raises ConfigError for tables that do not fit together, a batch size below 1, or a missing device.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}: it must be at least 1")
        if not tables:
            raise ConfigError("there is no table to load: give at least one")
        self.tables = [_as_tensor(table, number) for number, table in enumerate(tables)]
        lengths = [len(table) for table in self.tables]
        if len(set(lengths)) > 1:
            row_counts = ", ".join(f"{length:,}" for length in lengths)
            raise ConfigError(f"tables differ in length: {row_counts} rows; first dimensions must be equal")
        self.num_rows = lengths[0]
        self.batch_size, self.shuffle, self.drop_last, self.seed = batch_size, shuffle, drop_last, seed
        self.device = _find_device(device)
        self.epoch = 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.num_rows // self.batch_size if self.drop_last else -(-self.num_rows // self.batch_size)

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        """Iterate over the batches of the next epoch: one tensor for each table, [batch_size, ...]; the last may be shorter."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        batches = self._batches(epoch)
        return batches if self.device.type == "cpu" else self._copied_ahead(batches)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, counted from 0, as after a restart. Raises ConfigError below 0."""
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}: epochs are counted from 0")
        self.epoch = epoch

    def _batches(self, epoch: int) -> Iterator[list[torch.Tensor]]:
        """Yield the batches of an epoch on the CPU: views, or copies of a part of the permutation; in pinned memory for a GPU."""
        order = permutation(self.num_rows, self.seed, epoch) if self.shuffle else None
        is_pinned = self.device.type == "cuda"
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            rows = slice(start, start + self.batch_size)
            if order is not None:
                yield [_gather(table, order[rows], is_pinned) for table in self.tables]
            else:
                yield [table[rows].pin_memory() if is_pinned else table[rows] for table in self.tables]

    def _copied_ahead(self, batches: Iterator[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
        """Yield batches on a GPU: while one is used, the next is copied, on a separate stream.

        torch reuses pinned memory only after the copies out of it have ended.
        """
        stream = torch.cuda.Stream(self.device)
        before: tuple[list[torch.Tensor], torch.cuda.Event] | None = None
        for batch in batches:
            with torch.cuda.stream(stream):
                sent = [part.to(self.device, non_blocking=True) for part in batch]
                after = sent, stream.record_event()
            if before:
                yield _hand_over(*before)
            before = after
        if before:
            yield _hand_over(*before)


def _hand_over(batch: list[torch.Tensor], copied: torch.cuda.Event) -> list[torch.Tensor]:
    """Return a batch for use on the caller's stream, which waits for the copy. So does the host, one batch ahead."""
    current = torch.cuda.current_stream(batch[0].device)
    current.wait_event(copied)
    copied.synchronize()
    for part in batch:
        part.record_stream(current)  # allocated on the copy stream: its memory must not be reused too early
    return batch


def _gather(table: torch.Tensor, rows: NDArray[Any], is_pinned: bool) -> torch.Tensor:
    """Return rows of a table as a new tensor.

    np.take copies whole rows. It was faster than torch.index_select, most of all in batches of a few thousand rows, where torch's
    threads cost more than they gain. "clip" saves a check: a permutation is within bounds.
    """
    batch = torch.empty((len(rows), *table.shape[1:]), dtype=table.dtype, pin_memory=is_pinned)
    if not table.is_contiguous():
        return torch.index_select(table, 0, torch.from_numpy(rows), out=batch)
    np.take(_as_bytes(table), rows, axis=0, out=_as_bytes(batch), mode="clip")
    return batch


def permutation(num_rows: int, seed: int, epoch: int) -> NDArray[Any]:
    """Return all rows in the order of an epoch, int32[num_rows] (int64 from 2**31 rows): a function of (seed, epoch)."""
    generator = torch.Generator().manual_seed(epoch_key(seed, epoch))
    dtype = torch.int32 if num_rows < 2**31 else torch.int64  # half the memory, and 0.6 of the time
    return torch.randperm(num_rows, generator=generator, dtype=dtype).numpy()


def _as_tensor(table: torch.Tensor | NDArray[Any], number: int) -> torch.Tensor:
    """Return the table as a tensor that shares its memory. Raises ConfigError if that is impossible."""
    if isinstance(table, np.ndarray):
        try:
            with warnings.catch_warnings():  # read-only memory maps are allowed: see the module's docstring
                warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
                table = torch.from_numpy(table)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"table {number} is an array of {table.dtype} that torch cannot use: {error}") from None
    if not isinstance(table, torch.Tensor):
        raise ConfigError(f"table {number} is a {type(table).__name__}: give a tensor, a numpy array or an np.memmap")
    if table.device.type != "cpu" or table.layout != torch.strided:
        raise ConfigError(
            f"table {number} is a {table.layout} tensor on {table.device}: the loader reads dense tables on the CPU; one that "
            "is on the GPU already is sliced there"
        )
    if table.dim() == 0:
        raise ConfigError(f"table {number} is a single number: it needs a first dimension, the rows")
    return table.detach()


def _as_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a contiguous tensor's rows as bytes, uint8[n, bytes a row], without a copy; for dtypes unknown to numpy, too."""
    flat = tensor.view(-1).view(torch.uint8).numpy()  # flat first: strides may be odd where a size is 1
    return flat.reshape(len(tensor), tensor[:1].numel() * tensor.element_size())


def _find_device(name: str | torch.device) -> torch.device:
    """Return the device called `name`. Raises ConfigError if it is unknown or missing."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"there is no device {str(name)!r} to load to: take cpu, cuda or cuda:N")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise ConfigError(
            f"device {str(name)!r} is not there, torch {torch.__version__} sees {num_gpus} GPUs: give device='cpu', "
            "or install a torch built for CUDA on a machine with a GPU"
        )
    return device
