"""`surf2vec explain`: returns what a root knows of one user, for the operator. Nothing of it goes to logs or reports.

Of 20 million users it decodes only what can contain this one: row groups of the events by micro-partition and id, one
micro-partition of the corpus, one row group of each release. It does read all events once, to check their sha256.
"""

from collections import Counter
from datetime import datetime
from glob import escape
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.corpus.folder import newest_corpus
from surf2vec.tasks.ingest.sources import Catalog, events_files, read_catalog
from surf2vec.tasks.queries.similar import find_history, open_corpus_of, read_tokens
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, open_folder
from surf2vec.tasks.release.release_reader import compared_columns, user_hash
from surf2vec.tasks.release.trail_sums import scale_of
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.tombstones import read_tombstones
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.system.files import verify_all

NUM_ITEMS = 10
_EVENTS = """select day, count(*), min(ts), max(ts)
from read_parquet($files, hive_partitioning = true, hive_types_autocast = false)
where micro_partition = $partition and user_id = $user_id group by day order by day"""


def explain_user(root: Root, publish: PublishConfig, user_id: str) -> dict[str, Any]:
    """Return `{"micro_partition", "forgotten_on", "events", "corpus", "releases", "movement"}`. user_id: as the root stores it.

    events: count, first, last, by day. corpus: the newest one, null if the user is not in it: window_id, row, tokens, the
    items seen most, and whether evaluation held one out. releases: those in the root that have the user, oldest first, with the
    vector's norm, the last pages, newest first, each with its weight in the trail, and activity by name. movement: the cosine
    between consecutive releases of the same space. Norm and cosine are without activity. Changes nothing and takes no lock.
    Raises InputError if nothing is known of the user, DamageError if a file cannot be read.
    """
    catalog, day = read_catalog(root), read_tombstones(root).day_of(user_id)
    partition = user_hash(user_id) % (catalog.partitions or 1)
    releases = _find_releases(root, publish, user_id)
    vectors = [release.pop("vector") for release in releases]
    events = _find_events(root, catalog, user_id, partition)
    corpus = _find_in_corpus(root, user_id)
    if not (events["count"] or day or corpus or releases):
        raise InputError(f"nothing is known of this user in {root.path}: the id is mistyped, or has no events")
    movement = []
    for (old, one), (new, other) in pairwise(zip(releases, vectors, strict=True)):
        if old["space_id"] == new["space_id"] and len(one) == len(other):
            norms = float(np.linalg.norm(one) * np.linalg.norm(other))
            cosine = round(float(one @ other) / norms, 6) if norms else 0.0
            movement.append({"from": old["release"], "to": new["release"], "cosine": cosine})
    return {
        "micro_partition": partition,
        "forgotten_on": day.isoformat() if day else None,
        "events": events,
        "corpus": corpus,
        "releases": releases,
        "movement": movement,
    }


def _find_events(root: Root, catalog: Catalog, user_id: str, partition: int) -> dict[str, Any]:
    """Return the events of the user: how many, the first and the last, and how many a day."""
    verify_all(events_files(root, catalog))
    found: list[tuple[str, int, datetime, datetime]] = []
    if files := [escape(str(root.path / name)) for name in catalog.files]:
        with duckdb.connect() as con:
            found = con.execute(_EVENTS, {"files": files, "partition": partition, "user_id": user_id}).fetchall()
    dated = [(first, last) for day, _, first, last in found if day != "undated"]
    return {
        "count": sum(num_events for _, num_events, _, _ in found),
        "first": min(first for first, _ in dated).isoformat() if dated else None,
        "last": max(last for _, last in dated).isoformat() if dated else None,
        "days": {day: num_events for day, num_events, _, _ in found},
    }


def _find_in_corpus(root: Root, user_id: str) -> dict[str, Any] | None:
    try:
        corpus = open_corpus(root.corpus(newest_corpus(root)))
    except InputError:  # the root has no corpus
        return None
    if (found := find_history(corpus, user_id)) is None:
        return None
    partition, row, histories = found
    tokens = histories.tokens[histories.offsets[row] : histories.offsets[row + 1]]
    seen = Counter(tokens.tolist()).most_common(NUM_ITEMS)
    held_out = [int(histories.tokens[histories.ends[row]])] if histories.is_held_out[row] else []
    urls = _find_urls(corpus, [item for item, _ in seen] + held_out)
    return {
        "window_id": corpus.folder.name,
        "micro_partition": partition,
        "row": row,
        "tokens": len(tokens),
        "items": [{"url": urls[item], "count": count} for item, count in seen],
        "is_held_out": bool(held_out),
        "held_out_item": urls[held_out[0]] if held_out else None,
    }


def _find_urls(corpus: Corpus, items: list[int]) -> dict[int, str]:
    named = pq.read_table(corpus.vocabulary, columns=["item_ix", "url"], filters=[("item_ix", "in", items)])
    return dict(zip(named["item_ix"].to_pylist(), named["url"].to_pylist(), strict=True))


def _weigh_pages(root: Root, manifest: dict[str, Any], user_id: str) -> list[dict[str, Any]]:
    """Return a user's last pages, newest first, with their weights in a release's trail; none without a trail or its corpus."""
    corpus = open_corpus_of(root, manifest) if "trail" in manifest else None
    if corpus is None or not (tokens := read_tokens(corpus, user_id)):
        return []
    lags = np.array(manifest["trail"]["lags"], np.float32)
    pages = tokens[::-1][: len(lags)]
    weights = (lags[: len(pages)] * scale_of((lags[: len(pages)] ** 2).sum())).tolist()
    urls = _find_urls(corpus, pages)
    return [{"url": urls[page], "weight": round(weight, 6)} for page, weight in zip(pages, weights, strict=True)]


def _find_releases(root: Root, publish: PublishConfig, user_id: str) -> list[dict[str, Any]]:
    """Return the releases in the root that have the user, in the order of their registration, each with its "vector"."""
    registered = read_registry(root, publish)
    found = []
    for path in root.path.glob(f"export/[!.]*/{EXPORT_MANIFEST}"):
        release = open_folder(path.parent)
        manifest, version = release.manifest, registered.numbers.get(release.manifest["release"])
        for _, whole in release.find_users({user_id}).values():
            vector, rest = np.split(whole, [compared_columns(manifest).stop])
            found.append(
                {
                    "release": manifest["release"],
                    "version": version,
                    "aliases": [alias for alias, number in registered.aliases.items() if number == version],
                    "space_id": manifest["space_id"],
                    "norm": round(float(np.linalg.norm(vector)), 6),
                    "pages": _weigh_pages(root, manifest, user_id),
                    "activity": {
                        name: round(float(value), 6)
                        for name, value in zip(manifest.get("activity", {}).get("names", ()), rest, strict=True)
                    },
                    "vector": vector,
                }
            )
    return sorted(found, key=lambda release: (release["version"] or 0, release["release"]))
