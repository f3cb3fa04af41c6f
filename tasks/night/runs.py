"""The runs of a root: which one is the same night, and whether all that it made is still there.

Imports nothing slow: `surf2vec run` with nothing to do needs only this.
"""

from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.root.records import CorpusStep, ExportStep, RegisterStep, Step, TrainStep
from surf2vec.tasks.root.run import Root, Run, current_generation, read_run_records
from surf2vec.tasks.training.base import open_base
from surf2vec.trainer.store.tokens import whole_window


def find_run(root: Root, digest: str) -> Run | None:
    """Return the newest run of a request (`NightContext.request`), except unfinished ones whose base is no longer in the root."""
    same = [record for record in read_run_records(root) if record.request == digest]
    for record in sorted(same, key=lambda record: record.created_at, reverse=True):
        is_done = record.steps.report or record.steps.unchanged
        if is_done or record.base is None or open_base(root, record.base.release):
            return Run(root, record.run_id)
    return None


def list_gone(run: Run) -> list[type[Step]]:
    """Return the steps of a run whose results are gone, for example as a person removed damaged files. TrainStep: all are."""
    root, record = run.root, run.record()
    steps, before = record.steps, record.base.window_id if record.base else record.retained
    has_export = (root.export(run.run_id) / EXPORT_MANIFEST).exists()
    is_kept = (root.store / "pinned" / f"{run.run_id}.json").exists()
    is_done = bool(steps.registered) and has_export
    gone: list[type[Step]] = []
    if steps.train and not (is_done or is_kept or _is_current(root, record.window_id)):
        gone = [TrainStep]
    elif steps.export and not has_export:
        gone = [ExportStep, RegisterStep]
    is_gone = not (root.corpus(record.window_id) / CORPUS_MANIFEST).exists()
    can_be_built = before is None or (root.corpus(before) / CORPUS_MANIFEST).exists()
    if (is_kept or not is_done) and is_gone and can_be_built:
        gone.append(CorpusStep)
    return gone


def _is_current(root: Root, window_id: str) -> bool:
    generation = current_generation(root)
    return generation is not None and whole_window(generation.manifest["window_id"]) == window_id
