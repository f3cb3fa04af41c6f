"""The context that is passed to every step of a night."""

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from surf2vec.tasks.corpus.window import Base, CorpusRequest
from surf2vec.tasks.ingest.sql_logs import Days, choose_days
from surf2vec.tasks.night.config import PipelineConfig
from surf2vec.tasks.night.reporter import TERMINAL, Reporter
from surf2vec.tasks.root.identity import registry_uri
from surf2vec.tasks.root.memory import NIGHT_BYTES
from surf2vec.tasks.root.records import NightPlan, RunRecord
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.tasks.training.beginning import night_schedule
from surf2vec.tasks.training.worker_processes import pick_device
from surf2vec.trainer.store.tokens import CHANGED, open_corpus
from surf2vec.trainer.system.files import digest_json
from surf2vec.trainer.training.job import Job, choose_parts


@dataclass(frozen=True)
class NightContext:
    """The context of every step of a night: the root, the requested window, the settings, and who reports."""

    root: Root
    since: date | None
    until: date | None
    config: PipelineConfig
    is_full: bool = False
    reporter: Reporter = TERMINAL

    @property
    def days(self) -> Days:
        """The days that logs which are queries are asked for."""
        return choose_days(self.since, self.until, self.config.window_days)

    def job(self, record: RunRecord) -> Job:
        """Return the training of a run: of all users, or of those who changed since its base release."""
        device = pick_device(self.config.train, self.config.resources)
        corpus_dir = self.root.corpus(record.window_id)
        config = choose_parts(self.config.train, open_corpus(corpus_dir))
        config = replace(config, popularity=record.popularity)
        return Job(
            corpus_dir / CHANGED if record.base else corpus_dir, self.root.store, config, self.config.host_bytes,
            device.kernel, device.memory_bytes, process_bytes=NIGHT_BYTES, start=record.start,
            schedule=night_schedule(config) if record.base else None,
        )  # fmt: skip

    def request(self) -> tuple[dict[str, Any], str]:
        """Return the inputs of the night, and a digest of the request, which is the same for the same sources and settings."""
        request = self.corpus_request(NightPlan())
        inputs = request.inputs(request.select_window(self.root))
        return inputs, digest_json(
            {"inputs": inputs, "settings": self.config.outcome_settings(), "full": self.is_full}
        )[:16]

    def corpus_request(self, record: NightPlan) -> CorpusRequest:
        """Return the request for a run's corpus, with its base. A full night also keeps the retained users without events."""
        config, base = self.config, None
        if record.base:
            base = Base(record.base.window_id, config.nightly.retain_days)
        elif record.retained:
            base = Base(record.retained, config.nightly.retain_days, is_full=True)
        return CorpusRequest(config.ingest, config.evaluate, self.since, self.until, config.window_days, base)


def open_night(
    root: Path,
    since: date | None,
    until: date | None,
    config: PipelineConfig,
    is_full: bool = False,
    reporter: Reporter = TERMINAL,
) -> NightContext:
    """Return the context of a night. Creates the root if it is missing; with Ray its path is made absolute."""
    opened = open_root(root.resolve() if config.resources.ray_address else root)
    registry_uri(opened, config.publish)  # raises for another registry than the root's, before anything is read
    return NightContext(opened, since, until, config, is_full, reporter)
