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
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from surf2vec.trainer.draws import epoch_key
from surf2vec.trainer.errors import ConfigError

Rows: TypeAlias = "slice | NDArray[Any]"
"""Consecutive rows, or row numbers."""


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
        self.tables = [_Table(table, number) for number, table in enumerate(tables)]
        lengths = [len(table.tensor) for table in self.tables]
        if not lengths:
            raise ConfigError("there is no table to load: give at least one")
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
        if self.device.type == "cuda":
            return self._batches_copied_ahead(epoch)
        return ([table.read(rows) for table in self.tables] for rows in self._row_sets(epoch))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, counted from 0, as after a restart. Raises ConfigError below 0."""
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}: epochs are counted from 0")
        self.epoch = epoch

    def _row_sets(self, epoch: int) -> Iterator[Rows]:
        """Yield the rows of each batch of an epoch: a slice, or a part of the permutation when shuffled."""
        order = permutation(self.num_rows, self.seed, epoch) if self.shuffle else None
        for batch in range(len(self)):
            rows = slice(batch * self.batch_size, min((batch + 1) * self.batch_size, self.num_rows))
            yield rows if order is None else order[rows]

    def _batches_copied_ahead(self, epoch: int) -> Iterator[list[torch.Tensor]]:
        """Yield batches on a GPU: while one is used, the next is gathered and copied."""
        stream = torch.cuda.Stream(self.device)
        # two: one is filled while the other may still be copied from
        lanes = [_Lane(self.tables, min(self.batch_size, self.num_rows), stream) for _ in range(2)]
        before: _Lane | None = None
        try:
            for batch, rows in enumerate(self._row_sets(epoch)):
                lane = lanes[batch % 2]
                lane.send(rows)
                if before:
                    yield before.hand_over()
                before = lane
            if before:
                yield before.hand_over()
        finally:  # also when the loop is left early: pinned memory must outlive the copies out of it
            for lane in lanes:
                lane.copied.synchronize()


class _Table:
    """One table, and its rows as bytes if it is contiguous."""

    def __init__(self, table: torch.Tensor | NDArray[Any], number: int) -> None:
        self.tensor = _as_tensor(table, number)
        self.row_shape = self.tensor.shape[1:]
        self.row_bytes = _as_bytes(self.tensor) if self.tensor.is_contiguous() else None

    def read(self, rows: Rows) -> torch.Tensor:
        """Return rows as a tensor [rows, ...]: a view for a slice, a copy for row numbers."""
        if isinstance(rows, slice):
            return self.tensor[rows]
        return self.read_into(rows, torch.empty((len(rows), *self.row_shape), dtype=self.tensor.dtype))

    def read_into(self, rows: Rows, out: torch.Tensor) -> torch.Tensor:
        """Write rows to `out`, a contiguous tensor [rows, ...] of the table's dtype, and return it."""
        if isinstance(rows, slice):
            return out.copy_(self.tensor[rows])
        if self.row_bytes is None:
            return torch.index_select(self.tensor, 0, torch.from_numpy(rows), out=out)
        # np.take copies whole rows. It was faster than torch.index_select, most of all in batches of a few thousand rows,
        # where torch's threads cost more than they gain. "clip" saves a check: a permutation is within bounds.
        np.take(self.row_bytes, rows, axis=0, out=_as_bytes(out), mode="clip")
        return out


class _Lane:
    """Pinned memory for one batch, and the batch that was last sent through it."""

    def __init__(self, tables: list[_Table], batch_size: int, stream: torch.cuda.Stream) -> None:
        self.tables, self.stream = tables, stream
        self.pinned = [
            torch.empty((batch_size, *table.row_shape), dtype=table.tensor.dtype, pin_memory=True) for table in tables
        ]
        self.copied = torch.cuda.Event()
        self.batch: list[torch.Tensor] = []

    def send(self, rows: Rows) -> None:
        """Gather a batch and begin its copy. The host waits only for the copy that last read this memory."""
        self.copied.synchronize()
        num_rows = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        filled = [memory[:num_rows] for memory in self.pinned]
        for table, memory in zip(self.tables, filled, strict=True):
            table.read_into(rows, memory)
        with torch.cuda.stream(self.stream):
            self.batch = [memory.to(self.stream.device, non_blocking=True) for memory in filled]
            self.copied.record(self.stream)

    def hand_over(self) -> list[torch.Tensor]:
        """Return the batch for use on the caller's stream: that stream waits for the copy, the host does not."""
        current = torch.cuda.current_stream(self.stream.device)
        current.wait_event(self.copied)
        batch, self.batch = self.batch, []
        for tensor in batch:
            tensor.record_stream(current)  # allocated on the copy stream: its memory must not be reused too early
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
