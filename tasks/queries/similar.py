"""`surf2vec similar`: the nearest users and the next pages of a user, read from an export's folder, without MLflow."""

from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import compared_columns, user_hash
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.store.tokens import Corpus, Histories, open_corpus

NUM_SEEN = 10


def similar_users(root: Root, export_dir: Path, user_id: str, k: int, part: str | None = None) -> dict[str, Any]:
    """Return `{"user_id", "neighbours": [{"user_id", "score"}], "items": [{"url", "score"}], "seen": [url, ...]}`.

    neighbours: the k nearest by cosine. items: the k items with the highest dot product that the user has not seen. part: by
    which both are found; by default by all but activity, which ranks no items.
    seen: the newest pages of the user, newest first. If the export's corpus was removed, no page counts as seen. A release
    trained with a tree has no item vectors: items and seen are then empty.
    Raises InputError for a user without a vector, and for a part that the release does not have.
    """
    if k < 1:
        raise InputError(f"k is {k}: ask for at least 1")
    release = open_folder(export_dir)
    manifest = release.manifest
    found = release.find_users({user_id})
    if not found:
        raise InputError(
            f"this user is not among the {manifest['num_users']:,} users of release {manifest['release']}: "
            "the id is mistyped, or the user has fewer than ingest.min_user_events events in the window"
        )
    columns = release.find_columns(part) if part else compared_columns(manifest)
    row, vector = found[user_id]
    [near] = release.find_neighbours(np.array([row]), vector[None], k, columns)
    items: list[dict[str, Any]] = []
    tokens: list[int] = []
    if manifest["item_files"] and part != "activity":
        corpus = open_corpus_of(root, manifest)
        tokens = read_tokens(corpus, user_id) if corpus else []
        [best] = release.rank_items(vector[None], k, columns, [tokens])
        items = [{"url": url, "score": score} for url, score in zip(*best, strict=True)]
    return {
        "user_id": user_id,
        "neighbours": [{"user_id": name, "score": score} for name, score in near],
        "items": items,
        "seen": [release.items[0][token].as_py() for token in dict.fromkeys(reversed(tokens))][:NUM_SEEN],
    }


def open_corpus_of(root: Root, manifest: dict[str, Any]) -> Corpus | None:
    """Return the corpus of a release; None if it was removed."""
    folder = root.corpus(manifest["created_from"]["window_id"])
    return open_corpus(folder) if (folder / CORPUS_MANIFEST).exists() else None


def read_tokens(corpus: Corpus, user_id: str) -> list[int]:
    """Return the tokens of a user in time order; none if the user has no history."""
    if (found := find_history(corpus, user_id)) is None:
        return []
    _, row, histories = found
    return histories.tokens[histories.offsets[row] : histories.offsets[row + 1]].tolist()


def find_history(corpus: Corpus, user_id: str) -> tuple[int, int, Histories] | None:
    """Return a user's micro-partition, the row in it, and the histories of all its users; None if the user has no history."""
    partition = user_hash(user_id) % corpus.num_partitions
    ids = corpus.read_ids(partition).to_pylist()
    return (partition, ids.index(user_id), corpus.read(partition)) if user_id in ids else None
