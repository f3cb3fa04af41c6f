"""What every step of a night knows, and the run that the night is: one that was begun before, or a new one."""

import os
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from flows.config import PipelineConfig
from tasks.corpus.window import Base, CorpusRequest
from tasks.registry.promotion import find_champion
from tasks.root.identity import registry_uri
from tasks.root.run import Root, Run, open_root
from tasks.root.story import NightPlan, Story
from tasks.training.base_release import NightRequest
from tasks.training.beginning import find_run, name_asked, night_schedule, plan_night, reopen_gone
from tasks.training.devices import pick_device
from tasks.upkeep.restore import restore_story
from trainer.events import OnEvent, ignore_event
from trainer.store.tokens import CHANGED
from trainer.system.files import digest_json
from trainer.system.units import parse_bytes
from trainer.training.job import Job


@dataclass(frozen=True)
class Night:
    """What every step of a night knows: the root, the window asked for, and the configuration."""

    root: Root
    since: date | None
    until: date | None
    config: PipelineConfig
    is_full: bool = False

    @property
    def threads(self) -> int:
        return self.config.train.threads or os.cpu_count() or 1

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.config.resources.host_memory)

    def job(self, story: Story) -> Job:
        """The training of a run: of all its users, or of those who changed since the release that it goes on from."""
        device = pick_device(self.config.train, self.config.resources)
        corpus_dir = self.root.corpus(story.window_id)
        return Job(
            corpus_dir / CHANGED if story.base else corpus_dir, self.root.store, self.config.train, self.memory_bytes,
            device.kernel, device.memory_bytes, start=story.start,
            schedule=night_schedule(self.config.train, self.config.nightly) if story.base else None,
        )  # fmt: skip

    def corpus_request(self, story: NightPlan) -> CorpusRequest:
        """What the corpus of a run is made of, and what it goes on from; a full night's takes over who stays without events."""
        config, base = self.config, None
        if story.base:
            base = Base(story.base.window_id, config.nightly.retain_days)
        elif story.retained:
            base = Base(story.retained, config.nightly.retain_days, is_full=True)
        return CorpusRequest(config.ingest, config.evaluate, self.since, self.until, config.window_days, base)


def open_night(
    root: Path, since: date | None, until: date | None, config: PipelineConfig, is_full: bool = False
) -> Night:
    """The night of a root, which is made when missing; a root that other machines are to see is named whole."""
    path = root.resolve() if config.resources.ray_address else root
    night = Night(open_root(path), since, until, config, is_full)
    registry_uri(night.root, config.publish)  # refuses another registry than the root's, before anything is read
    return night


def find_or_plan(night: Night, logs: list[str], on_event: OnEvent = ignore_event) -> Run:
    """Return the run that the same command began before, or a new one, planned by what serves now.

    A run that has not trained yet, and began when another release served, is planned anew. Where the story of the release that
    serves is gone, it is brought back from the registry first.
    """
    config, root = night.config, night.root
    request = night.corpus_request(NightPlan())
    inputs = request.inputs(request.select_window(root))
    settings = config.outcome_settings()
    asked = name_asked(inputs, settings, night.is_full)
    found = find_run(root, asked)
    if found:
        reopen_gone(found)
        if found.story().steps.train:
            return found
    champion = find_champion(root, config.publish)
    if champion and restore_story(root, config.publish, champion, on_event) and not found:
        found = find_run(root, asked)
    if found and champion in (found.story().champion, found.run_id):
        return found
    plan = plan_night(root, champion, NightRequest(config.train, config.nightly, inputs, night.is_full), asked)
    window_id = night.corpus_request(plan).name(root)
    made_of = {"window_id": window_id, "config": settings} | ({"full": True} if night.is_full else {})
    run = Run(root, digest_json(made_of)[:12])
    if not run.story().steps.train:
        run.record(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=f"surf2vec run {' '.join(f'--logs {log}' for log in logs)}".strip(),
            window_id=window_id,
            config=config.model_dump(mode="json"),
            **dict(plan),
        )
    return run
