"""Writes the state of a release: what a release has beyond its export, so that a lost root can be restored and trained on.

    state/manifest.json     the other files with bytes and sha256; the manifests of the generation and of the corpus; the record
    state/store/            the files of the generation, unchanged: vectors of users and items with optimizer state
    state/corpus/           vocabulary, users of each micro-partition in row order and their activity, and how often training saw
                            each item

The state has no tokens: what users read stays in the root. So the next night of a restored root trains all users with events in
its window, from their old vectors. On the root's disk the files are hard links to those of store and corpus. A copy in the
registry is about as large as the export.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST
from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.root.credentials import mask_values
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.store.generation import Generation, read_manifest
from surf2vec.trainer.store.images import verify_image
from surf2vec.trainer.store.layout import STORE_MANIFEST, explain_damage
from surf2vec.trainer.store.tokens import COUNTS, VOCABULARY, open_corpus, partition_name, whole_window
from surf2vec.trainer.system.files import describe_file, digest_file, link_file, sync_path, write_json

STATE = "state"
STATE_MANIFEST = "manifest.json"
FORMAT_VERSION = 3
KEY_FINGERPRINT = "user_key_fingerprint"  # of a corpus; it does not leave the root


def find_generation(root: Root, export: dict[str, Any]) -> Generation | None:
    """Return the generation that an export was made of; None if it is gone.

    It is pinned, unless the run was killed between registering and pinning: then it is still the current one.
    """
    exported = (export["generation"], export["created_from"]["window_id"])
    for path in (root.store / "pinned" / f"{export['release']}.json", root.store / STORE_MANIFEST):
        if path.exists():
            generation = Generation(root.store, read_manifest(path))
            if (generation.generation, whole_window(generation.manifest["window_id"])) == exported:
                return generation
    return None


def gather_state(root: Root, export: dict[str, Any], record: RunRecord, folder: Path) -> str | None:
    """Write the state of a release into `folder`; what a killed call left there is removed. Returns the sha256 of its manifest.

    Returns None and writes nothing if the root lacks the release's generation or corpus. Raises DamageError for an altered file.
    """
    shutil.rmtree(folder, ignore_errors=True)
    generation = find_generation(root, export)
    corpus_dir = root.corpus(export["created_from"]["window_id"])
    if generation is None or not (corpus_dir / CORPUS_MANIFEST).exists():
        return None
    corpus = open_corpus(corpus_dir)
    for name, about in generation.files().items():
        with explain_damage(generation.folder):
            verify_image(generation.folder / name, about)
        link_file(generation.folder / name, folder / "store" / name)
    kinds = ("users.parquet", "activity.npy")
    places = map(partition_name, range(corpus.num_partitions))
    for name in [VOCABULARY, *(f"{place}.{kind}" for place in places for kind in kinds)]:
        link_file(corpus.path(name), folder / "corpus" / name)
    counts = folder / "corpus" / COUNTS
    np.save(counts, corpus.count_training_tokens(), allow_pickle=False)
    sync_path(counts)
    described = {name: value for name, value in corpus.manifest.items() if name not in ("files", "made_from")}
    made_from = {name: value for name, value in corpus.manifest["made_from"].items() if name != KEY_FINGERPRINT}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {
        "format_version": FORMAT_VERSION,
        "release": export["release"],
        "files": {str(path.relative_to(folder)): describe_file(path) for path in files},
        "generation": generation.manifest,
        "corpus": described | {"made_from": made_from},
        "sources": {"rules": read_catalog(root).rules},
        "record": mask_values(record.to_json()),
    }
    write_json(folder / STATE_MANIFEST, manifest)
    return digest_file(folder / STATE_MANIFEST)
