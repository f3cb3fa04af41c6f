"""Roots with a release that serves, made without the flow: trained, exported, registered, pinned; and what is in them."""

from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.tasks.config import IngestConfig, PublishConfig
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.releases import current_release
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.root.records import ExportStep, IngestStep, ReportStep
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.writer import lock_store, pin_generation
from tests.roots.ingest import write_log
from tests.roots.releases import export_release, read_users, write_run_record
from tests.roots.training import MEMORY_BYTES, prepare, train_root


def make_served(
    path: Path,
    publish: PublishConfig,
    releases: tuple[str, ...] = ("r1",),
    num_users: int = 60,
    settings: IngestConfig | None = None,
    **storage: Any,
) -> Root:
    """A root whose releases, each of a training of its own (another seed), are registered; the last is the champion."""
    root, window_id = prepare(path, 4, num_users, settings)
    for day, release in enumerate(releases, start=1):
        train_root(root, window_id, seed=day)
        register(root, release, window_id, publish, day, settings, **storage)
    return root


def register(
    root: Root,
    release: str,
    window_id: str,
    publish: PublishConfig,
    day: int = 1,
    settings: IngestConfig | None = None,
    **storage: Any,
) -> None:
    """The store's generation as a release: exported, registered, pinned."""
    export = export_release(root, release, root.corpus(window_id), open_generation(root.store), **storage)
    record_release(root, release, export, window_id, publish, day, settings)
    with lock_store(root.store):
        pin_generation(root.store, release)


def record_release(
    root: Root,
    release: str,
    export: Path,
    window_id: str,
    publish: PublishConfig,
    day: int,
    settings: IngestConfig | None = None,
) -> None:
    """An export as a registered release of the night of this day of November, with the record of its run."""
    values = {"run_id": release, "created_at": f"2026-11-{day:02d}T04:00:00+00:00", "window_id": window_id}
    config = {
        "publish": publish.model_dump(mode="json"),
        "ingest": (settings or IngestConfig()).model_dump(mode="json"),
    }
    record = write_run_record(release, config=config, **values)
    registered = publish_release(root, publish, record, export)
    steps = IngestStep(digest=""), ExportStep(digest=""), registered, ReportStep(digest="")
    Run(root, release).amend(lambda _: record.replace(steps=record.steps.replace(*steps)))


def champion_vectors(root: Root, publish: PublishConfig) -> dict[str, bytes]:
    """Every user's vector in the export of the release that serves, as bytes."""
    folder = root.export(current_release(root, publish))
    assert (folder / EXPORT_MANIFEST).exists()
    return {user_id: np.ascontiguousarray(vector).tobytes() for user_id, vector in read_users(folder).items()}


def deliver(root: Root, name: str, *lines: str) -> dict[str, Any]:
    """Ingest a log of these lines; the record of it."""
    path = write_log(root.path.parent / "late" / name, *lines)
    return ingest(root, [str(path)], IngestConfig(), None, MEMORY_BYTES, 1, ignore_event)
