"""`surf2vec run --dry-run`: what a night would do, without writing into the root.

The logs are ingested and the corpus is built beside the root, in a folder that is removed at the end. There the root's files are
links. So the numbers of sources, users and pages are those of the night, at the price of these two steps. Training is planned as
the night would plan it, with this machine's present speed.
"""

import os
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from surf2vec.tasks.activity.count import NAMES
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.export.checks import estimate_bytes
from surf2vec.tasks.export.export import QUANTISE_ABOVE
from surf2vec.tasks.export.index import plan_index
from surf2vec.tasks.gate.figures import foresee, open_case
from surf2vec.tasks.ingest import rejects
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.night.runs import find_run
from surf2vec.tasks.night.summary import announce_run
from surf2vec.tasks.registry.promotion import refuse_lost_champion
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.root import records
from surf2vec.tasks.root.run import Root, Run, open_root, read_run_records
from surf2vec.tasks.training.beginning import NightRequest, plan_night
from surf2vec.tasks.training.forecast import plan_job
from surf2vec.trainer.errors import ResourceError, SurfError
from surf2vec.trainer.events import OnEvent
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.system.files import is_locked

MIRRORED = ("events", "rejects")
"""Folders of the root in which a night writes and removes files."""
LISTED = ("corpus", "runs")
"""Folders in which it only makes new folders."""
RUN_ID = "dry-run"
OTHERS = ("choose", "evaluate", "refit", "settle", "export", "gate", "register", "report")


def dry_run(night: NightContext, logs: list[str], on_event: OnEvent) -> dict[str, Any]:
    """Return what a night would do. Raises what the night would raise until its training."""
    place = night.root.path
    if is_locked(place / ".lock"):
        raise ResourceError(f"a writer is at work in {place}: wait until it has ended")
    beside = next(one for one in place.absolute().parents if one.is_dir())
    disk = beside if os.access(beside, os.W_OK) else None
    refuse_lost_champion(night.root, read_registry(night.root, night.config.publish))
    with tempfile.TemporaryDirectory(prefix=".surf2vec-dry-run-", dir=disk) as name:
        shadow = replace(night, root=make_shadow(place, Path(name) / "root"))
        known, started = read_catalog(shadow.root).entries.keys(), time.monotonic()
        try:
            work = (night.config.store.partitions, night.config.host_bytes, night.config.threads, on_event)
            ingested = ingest(shadow.root, logs, night.config.ingest, *work, days=night.days)
            ingest_seconds = time.monotonic() - started
            run, is_known = _plan(shadow, read_registry(night.root, night.config.publish).serving)
            entries = read_catalog(shadow.root).entries
            new = sorted(one["name"] for digest, one in entries.items() if digest not in known)
            result = {
                "dry_run": True,
                "sources": {"new": new, "known": len(known)},
                **{name: ingested[name] for name in ("lines", "events")},
                "rejected": ingested["num_rejected"],
            }
            if is_known:
                message = announce_run(run.record()).removesuffix("; its results follow")
                return result | {"kind": "none", "message": message}
            return result | _foresee(shadow, run, ingest_seconds, on_event)
        except SurfError as error:  # in words of the root, and not of the folder that is gone then
            text = str(error).replace(rejects.LISTED.format(shadow.root.rejects / rejects.FAILED), "")
            raise type(error)(text.replace(str(shadow.root.path), str(place))) from None


def make_shadow(place: Path, shadow: Path) -> Root:
    """Return a new root in the folder `shadow` with links to the files of the root at `place`, which may not exist yet."""
    made = open_root(shadow)
    for path in place.iterdir() if place.exists() else ():
        linked = [path]
        if path.name in MIRRORED:
            linked = [file for file in path.rglob("*") if file.is_file()]
        elif path.name in LISTED:
            linked = list(path.iterdir())
        elif path.name.startswith("."):  # locks, scratch folders
            continue
        for one in linked:
            target = shadow / one.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(one.absolute())
    return made


def _plan(night: NightContext, champion: str | None) -> tuple[Run, bool]:
    """Return the run of the night, planned, and whether the same night was made already."""
    inputs, digest = night.request()
    found = find_run(night.root, digest)
    if found and (found.record().steps.report or found.record().steps.unchanged):
        return found, True
    asked = NightRequest(night.config.train, night.config.nightly, inputs, night.is_full)
    plan = plan_night(night.root, champion, asked, digest)
    run = Run(night.root, RUN_ID)  # of no run that the root has: its folder is not a link
    window_id = night.corpus_request(plan).name(night.root)
    run.update(created_at=datetime.now(UTC).isoformat(timespec="seconds"), window_id=window_id, **dict(plan))
    return run, False


def _foresee(night: NightContext, run: Run, ingest_seconds: float, on_event: OnEvent) -> dict[str, Any]:
    """Build the corpus and return what follows: the kind of night, its numbers, its costs and the gate."""
    config, started = night.config, time.monotonic()
    work = (config.host_bytes, config.threads, on_event)
    corpus = records.CorpusStep(**build_corpus(night.root, night.corpus_request(run.record()), *work))
    seconds = {"ingest": ingest_seconds, "corpus": time.monotonic() - started}
    run.record_steps(corpus, records.ExportStep(num_users=corpus.num_users, num_items=corpus.num_items))
    record = run.record()
    before = Run(night.root, record.champion).record().steps.export if record.champion else records.ExportStep()
    changed = corpus.num_users if corpus.num_changed is None else corpus.num_changed
    result = {
        "kind": "incremental" if record.base else "full",
        "message": announce_run(record.replace(steps=records.Steps())).removeprefix(f"run {RUN_ID} "),
        "full_because": record.full_because,
        "champion": record.champion,
        "users": corpus.num_users, "items": corpus.num_items, "tokens": corpus.num_tokens,
        "users_before": before.num_users, "items_before": before.num_items,
        "changed_users": changed, "new_users": corpus.num_new_users, "users_left": corpus.num_left,
        "new_items": corpus.num_new_items,
    }  # fmt: skip
    if not changed:
        message = f"no changes since release {record.champion}; it stays champion"
        return result | {"kind": "none", "message": message}
    window = night.corpus_request(records.NightPlan()).select_window(night.root)
    gate = foresee(open_case(run, config.gate, record.champion, {}, window))
    return result | {"predicted": _predict(night, record, seconds, on_event), "gate": gate}


def _predict(
    night: NightContext, record: records.RunRecord, seconds: dict[str, float], on_event: OnEvent
) -> dict[str, Any]:
    """Return seconds of each step, and bytes. `others`: of the newest night of the same kind; null if there was none."""
    job, corpus = night.job(record), open_corpus(night.root.corpus(record.window_id))
    plan = plan_job(job, night.root.path, on_event)
    kind = "incremental" if record.base else "full"
    same = [one for one in read_run_records(night.root) if one.steps.report and one.steps.settle.kind == kind]
    newest = max(same, key=lambda one: one.created_at, default=None)
    ended = newest.steps.ended() if newest else {}
    others = sum(ended[name].seconds or 0.0 for name in OTHERS if name in ended) if newest else None
    all_seconds = {**seconds, "train": plan.seconds, "others": others}
    export = night.config.export
    size = export.pca_dim or job.config.vector_size
    num_users, num_items = int(corpus.manifest["num_users"]), corpus.num_items
    index = plan_index(num_users, size, night.config.host_bytes, QUANTISE_ABOVE)
    num_columns, num_parts = size + export.activity * len(NAMES), 1 + bool(job.config.trail_size)
    export_bytes = estimate_bytes(num_users, num_items, num_columns, export.dtype, num_parts) + index.index_bytes
    return {
        "seconds": {name: None if value is None else round(value, 6) for name, value in all_seconds.items()},
        "peak_bytes": plan.peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "disk_bytes": {
            "corpus": record.require(records.CorpusStep).bytes,
            "store": plan.disk_bytes,
            "export": export_bytes,
        },
        "reasons": list(plan.reasons),
    }
