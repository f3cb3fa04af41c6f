"""Vectors for users with a given item table: the same kernel, with the items frozen. Deterministic on any threads.

With frozen items users do not touch each other, so the order of the work does not matter.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig
from trainer.corpus import Corpus
from trainer.draws import epoch_key, initial_vectors
from trainer.events import OnEvent, ignore_event
from trainer.kernels import pick_kernel
from trainer.kernels.signature import Pass
from trainer.loop import Job, make_plan
from trainer.objectives import Sampling, make_sampling
from trainer.store import Generation, Writer, lock_store, open_generation


def infer_vectors(
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    item_vectors: NDArray[np.float32],
    sampling: Sampling,
    config: TrainConfig,
) -> NDArray[np.float32]:
    """Vectors float32[n, D] of users with these histories (offsets int64[n+1] into tokens), items frozen."""
    vectors = initial_vectors(config.seed, hashes, item_vectors.shape[1])
    kernel = pick_kernel("cpu", config.threads)
    for epoch in range(config.epochs):
        alpha = config.alpha - (config.alpha - config.min_alpha) * epoch / config.epochs
        work = Pass(
            tokens=tokens, starts=offsets[:-1], ends=offsets[1:], hashes=hashes,
            order=np.arange(len(hashes)), alphas=np.full(len(hashes), alpha, dtype=np.float32), sampling=sampling,
            epoch_key=epoch_key(config.seed, epoch), negative=config.negative, threads=config.threads, update_items=False,
        )  # fmt: skip
        kernel.train_users(vectors, item_vectors, work)
    return vectors


def refit_held_out(job: Job, corpus: Corpus, values: dict[str, Any], on_event: OnEvent = ignore_event) -> Generation:
    """Infer the held-out users again from their full histories and commit; they have trained without their newest events.

    `values` join the manifest (the metrics that were measured before). A generation that was refitted is answered as it is.
    """
    with lock_store(job.store_dir):
        generation = open_generation(job.store_dir)
        if generation.manifest["stage"] == "refitted":
            return generation
        items = generation.read_items()
        sampling = make_sampling(corpus.count_training_tokens(), job.config.ns_exponent, job.config.sample)
        make_plan(job, corpus)  # refuses when the disk cannot hold another generation
        writer = Writer(job.store_dir, generation.generation + 1, generation.manifest["users"])
        for partition in range(corpus.num_partitions):
            histories = corpus.read(partition)
            rows = np.flatnonzero(histories.is_held_out)
            if len(rows):
                lengths = np.diff(histories.offsets)[rows]
                offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
                tokens = np.concatenate(
                    [histories.tokens[histories.offsets[r] : histories.offsets[r + 1]] for r in rows]
                )
                vectors = generation.read_users(partition)
                vectors[rows] = infer_vectors(tokens, offsets, histories.hashes[rows], items, sampling, job.config)
                writer.write_users(partition, vectors)
            on_event(
                "progress",
                {"step": "refit", "done": partition + 1, "total": corpus.num_partitions, "unit": "micro-partitions"},
            )
        return writer.commit(items, generation.manifest | values | {"stage": "refitted"})
