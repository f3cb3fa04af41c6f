"""What a release carries beyond its export, so that a lost root can be made again and its next night goes on from it.

    state/manifest.json     the other files with bytes and sha256; the manifests of the generation and of the corpus; the story
    state/store/            the files of the generation as they are: vectors with optimizer state, items with theirs
    state/corpus/           vocabulary, users of each micro-partition in row order, and how often training saw each item

No tokens: what users read stays in the root. The next night of a root that was made again therefore trains all users that
have events in its window, from the vectors they had. On the root's disk all are second names of the store's and corpus's files;
a copy in the registry is about as large again as the export's.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.corpus.folder import CORPUS_MANIFEST, partition_name
from tasks.export.export import EXPORT_MANIFEST
from tasks.ingest.sources import read_catalog
from tasks.registry.tracking import Content
from tasks.root.credentials import mask_values
from tasks.root.identity import read_root_id
from tasks.root.run import Root, open_scratch_folder
from tasks.root.story import Story
from trainer.store.generation import Generation
from trainer.store.images import verify_image
from trainer.store.manifests import STORE_MANIFEST, is_of_earlier_version, read_manifest, tell_way_out
from trainer.store.tokens import COUNTS, VOCABULARY, open_corpus
from trainer.system.files import describe_file, digest_file, link_file, read_json, sync_file, write_json

FOLDER = "state"
TAG_SHA256, TAG_PATH = "state_sha256", "state_path"
_SCRATCH = "publish."
STATE_MANIFEST = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class State:
    """A state ready to be registered: its folder, the sha256 of its manifest, its bytes; or none."""

    folder: Path | None = None
    digest: str = ""
    bytes: int = 0
    is_copy: bool = True

    def join(self, content: Content) -> Content:
        """The content of a model with the state: a copy of it in the model, or the tag by which it is known in the export."""
        if self.folder is None:
            return content
        tags = content.tags | {TAG_SHA256: self.digest, TAG_PATH: f"artifacts/{FOLDER}" if self.is_copy else FOLDER}
        artifacts = content.artifacts | ({FOLDER: self.folder} if self.is_copy else {})
        return Content(artifacts, content.config, tags)


@contextmanager
def open_state(root: Root, export_dir: Path, story: Story, is_copy: bool, is_wanted: bool) -> Iterator[State]:
    """Yield the state of a release: for a copy in a folder that goes at the end, by reference in the export's own folder."""
    export = read_json(export_dir / EXPORT_MANIFEST)
    with open_scratch_folder(root, f"{_SCRATCH}{os.getpid()}") if is_copy else nullcontext(export_dir) as place:
        folder = place / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        digest = gather_state(root, export, story, folder) if is_wanted else None
        if digest is None:
            yield State()
        else:
            files = read_json(folder / STATE_MANIFEST)["files"].values()
            yield State(folder, digest, 0 if not is_copy else sum(about["bytes"] for about in files), is_copy)


def find_generation(root: Root, export: dict[str, Any]) -> Generation | None:
    """The generation that an export was made of: pinned, unless its run was killed before it did so; None where it is gone."""
    made = (export["generation"], export["created_from"]["window_id"])
    for path in (root.store / "pinned" / f"{export['release']}.json", root.store / STORE_MANIFEST):
        if path.exists() and not is_of_earlier_version(read_json(path)):
            generation = Generation(root.store, read_manifest(path))
            if (generation.generation, generation.manifest["window_id"]) == made:
                return generation
    return None


def gather_state(root: Root, export: dict[str, Any], story: Story, folder: Path) -> str | None:
    """Write the state of a release into `folder`, which is empty; returns the sha256 of its manifest.

    None where the root has not the release's generation, or its corpus: then there is no state to carry. Raises DamageError when
    a file cannot be read.
    """
    generation = find_generation(root, export)
    corpus_dir = root.corpus(export["created_from"]["window_id"])
    if generation is None or not (corpus_dir / CORPUS_MANIFEST).exists():
        return None
    corpus = open_corpus(corpus_dir)
    for name, about in generation.files().items():
        with tell_way_out(generation.folder):
            verify_image(generation.folder / name, about)
        link_file(generation.folder / name, folder / "store" / name)
    names = [VOCABULARY, *(f"{partition_name(partition)}.users.parquet" for partition in range(corpus.num_partitions))]
    for name in names:
        link_file(corpus.path(name), folder / "corpus" / name)
    counts = folder / "corpus" / COUNTS
    np.save(counts, corpus.count_training_tokens(), allow_pickle=False)
    sync_file(counts)
    catalog = read_catalog(root)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {
        "format_version": FORMAT_VERSION,
        "release": export["release"],
        "files": {str(path.relative_to(folder)): describe_file(path) for path in files},
        "generation": generation.manifest,
        "corpus": {name: value for name, value in corpus.manifest.items() if name != "files"},
        "sources": {"rules": catalog.rules, "user_key_fingerprint": catalog.user_key_fingerprint},
        "story": mask_values(story.to_json()),
        "root_id": read_root_id(root),
    }
    write_json(folder / STATE_MANIFEST, manifest)
    return digest_file(folder / STATE_MANIFEST)
