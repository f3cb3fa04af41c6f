"""A release held still for as long as a call works with it, whatever a run publishes or removes meanwhile.

Its files get second names in a folder of the call under .tmp/ of the root, which the call is alone to use and to remove: no
lock of the root is taken. A call that was killed leaves its folder to the next one.
"""

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.export.export import EXPORT_MANIFEST, path_of
from tasks.export.reduction import read_projection
from tasks.root.run import Root
from trainer.config import TrainConfig
from trainer.errors import DamageError, InputError
from trainer.events import OnEvent
from trainer.store.generation import Generation
from trainer.store.manifests import FORMAT_VERSION, STORE_MANIFEST
from trainer.store.tokens import COUNTS, open_corpus, whole_window
from trainer.system.files import read_json
from trainer.training.infer import FrozenItems, freeze_items


@dataclass(frozen=True)
class Release:
    """What inference needs of a release: `items`, its item table, read once; `projection` float32 (D, k), if it is reduced.

    counts: the file of what training saw of each item, int64[V].
    """

    name: str
    generation: Generation
    vocabulary: Path
    counts: Path
    items: FrozenItems
    projection: NDArray[np.float32] | None

    @property
    def vector_size(self) -> int:
        """Numbers of a vector in the release."""
        return self.generation.vector_size if self.projection is None else self.projection.shape[1]


def _follow_training(release: str, trained: TrainConfig, asked: TrainConfig, on_event: OnEvent) -> TrainConfig:
    """The settings that the release was trained with, on the call's threads; says which of the call's do not count."""
    followed = dataclasses.replace(trained, threads=asked.threads, commit_seconds=asked.commit_seconds)
    for field in dataclasses.fields(TrainConfig):
        wanted, used = getattr(asked, field.name), getattr(followed, field.name)
        if wanted not in (used, field.default):
            on_event("log", {"message": f"train.{field.name} is {used}, as in release {release}, not {wanted}"})
    return followed


def open_release(root: Root, release: str, folder: Path, asked: TrainConfig, on_event: OnEvent) -> Release:
    """Hold the files of the release in `folder`. Raises InputError without an export, DamageError when it is not whole."""
    path = root.export(release) / EXPORT_MANIFEST
    if not path.exists():
        raise InputError(f"there is no export in {path.parent}: run `surf2vec run` first")
    export = read_json(path)
    number, window_id = export["generation"], export["created_from"]["window_id"]
    # It is pinned, unless its run was killed between registering and pinning: then it is still the current one.
    paths = (root.store / "pinned" / f"{release}.json", root.store / STORE_MANIFEST)
    manifests = [read_json(path) for path in paths if path.exists()]
    names = [(one.get("generation"), whole_window(one.get("window_id", ""))) for one in manifests]
    manifest = manifests[names.index((number, window_id))] if (number, window_id) in names else None
    if manifest is None:
        raise DamageError(
            f"{root.store} has not the generation of release {release}: if a run has just published another, give the same "
            "command again; if not, train again with `surf2vec run`"
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DamageError(f"release {release} was trained by an earlier version: train again with `surf2vec run`")
    entries = manifest["users"].values()
    users = {part["file"] for entry in entries for part in (entry, entry.get("delta", entry))}
    for name in Generation(root.store, manifest).files():
        if name not in users:
            _hold(root.store / name, folder)
    corpus = open_corpus(root.corpus(window_id))
    vocabulary = _hold(corpus.vocabulary, folder)
    projection = None
    if "projection" in export:
        held = _hold(path_of(path.parent, export, export["projection"]["file"]), folder)
        projection = read_projection(held)
    counts = corpus.count_training_tokens()
    np.save(folder / COUNTS, counts, allow_pickle=False)
    generation = Generation(folder, manifest)
    config = _follow_training(release, generation.config, asked, on_event)
    return Release(
        name=release,
        generation=generation,
        vocabulary=vocabulary,
        counts=folder / COUNTS,
        items=freeze_items(generation, counts, config.threads),
        projection=projection,
    )


def _hold(path: Path, folder: Path) -> Path:
    """A second name of a file in `folder`, or a copy where the file system has no links."""
    held = folder / path.name
    try:
        os.link(path, held)
    except FileNotFoundError:
        raise DamageError(f"{path} is missing: run `surf2vec doctor`") from None
    except OSError:
        shutil.copyfile(path, held)
    return held
