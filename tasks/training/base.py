"""The release that a night builds on: its record, and the generation that it was exported from."""

from dataclasses import dataclass

from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.root.records import ReleaseBefore
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.writer import find_pinned
from surf2vec.trainer.system.files import read_json


@dataclass(frozen=True)
class BaseRelease:
    """The record of a release in a record, its generation, and the dimensions of its projection, if it has one."""

    record: ReleaseBefore
    generation: Generation
    pca_dim: int | None = None


def open_base(root: Root, release: str) -> BaseRelease | None:
    """Open a release that a night is to build on; return None if the root no longer has all of it."""
    try:
        generation = find_pinned(root.store, release)
        export = read_json(root.export(release) / EXPORT_MANIFEST)
    except DamageError:
        return None
    window_id = generation.manifest["window_id"] if generation else ""
    if generation is None or not (root.corpus(window_id) / CORPUS_MANIFEST).exists():
        return None
    full_until = Run(root, release).record().full_until
    record = ReleaseBefore(release=release, window_id=window_id, space_id=export["space_id"], full_until=full_until)
    return BaseRelease(record, generation, export.get("storage", {}).get("pca_dim"))
