"""`surf2vec explain`: what a root knows of one user, for the operator who asks; nothing of it goes to logs or reports.

Of 20 million users only what can have this one is looked through: row groups of the events by micro-partition and id, the one
micro-partition of the corpus, the one row group of each release. But the files that have them are read whole, once, for their
sha256: all events, and a file of each release.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.config import PublishConfig
from tasks.corpus.folder import CORPUS_MANIFEST
from tasks.export.export import EXPORT_MANIFEST, path_of
from tasks.export.vector_files import decode_vectors
from tasks.ingest.sources import Catalog, events_files, read_catalog
from tasks.registry.promotion import read_registry
from tasks.root.run import Root
from tasks.users.placement import user_hash
from tasks.users.tombstones import read_tombstones
from trainer.errors import InputError
from trainer.store.tokens import open_corpus
from trainer.system.files import read_json, verify_all

NUM_ITEMS = 10
Story = dict[str, Any]


def explain_user(root: Root, publish: PublishConfig, user_id: str) -> Story:
    """`{"micro_partition", "forgotten_on", "events", "corpus", "releases", "movement"}` of a user, by the name that the root has.

    events: count, first, last, by day. corpus: of the newest one, null where the user is not in it: window_id, row, tokens, the
    items seen most, and whether evaluation held one out. releases: oldest first, those in the root that have the user, with the
    vector's norm. movement: the cosine between one release and the next of the same space. Changes nothing and takes no lock.
    Raises InputError where nothing is known of the user, DamageError when a file cannot be read.
    """
    hash_of_user, catalog = user_hash(user_id), read_catalog(root)
    day = read_tombstones(root).day_of(user_id)
    releases = _find_releases(root, publish, user_id, hash_of_user)
    vectors = [release.pop("vector") for release in releases]
    events = _find_events(root, catalog, user_id, hash_of_user % (catalog.partitions or 1))
    corpus = _find_in_corpus(root, user_id, hash_of_user)
    if not (events["count"] or day or corpus or releases):
        raise InputError(
            f"nothing is known of this user in {root.path}: the id is mistyped, or its events are not ingested"
        )
    return {
        "micro_partition": hash_of_user % (catalog.partitions or 1),
        "forgotten_on": day.isoformat() if day else None,
        "events": events,
        "corpus": corpus,
        "releases": releases,
        "movement": [
            {
                "from": releases[i]["release"],
                "to": releases[i + 1]["release"],
                "cosine": _cosine(vectors[i], vectors[i + 1]),
            }
            for i in range(len(releases) - 1)
            if releases[i]["space_id"] == releases[i + 1]["space_id"] and len(vectors[i]) == len(vectors[i + 1])
        ],
    }


def _find_events(root: Root, catalog: Catalog, user_id: str, partition: int) -> Story:
    """Events of the user: how many, the first and the last, and how many a day."""
    days: Counter[str] = Counter()
    times: list[Any] = []
    where = [("micro_partition", "==", partition), ("user_id", "==", user_id)]
    verify_all(file for entry in catalog.entries.values() for file in events_files(root, entry))
    for name in sorted(catalog.files):
        found = _read_rows(root.path / name, ["ts"], where)["ts"]
        if len(found):
            day = Path(name).parent.name.removeprefix("day=")
            days[day] += len(found)
            times += [] if day == "undated" else [pc.min(found).as_py(), pc.max(found).as_py()]
    return {
        "count": sum(days.values()),
        "first": min(times).isoformat() if times else None,
        "last": max(times).isoformat() if times else None,
        "days": dict(sorted(days.items())),
    }


def _find_in_corpus(root: Root, user_id: str, hash_of_user: int) -> Story | None:
    paths = list(root.path.glob(f"corpus/[!.]*/{CORPUS_MANIFEST}"))
    if not paths:
        return None
    corpus = open_corpus(max(paths, key=lambda path: path.stat().st_mtime_ns).parent)
    partition = hash_of_user % corpus.num_partitions
    row = pc.index(corpus.read_ids(partition), user_id).as_py()
    if row < 0:
        return None
    histories = corpus.read(partition)
    tokens = np.asarray(histories.tokens[histories.offsets[row] : histories.offsets[row + 1]])
    is_held_out = bool(histories.is_held_out[row])
    held_out = int(histories.tokens[histories.ends[row]]) if is_held_out else None
    seen = Counter(tokens.tolist()).most_common(NUM_ITEMS)
    wanted = [item for item, _ in seen] + ([held_out] if held_out is not None else [])
    is_wanted = pc.field("item_ix").isin(pa.array(wanted, pa.int32()))
    named = _read_rows(corpus.vocabulary, ["item_ix", "url"], is_wanted)
    urls = dict(zip(named["item_ix"].to_pylist(), named["url"].to_pylist(), strict=True))
    return {
        "window_id": corpus.folder.name,
        "micro_partition": partition,
        "row": row,
        "tokens": len(tokens),
        "items": [{"url": urls[item], "count": count} for item, count in seen],
        "is_held_out": is_held_out,
        "held_out_item": urls[held_out] if held_out is not None else None,
    }


def _find_releases(root: Root, publish: PublishConfig, user_id: str, hash_of_user: int) -> list[Story]:
    """The releases in the root that have the user, in the order in which they were registered; each with its "vector"."""
    registered = read_registry(root, publish)
    versions = {version.tags.get("release"): version.number for version in registered.versions}
    found = []
    for path in root.path.glob(f"export/[!.]*/{EXPORT_MANIFEST}"):
        manifest = read_json(path)
        name = f"part-{hash_of_user % manifest['partitions']:05d}.parquet"
        if name not in manifest["user_files"]:
            continue
        rows = _read_rows(path_of(path.parent, manifest, f"user_vectors/{name}"), None, [("user_id", "==", user_id)])
        if rows.num_rows:
            vector, version = decode_vectors(rows)[0], versions.get(manifest["release"])
            found.append(
                {
                    "release": manifest["release"],
                    "version": version,
                    "aliases": [alias for alias, number in registered.aliases.items() if number == version],
                    "space_id": manifest["space_id"],
                    "norm": round(float(np.linalg.norm(vector)), 6),
                    "vector": vector,
                }
            )
    return sorted(found, key=lambda release: (release["version"] or 0, release["release"]))


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return round(float(one @ other) / norms, 6) if norms else 0.0


def _read_rows(path: Path, columns: list[str] | None, where: list[tuple[str, str, Any]] | pc.Expression) -> pa.Table:
    """Rows that fulfil conditions; row groups whose least and greatest values exclude them are not read."""
    return pq.read_table(path, columns=columns, filters=where, partitioning=None)
