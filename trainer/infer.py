"""Vectors for users with a given item table: the same kernel, with the items frozen. Deterministic on any threads.

With frozen items users do not touch each other, so the order of the work does not matter.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.corpus import Corpus
from trainer.draws import epoch_key
from trainer.errors import ResourceError
from trainer.events import OnEvent, ignore_event
from trainer.kernels import pick_kernel
from trainer.kernels.signature import Pass
from trainer.loop import Job
from trainer.objectives import Sampling, make_sampling
from trainer.rows import Items, Rows, at_rest, begin_users
from trainer.store import Generation, Writer, lock_store, open_generation, rows_in
from trainer.trees import Tree, make_tree
from trainer.units import size


@dataclass(frozen=True)
class FrozenItems:
    """A trained item table and what is needed to fit users to it."""

    config: TrainConfig
    items: Items
    sampling: Sampling
    tree: Tree | None
    recency: float


def freeze_items(generation: Generation, counts: NDArray[np.int64], threads: int) -> FrozenItems:
    """The item table of a generation; counts int64[V]: how often its training saw each item in an epoch."""
    config = replace(generation.config, threads=threads)
    recency = generation.manifest["recency"]
    return FrozenItems(
        config, generation.read_item_table(), make_sampling(counts, config), make_tree(config, counts), recency
    )


def infer_vectors(
    frozen: FrozenItems, tokens: NDArray[np.int32], offsets: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> Rows:
    """Rows of users with these histories: offsets int64[n+1] into tokens; a pure function of each history and hash."""
    config, num_users = frozen.config, len(hashes)
    rows = begin_users(config, hashes)
    kernel = pick_kernel("cpu", config)
    for epoch in range(config.epochs):
        alpha = config.alpha - (config.alpha - config.min_alpha) * epoch / config.epochs
        work = Pass(
            config=config, tokens=tokens, starts=offsets[:-1], ends=offsets[1:], hashes=hashes,
            order=np.arange(num_users), alphas=np.full(num_users, alpha, dtype=np.float32), sampling=frozen.sampling,
            tree=frozen.tree, recency=frozen.recency, epoch_key=epoch_key(config.seed, epoch), update_items=False,
        )  # fmt: skip
        kernel.train_users(rows, frozen.items, work)
    return rows


def refit_held_out(job: Job, corpus: Corpus, values: dict[str, Any], on_event: OnEvent = ignore_event) -> Generation:
    """Infer the held-out users again from their full histories and commit; they have trained without their newest events.

    `values` join the manifest (the metrics that were measured before). A generation that was refitted is answered as it is.
    """
    with lock_store(job.store_dir):
        generation = open_generation(job.store_dir)
        if generation.manifest["stage"] == "refitted":
            return generation
        frozen = freeze_items(generation, corpus.count_training_tokens(), job.config.threads)
        _check_disk(job, generation)
        writer = Writer(
            job.store_dir, generation.generation + 1, generation.manifest["users"], generation.item_entries()
        )
        for partition in range(corpus.num_partitions):
            histories = corpus.read(partition)
            held = np.flatnonzero(histories.is_held_out)
            if len(held):
                lengths = np.diff(histories.offsets)[held]
                offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
                tokens = np.concatenate(
                    [histories.tokens[histories.offsets[r] : histories.offsets[r + 1]] for r in held]
                )
                fitted = infer_vectors(frozen, tokens, offsets, histories.hashes[held])
                fitted = at_rest(frozen.config, frozen.config.epochs, histories.hashes[held], fitted)
                image = writer.read_users(partition)
                rows = rows_in(image)
                rows.vectors[held], rows.squares[held] = fitted.vectors, fitted.squares
                writer.write_users(partition, image)
            on_event(
                "progress",
                {"step": "refit", "done": partition + 1, "total": corpus.num_partitions, "unit": "micro-partitions"},
            )
        return writer.commit(generation.manifest | values | {"stage": "refitted"})


def _check_disk(job: Job, generation: Generation) -> None:
    """Raise ResourceError when the disk cannot hold the users once more."""
    needed_bytes = sum(entry["bytes"] for entry in generation.manifest["users"].values())
    stat = os.statvfs(job.store_dir)
    free_bytes = stat.f_bavail * stat.f_frsize
    if needed_bytes > free_bytes:
        raise ResourceError(
            f"fitting the held-out users again needs up to {size(needed_bytes)} of disk and {size(free_bytes)} are free in "
            f"{job.store_dir}: free space, then run the same command again"
        )
