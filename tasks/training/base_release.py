"""What a night builds on: the champion, never a release that was held back; or nothing, and why.

The champion's corpus and generation stay in the root as long as it serves (`surf2vec gc` sees to that). Where they are not
there, or a training could not go on from them, the night is a full one: everything is trained anew.
"""

import dataclasses
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tasks.config import NightlyConfig
from tasks.corpus.window import list_differences
from tasks.root.run import Root, Run
from tasks.root.story import ReleaseBefore
from trainer.config import TrainConfig
from trainer.errors import DamageError
from trainer.store.generation import Generation
from trainer.store.writer import find_pinned
from trainer.system.files import read_json
from trainer.training.job import RESULT_NEUTRAL
from trainer.training.next_night import why_not


@dataclass(frozen=True)
class BaseRelease:
    """A release with its corpus and its generation. full_until: the last day of the window of the last full night."""

    release: str
    window_id: str
    space_id: str
    full_until: str | None
    generation: Generation
    export_dir: Path

    @property
    def as_told(self) -> ReleaseBefore:
        """As a run's story has it."""
        return ReleaseBefore(
            release=self.release, window_id=self.window_id, space_id=self.space_id, full_until=self.full_until
        )


@dataclass(frozen=True)
class NightRequest:
    """What is asked of a night, to be held against a base. inputs: what its corpus would be made of (tasks/corpus/window.py)."""

    config: TrainConfig
    nightly: NightlyConfig
    inputs: dict[str, Any]
    is_full: bool


def open_base(root: Root, release: str) -> BaseRelease | None:
    """The release with all that a night needs of it; None where not all of it is in the root any more."""
    try:
        generation = find_pinned(root.store, release)
        if generation is None:
            return None
        window_id = generation.manifest["window_id"]
        export = read_json(root.export(release) / "manifest.json")
        if not (root.corpus(window_id) / "manifest.json").exists():
            return None
    except DamageError:
        return None
    full_until = Run(root, release).story().full_until
    return BaseRelease(release, window_id, export["space_id"], full_until, generation, root.export(release))


def why_full(asked: NightRequest, base: BaseRelease | None, corpus: dict[str, Any]) -> str | None:
    """Why a night has to train everything anew; None where it can build on the base, whose corpus has this manifest."""
    if asked.is_full:
        return "it was asked for with --full"
    if base is None:
        return "there is no champion whose corpus and vectors are in this root"
    made_from = corpus.get("made_from", {})
    changed = list_differences(made_from, asked.inputs)
    changed += ["max_users"] if made_from.get("max_users") != asked.inputs["max_users"] else []
    changed += [f"train.{name}" for name in _changed_settings(base.generation.config, asked.config)]
    if changed:
        return f"other than for release {base.release}: {', '.join(changed)}"
    if reason := why_not(asked.config, base.generation):
        return reason
    until, before = asked.inputs["days"][1], made_from["days"][1]
    if until and before and until < before:
        return f"its window ends on {until}, before that of release {base.release}, which ends on {before}"
    days = asked.nightly.full_every_days
    if until and base.full_until and (date.fromisoformat(until) - date.fromisoformat(base.full_until)).days >= days:
        return f"the last full night was that of {base.full_until}, and nightly.full_every_days is {days}"
    return None


def _changed_settings(before: TrainConfig, asked: TrainConfig) -> list[str]:
    """The settings of training that say what is learned and are not what they were."""
    then, now = dataclasses.asdict(before), dataclasses.asdict(asked)
    return [name for name in now if name not in RESULT_NEUTRAL and then.get(name) != now[name]]
