"""Fits users to a given item table: the same kernel, with frozen items. Deterministic with any number of threads.

If the item table was trained in blocks, one block is in memory at a time. Users are fitted to each in turn in every epoch, as in
training. The price: the table is read about once an epoch for each group of users.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.events import OnEvent, ignore_event, log_progress
from surf2vec.trainer.kernels import pick_kernel
from surf2vec.trainer.kernels.first_rows import at_rest, begin_users
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.plan.sizes import training_sizes
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.layout import rows_in
from surf2vec.trainer.store.tokens import COUNTS, Corpus, Histories, gather_spans, to_offsets
from surf2vec.trainer.store.writer import Writer, lock_store
from surf2vec.trainer.system.fan_out import HERE, FanOut, cut
from surf2vec.trainer.system.files import TEMPORARY_SUFFIX
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.system.units import size
from surf2vec.trainer.training.curve import Targets
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.vectors import join_parts

GROUP_BYTES = 64 * 10**6
"""The size of a group: with several item blocks, vectors and tokens of micro-partitions that are fitted together."""

Key = TypeVar("Key")
Begin = Callable[[int, NDArray[np.int64]], Rows]
"""Returns the first rows of users, given their micro-partition and row numbers."""


class FrozenItems:
    """A trained item table with at most one block in memory, and the settings and tables to fit users to it."""

    def __init__(
        self, generation: Generation, counts: NDArray[np.int64], threads: int, items: Items | None = None
    ) -> None:
        """counts int64[V]: how often training saw each item in an epoch; items: the only block, if it is in memory."""
        self.config, self.generation = replace(generation.config, threads=threads), generation
        self.recency: float = generation.manifest["recency"]
        self.blocks = ItemBlocks(self.config, counts, generation.num_blocks)
        self._admitted = None if items is None else (0, items, self.blocks.targets(0))

    @property
    def num_bytes(self) -> int:
        """The bytes of the largest block in memory, with its tables."""
        sizes = training_sizes(self.config, self.generation.num_items, self.blocks.tree)
        return sizes.block_bytes(self.blocks.num_blocks) + sizes.block_tables_bytes(self.blocks.num_blocks)

    def admit(self, block: int) -> tuple[Items, Targets]:
        """Load an item block, and return it with its targets. Raises DamageError when a file was altered."""
        if self._admitted is None or self._admitted[0] != block:
            self._admitted = None  # first release the previous block: there is room for one
            items = self.generation.read_item_block(block, self.blocks.num_shared_rows)
            self._admitted = block, items, self.blocks.targets(block)
        return self._admitted[1:]


def infer_vectors(
    frozen: FrozenItems,
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    begun: Rows | None = None,
    on_event: OnEvent = ignore_event,
) -> Rows:
    """Fit users to the items. offsets int64[n+1] into tokens; begun: their first rows, changed in place; None: as in training.

    Each row is a pure function of the user's history, hash and first row.
    """
    if not frozen.config.interest_size:
        return Rows(np.empty((len(hashes), 0), dtype=np.float32), np.empty(len(hashes), dtype=np.float32))
    num_blocks, num_turns = frozen.blocks.num_blocks, frozen.config.epochs * frozen.blocks.num_blocks
    histories = Histories(hashes, tokens, offsets, offsets[1:], np.zeros(len(hashes), dtype=bool))
    rows = begin_users(frozen.config, hashes) if begun is None else begun
    for done in range(num_turns):
        epoch, turn = divmod(done, num_blocks)
        block = turn if epoch % 2 == 0 else num_blocks - 1 - turn  # begins with the block in memory
        _fit_to_block(frozen, block, histories, rows, epoch)
        if num_blocks > 1:
            log_progress(on_event, "fit", done + 1, num_turns, "item blocks")
    return rows


def _fit_to_block(frozen: FrozenItems, block: int, histories: Histories, rows: Rows, epoch: int) -> None:
    """Train the users' rows once against an item block, in place. No caller keeps the block: the next one needs its memory."""
    config, order = frozen.config, np.arange(histories.num_users)
    items, targets = frozen.admit(block)
    own = frozen.blocks.histories(histories, block)
    alpha = config.alpha - (config.alpha - config.min_alpha) * epoch / config.epochs
    alphas = np.full(len(order), alpha, dtype=np.float32)
    work = targets.make_pass(own, order, alphas, frozen.recency, epoch, update_items=False)
    pick_kernel("cpu", config).train_users(rows, items, work)


def infer_parts(
    frozen: FrozenItems,
    parts: Iterable[tuple[Key, Histories]],
    group_bytes: int = GROUP_BYTES,
    begin: Callable[[Key], Rows] | None = None,
    on_event: OnEvent = ignore_event,
) -> Iterator[tuple[Key, Rows]]:
    """Yield the rows of each part's users, in order. With several item blocks, fits `group_bytes` of parts together.

    begin: returns the first rows of a part's users; None: as in training.
    """
    group, num_bytes = list[tuple[Key, Histories]](), 0
    for key, histories in parts:
        group.append((key, histories))
        num_bytes += 4 * (histories.num_users * frozen.config.interest_size + len(histories.tokens))
        if frozen.blocks.num_blocks == 1 or num_bytes >= group_bytes:
            yield from _infer_group(frozen, group, begin, on_event)
            group, num_bytes = [], 0
    yield from _infer_group(frozen, group, begin, on_event)


def _infer_group(
    frozen: FrozenItems, group: list[tuple[Key, Histories]], begin: Callable[[Key], Rows] | None, on_event: OnEvent
) -> Iterator[tuple[Key, Rows]]:
    if not group:
        return
    parts = [part for _, part in group]
    tokens, hashes = (np.concatenate(arrays) for arrays in zip(*((p.tokens, p.hashes) for p in parts), strict=True))
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    begun = [begin(key) for key, _ in group] if begin else []
    first = [np.concatenate(arrays) for arrays in zip(*((r.vectors, r.squares) for r in begun), strict=True)]
    rows = infer_vectors(frozen, tokens, to_offsets(lengths), hashes, Rows(*first) if first else None, on_event)
    end = 0
    for key, part in group:
        start, end = end, end + part.num_users
        yield key, Rows(rows.vectors[start:end], rows.squares[start:end])


def infer_whole(
    frozen: FrozenItems,
    parts: Iterable[tuple[Key, Histories]],
    group_bytes: int = GROUP_BYTES,
    on_event: OnEvent = ignore_event,
) -> Iterator[tuple[Key, NDArray[np.float32]]]:
    """Yield the vectors of each part's users, of interest and trail, float32[n, D]; arguments as for `infer_parts`."""
    pairs = (((key, histories), histories) for key, histories in parts)
    for (key, seen), rows in infer_parts(frozen, pairs, group_bytes, on_event=on_event):
        yield key, join_parts(frozen.generation, rows.vectors, seen.tokens, seen.starts, seen.ends)


def take_histories(histories: Histories, users: NDArray[np.int64], ends: NDArray[np.int64]) -> Histories:
    """Copy the histories of some users, int64[m], up to `ends`, int64[m]."""
    starts = histories.starts[users]
    offsets, tokens = gather_spans(histories.tokens, starts, ends - starts)
    return Histories(histories.hashes[users], tokens, offsets, offsets[1:], np.zeros(len(users), dtype=bool))


def refit_held_out(
    job: Job,
    corpus: Corpus,
    values: dict[str, Any],
    on_event: OnEvent = ignore_event,
    begin: Begin | None = None,
    fan_out: FanOut = HERE,
) -> Generation:
    """Fit the held-out users again, to their full histories, and commit. Training did not use their newest events.

    values: added to the manifest (earlier measurements); begin: returns their first rows; None: as in training.
    Returns a refitted generation unchanged. Raises ResourceError when the memory or the disk does not suffice.
    """
    with lock_store(job.store_dir):
        generation = open_generation(job.store_dir)
        if generation.has_seen_held_out:
            return generation
        if not generation.config.interest_size:  # trails are summed up when they are read
            return _next_writer(generation).commit(generation.manifest | values | {"stage": "refitted"})
        counts = corpus.count_training_tokens()
        _check_room(job, corpus, generation, FrozenItems(generation, counts, job.config.threads))
        writer = _next_writer(generation)
        with tempfile.TemporaryDirectory(TEMPORARY_SUFFIX, ".refit.", job.store_dir) as folder:
            np.save(Path(folder) / COUNTS, counts, allow_pickle=False)
            path, threads = Path(folder) / COUNTS, fan_out.choose_threads(job.config.threads)
            ranges = cut(corpus.users.tolist(), fan_out.num_parts)
            parts = [RefitPart(generation, corpus, path, threads, begin, partitions) for partitions in ranges]
            for entries in fan_out.run(refit_part, parts, on_event):
                writer.add_written(entries)
        return writer.commit(generation.manifest | values | {"stage": "refitted"})


@dataclass(frozen=True)
class RefitPart:
    """The held-out users of some micro-partitions; counts: the file with how often training saw each item."""

    generation: Generation
    corpus: Corpus
    counts: Path
    threads: int
    begin: Begin | None
    partitions: range


def refit_part(part: RefitPart, on_event: OnEvent) -> list[tuple[str, int, dict[str, Any]]]:
    """Fit the held-out users of a part. Returns kind, number and manifest entry of each written file."""
    corpus, begin = part.corpus, part.begin
    frozen = FrozenItems(part.generation, np.load(part.counts, allow_pickle=False), part.threads)
    writer = _next_writer(part.generation)
    first = (lambda key: begin(*key)) if begin else None

    def read_parts() -> Iterator[tuple[tuple[int, NDArray[np.int64]], Histories]]:
        """Yield ((micro-partition, rows of its held-out users), their full histories)."""
        for partition in part.partitions:
            histories = corpus.read(partition)
            held = np.flatnonzero(histories.is_held_out)
            if len(held):
                yield (partition, held), take_histories(histories, held, histories.offsets[held + 1])

    for (partition, held), fitted in infer_parts(frozen, read_parts(), begin=first, on_event=on_event):
        image = writer.read("users", partition)
        rows, hashes = rows_in(image), corpus.read(partition).hashes[held]
        rested = at_rest(frozen.config, frozen.config.epochs, hashes, fitted)
        rows.vectors[held], rows.squares[held] = rested.vectors, rested.squares
        writer.write("users", partition, image)
        log_progress(on_event, "refit", partition + 1, corpus.num_partitions)
    writer.sync()
    return writer.take_fresh()


def _next_writer(generation: Generation) -> Writer:
    """Return a writer of the next generation, which begins with this one's files."""
    return Writer(generation.folder, generation.generation + 1, generation.manifest)


def _check_room(job: Job, corpus: Corpus, generation: Generation, frozen: FrozenItems) -> None:
    """Raise ResourceError when memory lacks room for an item block and a micro-partition, or the disk for a copy of the users."""
    needed_bytes = sum(entry["bytes"] for entry in generation.manifest["users"].values())
    free_bytes = shutil.disk_usage(job.store_dir).free
    if needed_bytes > free_bytes:
        raise ResourceError(
            f"fitting the held-out users again needs up to {size(needed_bytes)} of disk and {size(free_bytes)} are free in "
            f"{job.store_dir}: free space, then run the same command again"
        )
    held_bytes, num_held_out = private_bytes(), corpus.manifest["num_held_out"]
    row_bytes = 4 * frozen.config.interest_size
    users_bytes = 2 * int(corpus.users.max()) * row_bytes + min(GROUP_BYTES, num_held_out * row_bytes)
    if num_held_out and held_bytes + frozen.num_bytes + users_bytes > job.host_memory_bytes:
        raise ResourceError(
            f"fitting the held-out users again needs {size(frozen.num_bytes)} for an item block of {corpus.num_items:,} items, "
            f"{size(users_bytes)} for users and {size(held_bytes)} for the process, but the budget is "
            f"{size(job.host_memory_bytes)}: raise --host-memory, or set evaluate.max_users to 0"
        )
