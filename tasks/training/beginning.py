"""Plans a night: whether it builds on the champion, which vectors its training begins with, and the space of its result.

A night builds on the champion, never on a release that was held back. If the champion's corpus or generation is gone, or
training cannot continue from them, the night is full: everything is trained again.

Vectors of releases with the same `space_id` can be compared. A full night is rotated so that its most frequent items lie near the
same items of the champion.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from surf2vec.tasks.config import NightlyConfig
from surf2vec.tasks.corpus.window import ends_before, list_differences
from surf2vec.tasks.evaluation.comparison import match_items, match_unchanged
from surf2vec.tasks.root.records import EvaluateStep, NightPlan, RefitStep, ReleaseBefore, RunRecord, SettleStep
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.training.base import BaseRelease, open_base
from surf2vec.tasks.training.choice import has_popularity
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.model.rows import PER_ITEM, Rows
from surf2vec.trainer.store.align import Rotation, align_generation, find_rotation
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, matching_partitions, open_corpus
from surf2vec.trainer.system.fan_out import FanOut
from surf2vec.trainer.training.infer import refit_held_out
from surf2vec.trainer.training.job import RESULT_NEUTRAL, Job, LearningSchedule, choose_parts
from surf2vec.trainer.training.next_night import (
    PriorVectors,
    fold_night,
    incompatibility,
    start_full_night,
    start_night,
)

DECAY = 0.9
"""The items' Adagrad sums are multiplied by this for a night: below 1, so that frequent items still move."""
NIGHT_EPOCHS = 2
"""Epochs of an incremental night, after changed users were fitted to the champion's items."""
MIN_ALIGNMENT = 0.5
"""If the mean cosine of items with the champion's is lower, a full night begins a new space."""
ALIGN_ITEMS = 100_000
"""The rotation is fitted to common items among the first so many of both vocabularies: far more than 128 dimensions need."""
BATCH_ITEMS = 65_536
Side = tuple[Corpus, Generation]
Read = Callable[[int, int], NDArray[np.float32]]
"""Reads the vectors of items from and up to."""
_SECTION = r"^([a-z][a-z0-9+.-]*://[^/]*/[^/]+|/[^/]+)/"
_HOST = r"^([a-z][a-z0-9+.-]*://[^/]*)"


@dataclass(frozen=True)
class NightRequest:
    """The request for a night. inputs: the inputs of its corpus (tasks/corpus/window.py)."""

    config: TrainConfig
    nightly: NightlyConfig
    inputs: dict[str, Any]
    is_full: bool


def why_full(request: NightRequest, base: BaseRelease | None, corpus: dict[str, Any]) -> str | None:
    """Return why a night must be full; None if it can build on the base. `corpus`: the manifest of the base's corpus."""
    if request.is_full:
        return "--full was given"
    if base is None:
        return "there is no champion whose corpus and vectors are in this root"
    made_from, release = corpus.get("made_from", {}), base.record.release
    changed = list_differences(made_from, request.inputs)
    changed += ["max_users"] if made_from.get("max_users") != request.inputs["max_users"] else []
    then, now = dataclasses.asdict(base.generation.config), dataclasses.asdict(request.config)
    changed += [f"train.{name}" for name in now if name not in RESULT_NEUTRAL and then.get(name) != now[name]]
    if changed:
        return f"changed since release {release}: {', '.join(changed)}"
    if reason := incompatibility(request.config, base.generation):
        return reason
    until, before = request.inputs["days"][1], made_from["days"][1]
    if ends_before(until, before):
        return f"its window ends on {until}, before that of release {release}, which ends on {before}"
    full_until, days = base.record.full_until, request.nightly.full_every_days
    if until and full_until and (date.fromisoformat(until) - date.fromisoformat(full_until)).days >= days:
        return f"the last full night was that of {full_until}, and nightly.full_every_days is {days}"
    return None


def night_schedule(config: TrainConfig) -> LearningSchedule:
    """Return the schedule of an incremental night: few epochs and low rates, as items and most users hardly change."""
    return LearningSchedule(NIGHT_EPOCHS, config.alpha / 5, min(config.min_alpha, config.alpha / 50))


def plan_night(root: Root, champion: str | None, request: NightRequest, digest: str) -> NightPlan:
    """Plan a new night: whether it builds on the champion, and the reason if not. `digest`: the result of `request_digest`."""
    space = open_base(root, champion) if champion else None
    corpus: dict[str, Any] = {}
    if space:
        before = open_corpus(root.corpus(space.record.window_id))
        # as the night's corpus will say, too, if it continues this one
        corpus, request = before.manifest, dataclasses.replace(request, config=choose_parts(request.config, before))
    reason = why_full(request, space, corpus)
    base = space if reason is None else None
    start, retained = "", None
    if base:
        start = f"after release {base.record.release}, decay {DECAY:g}, epochs {NIGHT_EPOCHS}"
    elif (
        space
        and request.nightly.full_from_champion
        and not request.config.items_from
        and incompatibility(request.config, space.generation) is None
    ):
        start = f"vectors of release {space.record.release}"
        retained = None if list_differences(corpus.get("made_from", {}), request.inputs) else space.record.window_id
    return NightPlan(
        request=digest, champion=champion, base=base.record if base else None, space=space.record if space else None,
        full_because=reason, full_until=base.record.full_until if base else request.inputs["days"][1], start=start,
        retained=retained, popularity=space.generation.config.popularity if space and has_popularity(request.config) else 0.0,
    )  # fmt: skip


def begin_training(root: Root, job: Job, record: RunRecord, on_event: OnEvent) -> None:
    """Write the first generation of the night's training into the store, unless it is there already."""
    corpus = open_corpus(job.corpus_dir)
    if record.base:
        base = _require(root, record.base)
        new_items = begin_new_items(open_corpus(root.corpus(record.window_id)), base.generation)
        start_night(job, corpus, base.generation, new_items, DECAY, on_event)
    elif space := _find_start(root, job, record):
        start_full_night(job, corpus, _read_known(root, corpus, space), on_event)


def _find_start(root: Root, job: Job, record: RunRecord) -> BaseRelease | None:
    """Return the release whose vectors a full night begins with, if any. Its corpus may show an order that the older one did
    not; then vectors have two parts now, and start from random vectors.
    """
    if not (job.start and record.space) or record.base:
        return None
    space = _require(root, record.space)
    return None if incompatibility(job.config, space.generation) else space


def refit(root: Root, job: Job, record: RunRecord, on_event: OnEvent, fan_out: FanOut) -> RefitStep:
    """Commit a generation with the evaluated held-out users fitted to all their events. Returns the record of step "refit".

    In a full night these users begin with the same kind of vectors as its other users.
    """
    corpus, evaluated = open_corpus(job.corpus_dir), record.require(EvaluateStep)
    values = {"evaluation": evaluated.model_dump(exclude={"digest", "seconds"}, exclude_unset=True)}
    space = _find_start(root, job, record)
    begin = HeldOutStart(root, job, space) if space else None
    generation = refit_held_out(job, corpus, values, on_event, begin, fan_out)
    return RefitStep(generation=generation.generation, num_users=corpus.manifest["num_held_out"])


@dataclass(frozen=True)
class HeldOutStart:
    """Begins the rows of held-out users in a full night. It is sent to other processes, so a call opens the champion."""

    root: Root
    job: Job
    space: BaseRelease

    def __call__(self, partition: int, rows: NDArray[np.int64]) -> Rows:
        corpus, known = self._opened
        hashes = corpus.read(partition).hashes[rows]
        return known.begin(self.job.config, partition, hashes, known.users(partition)[rows])

    @cached_property
    def _opened(self) -> tuple[Corpus, PriorVectors]:
        corpus = open_corpus(self.job.corpus_dir)
        return corpus, _read_known(self.root, corpus, self.space)


def _read_known(root: Root, corpus: Corpus, space: BaseRelease) -> PriorVectors:
    """Return what a full night takes from the champion: its items, and the users with the same tokens."""
    other = open_corpus(root.corpus(space.record.window_id))
    to_other, _ = match_items(corpus.vocabulary, other.vocabulary)

    def match(partition: int) -> NDArray[np.int64]:
        places, num_before = np.full(int(corpus.users[partition]), -1), 0
        for before in matching_partitions(partition, corpus.num_partitions, other.num_partitions):
            found = match_unchanged((corpus, partition), (other, before), to_other)
            places = np.where(found >= 0, found + num_before, places)
            num_before += int(other.users[before])
        return places

    return PriorVectors(space.generation, to_other, match, corpus.num_partitions)


def settle(root: Root, job: Job, record: RunRecord, on_event: OnEvent) -> SettleStep:
    """Complete the store's generation to all users, and choose its space. Returns the record of step "settle".

    An incremental night is folded into its base and shares its space. A full night is rotated into the champion's space, or
    begins a new space if its items do not fit those of the champion after the rotation. So does one with another export.pca_dim.
    """
    pca_dim = record.setting("export", "pca_dim")
    if record.base:
        base, values = _require(root, record.base), {"window_id": record.window_id}
        folded = fold_night(job, open_corpus(job.corpus_dir), base.generation, values, on_event)
        space_id = base.record.space_id if base.pca_dim == pca_dim else record.run_id
        return SettleStep(kind="incremental", space_id=space_id, generation=folded.generation)
    space = open_base(root, record.space.release) if record.space else None
    generation = open_generation(job.store_dir)
    own_space = SettleStep(kind="full", space_id=record.run_id, generation=generation.generation)
    if space is None or not (space.generation.has_item_vectors and generation.has_item_vectors):
        return own_space
    kinds = [(one.vector_size, one.parts, one.bias) for one in (space.generation.config, generation.config)]
    if kinds[0] != kinds[1] or space.pca_dim != pca_dim:
        return own_space
    if "alignment" not in generation.manifest:
        before, now = (open_corpus(root.corpus(name)) for name in (space.record.window_id, record.window_id))
        rotations = find_space_rotations((before, space.generation), (now, generation))
        rotation = next(iter(rotations.values()))
        figures = {"cosine": round(rotation.cosine, 4), "num_items": rotation.num_items}
        text = f"items are also in release {space.record.release}, mean cosine"
        log(on_event, f"{figures['num_items']:,} {text} {figures['cosine']:.3f}")
        if rotation.cosine < MIN_ALIGNMENT:
            return own_space.model_copy(update=figures)
        generation = align_generation(job.store_dir, rotations, {"alignment": figures}, on_event)
    aligned = {"space_id": space.record.space_id, "generation": generation.generation}
    return own_space.model_copy(update=aligned | generation.manifest["alignment"])


def _require(root: Root, base: ReleaseBefore) -> BaseRelease:
    found = open_base(root, base.release)
    if found is None:
        raise DamageError(
            f"release {base.release}, which this night continues, is no longer whole in {root.path}: run it with --full"
        )
    return found


def find_space_rotations(base: Side, new: Side) -> dict[str, Rotation]:
    """Return the rotation of each part from a new generation's space into the base's; the identity if they share no item."""
    before, now = (_read_urls(corpus, 0, ALIGN_ITEMS).with_row_index("row") for corpus, _ in (base, new))
    rows = now.join(before, on="url", how="inner", suffix="_base", maintain_order="left")
    own, other = rows["row"].to_numpy(), rows["row_base"].to_numpy()
    older, newer, config = _tables_of(base[1]), _tables_of(new[1]), new[1].config
    rotations = {}
    for part, size in config.part_sizes.items():
        pairs = [
            (read(0, len(now))[own], older[part][name](0, len(before))[other]) for name, read in newer[part].items()
        ]
        rotations[part] = find_rotation(pairs, size, max(0, size - config.num_biases[part]))
    return rotations


def begin_new_items(corpus: Corpus, base: Generation) -> dict[str, dict[str, NDArray[np.float32]]]:
    """Return first vectors of the items that the base does not have, by part and table."""
    return {
        part: {name: _begin_from_means(corpus, base.num_items, read) for name, read in tables.items()}
        for part, tables in _tables_of(base).items()
    }


def _tables_of(generation: Generation) -> dict[str, dict[str, Read]]:
    """Return how to read the item vectors of each part that are in its space: of the interest those that rank items."""

    def reader(part: str, name: str) -> Read:
        return lambda start, stop: getattr(generation.map_items(part), name).vectors[start:stop]

    tables = {part: {name: reader(part, name) for name in PER_ITEM} for part in generation.manifest["items"]}
    return tables | {"interest": {"outputs": generation.read_items}}


def _begin_from_means(corpus: Corpus, num_known: int, read: Read) -> NDArray[np.float32]:
    """Return first vectors of items after the first `num_known`, float32[k, D]: the mean of the known items in their section,
    else in their host, else zero, the usual first vector of items.

    A section is the host and the first part of the path; without a host, only the first part of the path.
    """
    new, size = _read_places(corpus, num_known, corpus.num_items), read(0, 0).shape[1]
    means = np.zeros((len(new), size), dtype=np.float32)
    for kind in ("host", "section"):  # the section comes last, as its mean replaces that of the host
        known = pl.Enum(new[kind].drop_nulls().unique(maintain_order=True))
        num_names = len(known.categories)
        sums, counts = np.zeros((num_names, size)), np.zeros(num_names)
        for start in range(0, num_known if num_names else 0, BATCH_ITEMS):
            stop = min(start + BATCH_ITEMS, num_known)
            numbers = _number(_read_places(corpus, start, stop)[kind], known)
            rows = np.flatnonzero(numbers >= 0)
            pick = csr_array((np.ones(len(rows)), (numbers[rows], rows)), shape=(num_names, len(numbers)))
            sums += pick @ read(start, stop)
            counts += pick.sum(axis=1)
        numbers = _number(new[kind], known)
        found = np.flatnonzero((numbers >= 0) & (np.append(counts, 0)[numbers] > 0))
        means[found] = sums[numbers[found]] / counts[numbers[found], None]
    return means


def _number(names: pl.Series, known: pl.Enum) -> NDArray[np.int64]:
    """Return the position of each name among the known ones, int64[n]; -1 for others."""
    return names.cast(known, strict=False).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()


def _read_places(corpus: Corpus, start: int, stop: int) -> pl.DataFrame:
    """Return section and host of items `start` to `stop`, null if there is none."""
    urls = _read_urls(corpus, start, stop)
    return urls.select(section=pl.col("url").str.extract(_SECTION), host=pl.col("url").str.extract(_HOST))


def _read_urls(corpus: Corpus, start: int, stop: int) -> pl.DataFrame:
    """Return the urls of items `start` to `stop` of a corpus, by item_ix."""
    return pl.scan_parquet(corpus.vocabulary).select("url").slice(start, max(stop - start, 0)).collect()
