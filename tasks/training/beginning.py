"""What makes a night of a run: whether it builds on the champion, what its training begins from, what becomes of its vectors.

A run keeps what it began with in its story (`NightPlan` in tasks/root/story.py).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.config import NightlyConfig
from tasks.corpus.window import list_differences
from tasks.evaluation.comparison import match_items, match_unchanged
from tasks.export.export import EXPORT_MANIFEST
from tasks.root.run import Root, Run, read_stories
from tasks.root.story import CorpusStep, EvaluateStep, ExportStep, NightPlan, RegisterStep, ReleaseBefore, Story
from tasks.training.base_release import BaseRelease, NightRequest, open_base, why_full
from tasks.training.space import begin_new_items, find_space_rotation
from trainer.config import TrainConfig
from trainer.errors import DamageError
from trainer.events import OnEvent, ignore_event
from trainer.model.rows import Rows
from trainer.store.align import align_generation
from trainer.store.generation import Generation, has_generation, is_outdated, open_generation
from trainer.store.tokens import Corpus, open_corpus, whole_window
from trainer.system.fan_out import FanOut
from trainer.system.files import digest_json, read_json
from trainer.training.infer import Begin, refit_held_out
from trainer.training.job import Job, Schedule
from trainer.training.next_night import Beginning, Known, begin_full, begin_night, fold_night, why_not

DECAY = 0.9
"""Share of the items' Adagrad sums that a night goes on with: below 1, so that hot items still move."""
MIN_ALIGNMENT = 0.5
"""Mean cosine of the items with the champion's below which a full night begins a space of its own."""


def name_asked(inputs: dict[str, Any], settings: dict[str, Any], is_full: bool) -> str:
    """What is asked of a night, whatever it builds on: the same command on the same sources has the same name."""
    return digest_json({"inputs": inputs, "settings": settings, "full": is_full})[:16]


def night_schedule(config: TrainConfig, nightly: NightlyConfig) -> Schedule:
    """The passes of an incremental night: few and gentle, for all items and most users are where they should be."""
    return Schedule(nightly.epochs, config.alpha / 5, min(config.min_alpha, config.alpha / 50))


def find_run(root: Root, asked: str) -> Run | None:
    """The newest run of which the same was asked, unless it had begun on a release that is not in the root any more."""
    same = [story for story in read_stories(root) if story.asked == asked]
    for story in sorted(same, key=lambda story: story.created_at, reverse=True):
        is_done = story.steps.report or story.steps.unchanged
        if is_done or story.base is None or open_base(root, story.base.release):
            return Run(root, story.run_id)
    return None


def reopen_gone(run: Run) -> None:
    """Let the steps of a run be done again whose results are gone: a person removed what was damaged."""
    root, story = run.root, run.story()
    steps, before = story.steps, story.base.window_id if story.base else story.retained
    has_export = (root.export(run.run_id) / EXPORT_MANIFEST).exists()
    is_kept, is_done = (
        (root.store / "pinned" / f"{run.run_id}.json").exists(),
        steps.registered is not None and has_export,
    )
    if steps.train and not (is_done or is_kept or _is_current(root, story.window_id)):
        run.forget_steps()
    elif steps.export and not has_export:
        run.reopen(ExportStep)
        run.reopen(RegisterStep)
    if (is_kept or not is_done) and _must_be_built(root, story.window_id, before):
        run.reopen(CorpusStep)


def _is_current(root: Root, window_id: str) -> bool:
    """Whether the store's generation is one of this corpus."""
    if not has_generation(root.store) or is_outdated(root.store):
        return False
    return whole_window(open_generation(root.store).manifest["window_id"]) == window_id


def _must_be_built(root: Root, window_id: str, before: str | None) -> bool:
    """Whether a corpus is gone, and the one before it, which it goes on from, is there."""
    has = {name: (root.corpus(name) / "manifest.json").exists() for name in (window_id, before) if name}
    return not has[window_id] and has.get(before or "", True)


def plan_night(root: Root, champion: str | None, asked: NightRequest, name: str) -> NightPlan:
    """Whether a new night goes on from the champion, the release that serves, and why not."""
    space = open_base(root, champion) if champion else None
    corpus = read_json(root.corpus(space.window_id) / "manifest.json") if space else {}
    reason = why_full(asked, space, corpus)
    base = space if reason is None else None
    full_until = base.full_until if base else asked.inputs["days"][1]
    start = _tell_start(asked, base, space)
    may_retain = start and not base and not list_differences(corpus.get("made_from", {}), asked.inputs)
    return NightPlan(
        asked=name, champion=champion, base=base.as_told if base else None, space=space.as_told if space else None,
        full_because=reason, full_until=full_until, start=start,
        retained=space.window_id if space and may_retain else None,
    )  # fmt: skip


def begin_training(root: Root, job: Job, story: Story, nightly: NightlyConfig, on_event: OnEvent) -> None:
    """Put the generation into the store that the night's training goes on from, unless it is there already."""
    corpus = open_corpus(job.corpus_dir)
    if story.base:
        base = _require(root, story.base)
        new_items = begin_new_items(open_corpus(root.corpus(story.window_id)), base.generation)
        begin_night(job, corpus, Beginning(base.generation, new_items, DECAY), on_event)
    elif job.start and story.space:
        begin_full(job, corpus, _know(root, corpus, _require(root, story.space)), on_event)


def refit(root: Root, job: Job, story: Story, on_event: OnEvent, fan_out: FanOut) -> dict[str, Any]:
    """Commit a generation whose held-out users are fitted on all they did, now that they are evaluated; the story's "refit"."""
    corpus, evaluated = open_corpus(job.corpus_dir), story.require(EvaluateStep)
    told = {"evaluation": evaluated.model_dump(exclude={"digest", "seconds"}, exclude_unset=True)}
    generation = refit_held_out(job, corpus, told, on_event, find_beginning(root, job, story), fan_out)
    return {"generation": generation.generation, "num_users": corpus.manifest["num_held_out"]}


def find_beginning(root: Root, job: Job, story: Story) -> Begin | None:
    """What held-out users of a full night begin from once they are no secret any more, as its other users did."""
    space = open_base(root, story.space.release) if job.start and story.space and not story.base else None
    return HeldOutBeginning(root, job, space) if space else None


@dataclass(frozen=True)
class HeldOutBeginning:
    """What held-out users of a full night begin from: what its other users did. What the champion has is read when asked."""

    root: Root
    job: Job
    space: BaseRelease

    def __call__(self, partition: int, rows: NDArray[np.int64]) -> Rows:
        known, hashes = self._known, self._corpus.read(partition).hashes[rows]
        return known.begin(self.job.config, partition, hashes, known.users(partition)[rows])

    @cached_property
    def _corpus(self) -> Corpus:
        return open_corpus(self.job.corpus_dir)

    @cached_property
    def _known(self) -> Known:
        return _know(self.root, self._corpus, self.space)


def _know(root: Root, corpus: Corpus, space: BaseRelease) -> Known:
    """What a full night has from the champion: its items, and users who have the same tokens."""
    theirs = open_corpus(root.corpus(space.window_id))
    to_theirs, _ = match_items(corpus.vocabulary, theirs.vocabulary)

    def match(partition: int) -> NDArray[np.int64]:
        if theirs.num_partitions != corpus.num_partitions:
            return np.full(int(corpus.users[partition]), -1)
        return match_unchanged(corpus, theirs, partition, to_theirs)

    return Known(space.generation, to_theirs, match)


def _tell_start(asked: NightRequest, base: BaseRelease | None, space: BaseRelease | None) -> str:
    """What a night's training begins from, in words that tell it from others (`Job.start`); empty: from nothing."""
    if base:
        return f"after release {base.release}, decay {DECAY:g}, epochs {asked.nightly.epochs}"
    if space is None or not asked.nightly.full_from_champion or asked.config.items_from:
        return ""
    return "" if why_not(asked.config, space.generation) else f"vectors of release {space.release}"


def settle(
    root: Root, job: Job, story: Story, nightly: NightlyConfig, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """Make the store's generation that of all users, in a space that has a name; the story's "settle".

    An incremental night is folded into its base and shares its space. A full one is turned into the champion's; where too
    little of it can be laid upon the champion's items, it begins a space of its own.
    """
    window_id, run_id = story.window_id, story.run_id
    if story.base:
        base = _require(root, story.base)
        changed = open_corpus(job.corpus_dir)
        folded = fold_night(job, changed, base.generation, {"window_id": window_id}, on_event)
        return {"kind": "incremental", "space_id": base.space_id, "generation": folded.generation}
    space = open_base(root, story.space.release) if story.space else None
    generation = open_generation(job.store_dir)
    own_space = {"kind": "full", "space_id": run_id, "generation": generation.generation}
    if space is None or not _can_align(generation, space.generation):
        return own_space
    if "alignment" not in generation.manifest:
        base_corpus = open_corpus(root.corpus(space.window_id))
        pair = open_corpus(root.corpus(window_id)), generation
        rotation = find_space_rotation((base_corpus, space.generation), pair)
        told = {"cosine": round(rotation.cosine, 4), "num_items": rotation.num_items}
        found = f"{told['num_items']:,} items of release {space.release} found again, mean cosine {told['cosine']:.3f}"
        on_event("log", {"message": found})
        if rotation.cosine < MIN_ALIGNMENT:
            return own_space | told
        generation = align_generation(job.store_dir, rotation, {"alignment": told}, on_event)
    aligned = {"space_id": space.space_id, "generation": generation.generation}
    return own_space | aligned | generation.manifest["alignment"]


def _can_align(generation: Generation, space: Generation) -> bool:
    both_have_items = space.has_item_vectors and generation.has_item_vectors
    return both_have_items and (space.vector_size, space.bias) == (generation.vector_size, generation.bias)


def _require(root: Root, base: ReleaseBefore) -> BaseRelease:
    found = open_base(root, base.release)
    if found is None:
        raise DamageError(
            f"release {base.release}, which this night goes on from, is no longer whole in {root.path}: run it with --full"
        )
    return found
