"""An incremental night: a training that continues from an older generation, on some of its rows and new ones.

    start_night         commits the store's generation at position 0: the base's items, new items, and the changed users fitted
                        to them. Training resumes from it as after a crash, with few epochs (`Job.schedule`)
    start_full_night    the same for a full night near the base's space: known items, and users with unchanged tokens, begin
                        with the base's vectors; held-out users do not, as the base was trained on their held-out events
    fold_night          commits the trained rows beside the base's files: as a delta for each micro-partition, while it is small

The corpus has only the changed rows (`Corpus.rows` has their numbers). The base's files do not change. The few users of a night
must not pull the items away from all other users, who are not trained (docs/decisions.md has the figures).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.events import OnEvent, ignore_event, log_progress
from surf2vec.trainer.kernels.first_rows import at_rest, begin_items, begin_trail, begin_users
from surf2vec.trainer.model.rows import PER_ITEM, Items, Rows
from surf2vec.trainer.store.generation import Generation, next_generation, open_generation
from surf2vec.trainer.store.images import Image, read_image
from surf2vec.trainer.store.layout import (
    Delta,
    delta_in,
    image_of_items,
    image_of_rows,
    items_of,
    join_items,
    lay_over,
    merge_deltas,
    read_rows,
)
from surf2vec.trainer.store.tokens import Corpus, Histories, matching_partitions
from surf2vec.trainer.store.writer import Writer, lock_store
from surf2vec.trainer.system.memory import PAGE_BYTES
from surf2vec.trainer.training.infer import FrozenItems, infer_parts, take_histories
from surf2vec.trainer.training.job import Job, describe_training, effective_recency, find_generation, identity

FULL_FILE_SHARE = 4
"""A delta with more than one row in so many is not worth a second file."""
KNOWN_SQUARES = 20.0
"""The first Adagrad sum of known rows in a full night: twice that at the end of a training, so that they move less."""
KNOWN_ITEM_SQUARES = {"interest": (0.0, KNOWN_SQUARES), "trail": (3.0, 0.0)}
"""The first Adagrad sums of known items in a full night: a factor of the base's sums, and a constant."""
NewItems = dict[str, dict[str, NDArray[np.float32]]]
"""By part and table, the first vectors of items that the base does not have, float32[k, D]."""
FIRST_ITEMS: dict[str, Callable[[TrainConfig, int], Items]] = {
    "interest": lambda config, num_items: begin_items(config, num_items, num_items),
    "trail": begin_trail,
}


@dataclass(frozen=True)
class PriorVectors:
    """The rows that a full night takes from its base. items int64[V]: the base's row of each item, -1 for missing ones;
    users: returns for a micro-partition the base's row of each user with the same tokens, -1 for others, int64[n]. The rows of
    the base are those of all its matching micro-partitions, in sequence; num_partitions: of the night.
    """

    base: Generation
    items: NDArray[np.int64]
    users: Callable[[int], NDArray[np.int64]]
    num_partitions: int

    def begin(self, config: TrainConfig, partition: int, hashes: NDArray[np.uint64], places: NDArray[np.int64]) -> Rows:
        """Return users' first rows: the base's vectors in rows `places` int64[n]; for -1 the usual ones."""
        begun = begin_users(config, hashes)
        is_known = places >= 0
        matching = matching_partitions(partition, self.num_partitions, self.base.num_partitions)
        before = np.concatenate([self.base.read_users(one) for one in matching])
        begun.vectors[is_known] = before[places[is_known]]
        begun.squares[is_known] = KNOWN_SQUARES
        return begun


def incompatibility(config: TrainConfig, base: Generation) -> str | None:
    """Return the reason why a training cannot begin from the base; None if it can."""
    kinds = [(one.vector_size, one.parts, one.has_inputs, one.trail_window) for one in (config, base.config)]
    if kinds[0] != kinds[1]:
        return "its vectors are of another kind"
    if config.bias != base.config.bias:
        return f"its users have a train.bias of {base.config.bias:g}, not {config.bias:g}"
    if config.hs or base.config.hs:
        return "a tree is built from each night's counts"
    if base.num_blocks > 1:
        return f"the item table is in {base.num_blocks} blocks, which are divided by each night's counts"
    return None


def start_night(
    job: Job, corpus: Corpus, base: Generation, new_items: NewItems, decay: float, on_event: OnEvent = ignore_event
) -> None:
    """Commit the generation that the job's training begins from, unless the store already has it or a later one.

    decay: the factor of the items' Adagrad sums, so that items still move after many nights. Raises ConfigError when a training
    cannot begin from the base, DamageError when a file of it was altered.
    """
    config = job.config
    if reason := incompatibility(config, base):
        raise ConfigError(f"this night cannot continue from generation {base.generation}: {reason}; run it with --full")

    def make_items(part: str) -> Image:
        """Return the base's items with decayed sums, then the new ones. The base's are mapped from disk."""
        new = new_items[part]
        older, begun = base.map_items(part), FIRST_ITEMS[part](config, len(new["outputs"]))
        for name, vectors in new.items():
            getattr(begun, name).vectors[:] = vectors
        image = join_items(older, begun)
        for name, rows in vars(items_of(image.arrays)).items():
            rows.squares[: len(getattr(older, name).squares)] *= np.float32(decay)
        return image

    def fit_users(generation: Generation, image: Image) -> Callable[[int, Histories], Rows]:
        frozen = FrozenItems(generation, corpus.count_training_tokens(), config.threads, items_of(image.arrays))

        def fit(partition: int, histories: Histories) -> Rows:
            seen = take_histories(histories, np.arange(histories.num_users), histories.ends)
            ((_, rows),) = infer_parts(frozen, [(partition, seen)])
            return rows

        return fit

    _begin(job, corpus, base, make_items, fit_users, on_event)


def start_full_night(job: Job, corpus: Corpus, known: PriorVectors, on_event: OnEvent = ignore_event) -> None:
    """Commit the generation that a full night begins from, unless the store already has it or a later one.

    Held-out users begin at random: the base must not reveal their held-out items.
    """

    is_known = known.items >= 0

    def make_items(part: str) -> Image:
        older, begun = known.base.map_items(part), FIRST_ITEMS[part](job.config, corpus.num_items)
        factor, constant = map(np.float32, KNOWN_ITEM_SQUARES[part])
        for name, before in vars(older).items():
            if name not in PER_ITEM:
                setattr(begun, name, before)
            elif len(before.squares):
                rows, places = getattr(begun, name), known.items[is_known]
                rows.vectors[is_known] = before.vectors[places]
                rows.squares[is_known] = factor * before.squares[places] + constant
        return image_of_items(begun)

    def begin(partition: int, histories: Histories) -> Rows:
        places = np.where(histories.is_held_out, -1, known.users(partition))
        return known.begin(job.config, partition, histories.hashes, places)

    _begin(job, corpus, known.base, make_items, lambda *_: begin, on_event)


def _begin(
    job: Job,
    corpus: Corpus,
    base: Generation,
    make_items: Callable[[str], Image],
    begin_with: Callable[[Generation, Image], Callable[[int, Histories], Rows]],
    on_event: OnEvent,
) -> None:
    """Commit a generation at position 0. make_items: returns a part's items; begin_with: the function that makes users' rows."""
    with lock_store(job.store_dir):
        name = identity(corpus, job.config, job.start)
        if find_generation(job.store_dir, name):
            return
        writer = Writer(job.store_dir, next_generation(job.store_dir))
        images = {part: make_items(part) for part in {"interest": 0, **job.config.part_sizes}}
        for part, items in images.items():
            writer.write(part, 0, items)
        recency = effective_recency(job.config, corpus)
        values = describe_training(
            name, corpus, job.config, recency, base.manifest["kernel"], base.manifest["kernel_reason"]
        )
        values |= {
            "num_blocks": 1,
            "resident_block": 0,
            "stage": "training",
            "position": 0,
            "num_processes": 0,
            "plan": {"chunk_partitions": corpus.num_partitions},
        }
        make_rows = begin_with(Generation(job.store_dir, values | writer.list_files(1)), images["interest"])
        for partition in range(corpus.num_partitions):
            histories = corpus.read(partition)
            if histories.num_users and job.config.interest_size:
                rows = at_rest(job.config, -1, histories.hashes, make_rows(partition, histories))
                writer.write("users", partition, image_of_rows(rows))
            log_progress(on_event, "begin", partition + 1, corpus.num_partitions)
        writer.commit(values)


def fold_night(
    job: Job, corpus: Corpus, base: Generation, values: dict[str, Any], on_event: OnEvent = ignore_event
) -> Generation:
    """Commit the generation of all users: the base's files, and beside them the rows of the night.

    corpus: of the changed rows; values: added to the manifest (the window of all users). Returns a folded generation
    unchanged.
    """
    with lock_store(job.store_dir):
        trained = open_generation(job.store_dir)
        if trained.manifest["stage"] == "folded":
            return trained
        files = {"users": base.manifest["users"], "items": trained.manifest["items"]}
        writer = Writer(job.store_dir, next_generation(job.store_dir), files)
        for partition in range(corpus.num_partitions):
            places = corpus.rows(partition)
            assert places is not None, f"{corpus.folder} is a corpus of all rows"
            if len(places) and str(partition) in trained.manifest["users"]:
                newer = Delta(places, read_rows(job.store_dir, trained.manifest["users"][str(partition)]))
                _write_newer(writer, partition, base, newer)
            log_progress(on_event, "fold", partition + 1, corpus.num_partitions)
        return writer.commit(trained.manifest | values | {"stage": "folded"})


def _write_newer(writer: Writer, partition: int, base: Generation, newer: Delta) -> None:
    """Write a delta beside the base's file, or a new full file if the delta is large."""
    entry = base.manifest["users"].get(str(partition))
    if entry is None:  # the base has no users here
        writer.write("users", partition, image_of_rows(newer.rows))
        return
    if "delta" in entry:
        older = delta_in(read_image(base.folder / entry["delta"]["file"], entry["delta"]).arrays)
        newer = merge_deltas(older, newer)
    if newer.rows.num_bytes * FULL_FILE_SHARE > entry["bytes"] - PAGE_BYTES:
        full_file = {name: value for name, value in entry.items() if name != "delta"}
        writer.write("users", partition, image_of_rows(lay_over(read_rows(base.folder, full_file), newer)))
    else:
        writer.write_delta(partition, newer)
