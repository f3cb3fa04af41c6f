"""`surf2vec doctor`: checks the files of a root against the manifests, and the events against their rules. Changes nothing.

Damage is a file that is missing, altered, or inconsistent with others. A warning is a harmless leftover.
"""

import glob
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from surf2vec.sql.runner import connect, fetch_rows
from surf2vec.tasks.ingest.sources import day_of, name_logs, read_catalog
from surf2vec.tasks.registry.faults import find_faults
from surf2vec.tasks.registry.releases import list_versions
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.root.identity import find_record_uri
from surf2vec.tasks.root.records import read_run_record
from surf2vec.tasks.root.run import Root, Run, list_folders
from surf2vec.tasks.root.wording import format_counted
from surf2vec.trainer.errors import DamageError, SurfError
from surf2vec.trainer.store.tokens import CHANGED, Corpus, gather_spans, open_corpus
from surf2vec.trainer.store.writer import examine_store
from surf2vec.trainer.system.files import TEMPORARY_SUFFIX, read_json, verify_file

Level = Literal["ok", "warning", "damage"]
EVENTS_BYTES, EVENTS_THREADS = 400_000_000, 2  # of DuckDB, for one events file at a time; beyond, it spills to disk
EVENTS_CHECKS = {  # columns of sql/checks/event_faults.sql
    "incomplete_events": "without a value",
    "misplaced_events": "outside the micro-partition of the user",
    "misdated_events": "outside the day of the folder",
    "unsorted_events": "out of order",
    "duplicate_events": "of a line that has another",
}
_INGEST_ALL = "remove {} and ingest all logs again"
_RUN_AGAIN = "remove {} and repeat the last `surf2vec run` before new logs: it is made again, if it is needed"


@dataclass(frozen=True)
class Diagnosis:
    """One result: its level, place and message."""

    level: Level
    place: str
    message: str


damage = partial(Diagnosis, "damage")


def examine(root: Root) -> list[Diagnosis]:
    """Return all findings of a root, in the order of the data flow."""
    found = [*_examine_events(root)]
    for folder in list_folders(root.path / "corpus"):
        found += _conclude(folder, _examine_corpus(folder), _RUN_AGAIN.format(folder))
    if root.store.exists():
        found += [Diagnosis(*one) for one in examine_store(root.store)]  # type: ignore[arg-type]
    for folder in list_folders(root.path / "export"):
        found += _conclude(folder, _examine_export(folder), _find_way_out(root, folder))
    if root.database.exists():  # otherwise the root publishes elsewhere, or has published nothing
        found += list(_examine_registry(root)) or [Diagnosis("ok", root.tracking_uri, "the root's own registry")]
    for folder in list_folders(root.path / "runs"):
        found += _conclude(folder, _examine_record(folder))
    leftovers = {path for path in root.path.rglob(f"*{TEMPORARY_SUFFIX}") if path != root.temporary}
    leftovers |= set(root.temporary.iterdir()) if root.temporary.exists() else set()
    return [*found, *_warn(leftovers, "temporary files of runs that died, or of one that is under way")]


def _examine_events(root: Root) -> Iterator[Diagnosis]:
    place, way_out = str(root.sources), _INGEST_ALL.format(root.sources)
    try:
        catalog = read_catalog(root)
        sharers = sorted(catalog.sharers.items())
    except (DamageError, KeyError, TypeError) as error:
        yield damage(place, f"cannot be used ({error}); {way_out}")
        return
    with TemporaryDirectory() as spill, connect(EVENTS_BYTES, Path(spill), EVENTS_THREADS) as con:
        for name, entries in sharers:
            path, about = root.path / name, catalog.files[name]
            altered = list(_find_altered({path: about}))
            for one in altered or _find_broken(con, path, about, catalog.partitions or 1):
                fix = f"remove {one.place}, if it is there, and ingest {name_logs(entries)} again"
                yield replace(one, message=f"{one.message}; {fix}")
            if sum(entry["days"][day_of(name)] for entry in entries) != catalog.files[name]["rows"]:
                yield damage(place, f"{name}: its rows and the events of {name_logs(entries)} differ; {way_out}")
    for entry in catalog.entries.values():
        if len(entry["files"]) != len(entry["days"]) or sum(entry["days"].values()) != entry["events"]:
            yield damage(place, f"{entry['name']}: events, days and files differ; {way_out}")
    yield Diagnosis("ok", str(root.events), f"{len(catalog.entries)} sources in {len(sharers)} files")
    named = {root.path / name for name, _ in sharers}
    yield from _warn(set(root.events.rglob("*.parquet")) - named, "events files that no source names")


def _conclude(folder: Path, findings: Iterator[Diagnosis], way_out: str = "") -> Iterator[Diagnosis]:
    """Yield the findings of a folder: damage with the remedy, and "ok" only without damage. An error is damage, too."""
    found: list[Diagnosis] = []
    try:
        found.extend(findings)
    except (DamageError, KeyError, TypeError, ValueError, OSError) as error:
        found.append(damage(str(folder), str(error)))
    is_damaged = any(one.level == "damage" for one in found)
    for one in found:
        if one.level == "damage" and way_out:
            yield replace(one, message=f"{one.message}; {way_out}")
        elif one.level != "ok" or not is_damaged:
            yield one


def _examine_corpus(folder: Path) -> Iterator[Diagnosis]:
    manifest = read_json(folder / "manifest.json")
    corpora = [Corpus(folder, manifest), *([open_corpus(folder / CHANGED)] if "num_changed" in manifest else [])]
    files = {one.folder / name: about for one in corpora for name, about in one.manifest["files"].items()}
    altered = list(_find_altered(files))
    yield from altered or (damage(str(folder), text) for text in find_misfits(*corpora))
    yield Diagnosis("ok", str(folder), f"{manifest['num_users']:,} users, {manifest['num_tokens']:,} tokens")
    known = {*files, *(one.folder / "manifest.json" for one in corpora)}
    extra = {path for path in folder.rglob("*") if path.is_file()} - known
    yield from _warn(extra, "files that the corpus does not name")


def _examine_export(folder: Path) -> Iterator[Diagnosis]:
    manifest = read_json(folder / "manifest.json")
    yield from _find_altered({folder / name: about for name, about in list_files(manifest).items()})
    summary = f"release of {manifest['num_users']:,} users and {manifest['num_items']:,} items"
    yield Diagnosis("ok", str(folder), summary)


def _examine_record(folder: Path) -> Iterator[Diagnosis]:
    ended = len(read_run_record(folder / "run.json").steps.ended())
    yield Diagnosis("ok", str(folder), f"{format_counted(ended, 'step')} ended")


def _find_way_out(root: Root, export_dir: Path) -> str:
    """Return how to repair a damaged export: from its copy in the registry, or else from its generation."""
    try:
        record = Run(root, export_dir.name).record()
    except DamageError:
        return _RUN_AGAIN.format(export_dir)
    registered, uri = record.steps.registered, find_record_uri(root, record)
    if not registered or registered.storage != "copy":
        return _RUN_AGAIN.format(export_dir)
    place = "" if uri == root.tracking_uri else f" --tracking-uri {uri}"
    name = f"models:/{registered.model_name}/{registered.model_version}"
    return f"remove {export_dir}, then `surf2vec pull {name} --out {export_dir} --root {root.path}{place}`"


def _examine_registry(root: Root) -> Iterator[Diagnosis]:
    """Yield the damage in the root's own registry: in its database, and in the copies that versions serve from."""
    place = str(root.database)
    try:
        with closing(sqlite3.connect(f"{root.database.as_uri()}?mode=ro", uri=True)) as database:
            found = str(database.execute("pragma integrity_check(1)").fetchone()[0]).splitlines()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        way_out = "restore a backup of it, or move it away and run with --full, which registers a release in a new one"
        yield damage(place, f"the registry's database is damaged ({found}): {way_out}")
        return
    try:
        for copy in list_versions(root.tracking_uri):
            way_out = f"repeat the `surf2vec run` that made release {copy.tags.get('release')}: it repairs the copy"
            yield from (damage(copy.place, f"{fault}; {way_out}") for fault in find_faults(copy))
    except SurfError as error:
        yield damage(place, str(error))


def _find_altered(files: dict[Path, dict[str, Any]]) -> Iterator[Diagnosis]:
    """Yield each file that does not match its manifest."""
    for path, about in files.items():
        try:
            verify_file(path, about)
        except DamageError as error:
            yield damage(str(path), str(error))


def _find_broken(con: duckdb.DuckDBPyConnection, path: Path, about: dict[str, Any], parts: int) -> Iterator[Diagnosis]:
    """Yield the faults of an events file whose checksum is right: a wrong number of rows, and events that break a rule."""
    if (rows := pq.read_metadata(path).num_rows) != about["rows"]:
        yield damage(str(path), f"{path} has {rows:,} rows where its manifest says {about['rows']:,}")
    [faults] = fetch_rows(con, "checks/event_faults", {"files": [glob.escape(str(path))], "partitions": parts})
    for check, fault in EVENTS_CHECKS.items():
        if faults[check]:
            yield damage(str(path), f"{path} has {format_counted(faults[check], 'event')} {fault} ({check})")


def _warn(paths: set[Path], what: str) -> Iterator[Diagnosis]:
    if paths:
        names = ", ".join(sorted(path.name for path in paths)[:3]) + (" ..." if len(paths) > 3 else "")
        yield Diagnosis("warning", str(min(paths).parent), f"{len(paths)} {what}: {names}")


def find_misfits(corpus: Corpus, changed: Corpus | None = None) -> Iterator[str]:
    """Yield a line for each contradiction in a corpus, in that of its changed rows, or between both."""
    for partition in range(corpus.num_partitions):
        place = f"micro-partition {partition}"
        yield from (f"{place}: {text}" for text in _examine(corpus, partition))
        if changed:
            yield from (f"{place} of the changed rows: {text}" for text in _examine(changed, partition))
            if not _is_part_of(corpus, changed, partition):
                yield f"{place}: the changed rows are not those of the corpus"


def _examine(corpus: Corpus, partition: int) -> Iterator[str]:
    histories, ids = corpus.read(partition), corpus.read_ids(partition)
    tokens, lengths = np.asarray(histories.tokens), np.diff(histories.offsets)
    is_hole = ids.is_null().to_numpy()
    # A corpus that continues another, keeps users of it, or was restored has users without tokens, in another order.
    is_continued = bool(corpus.manifest.get("base")) or corpus.manifest.get("without_tokens", False)
    if (lengths < 0).any():
        yield "offsets that fall"
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < corpus.num_items:
        yield "tokens outside of the vocabulary"
    if (histories.hashes[is_hole] != 0).any() or (lengths[is_hole] != 0).any():
        yield "a hole, where a user was who left, with a hash or tokens"
    known = ids.drop_null()  # Arrow compares bytes
    is_sorted = pc.all(pc.less(known[:-1], known[1:]), min_count=0).as_py()
    if not (is_sorted or (is_continued and pc.count_distinct(known).as_py() == len(known))):
        yield "users out of order, or twice"
    if (histories.hashes[~is_hole] % np.uint64(corpus.num_partitions) != partition).any():
        yield "users of another"
    found = len(ids), int(is_hole.sum()), len(tokens)
    if found != (corpus.users[partition], corpus.holes[partition], corpus.tokens[partition]):
        yield "not as many users and tokens as the manifest says"


def _is_part_of(corpus: Corpus, changed: Corpus, partition: int) -> bool:
    """Return whether the changed rows of a micro-partition are ordered rows of the corpus with equal users and tokens."""
    rows = changed.rows(partition)
    histories, part = corpus.read(partition), changed.read(partition)
    if rows is None or len(rows) != part.num_users or (np.diff(rows.astype(np.int64)) <= 0).any():
        return False
    if len(rows) and rows[-1] >= histories.num_users:
        return False
    ids = corpus.read_ids(partition).take(pa.array(rows))
    lengths = np.diff(histories.offsets)[rows]
    if not ids.equals(changed.read_ids(partition)) or (lengths != np.diff(part.offsets)).any():
        return False
    return bool((gather_spans(histories.tokens, histories.starts[rows], lengths)[1] == part.tokens).all())
