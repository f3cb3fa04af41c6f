"""`surf2vec doctor`: checks the files of a root against the manifests, and the events against their rules. Changes nothing.

Damage is a file that is missing, altered, or inconsistent with others. A warning is a harmless leftover.
"""

import glob
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import duckdb
import pyarrow.parquet as pq

from surf2vec.sql.runner import connect, fetch_rows
from surf2vec.tasks.corpus.check import find_misfits
from surf2vec.tasks.registry.faults import find_faults
from surf2vec.tasks.registry.releases import list_versions
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.root.records import read_run_record
from surf2vec.tasks.root.run import Root, Run, list_folders
from surf2vec.tasks.root.wording import format_counted
from surf2vec.trainer.errors import DamageError, SurfError
from surf2vec.trainer.store.tokens import CHANGED, Corpus, open_corpus
from surf2vec.trainer.store.upkeep import examine_store
from surf2vec.trainer.system.files import TEMPORARY_SUFFIX, read_json, verify_file

Level = Literal["ok", "warning", "damage"]
Problems = Iterator[tuple[str, str]]
"""Place and message of each damage."""
EVENTS_BYTES, EVENTS_THREADS = 400_000_000, 2  # of DuckDB, for one events file at a time; beyond, it spills to disk
EVENTS_CHECKS = {  # columns of sql/checks/event_faults.sql
    "incomplete_events": "without a value",
    "misplaced_events": "outside the micro-partition of the user",
    "misdated_events": "outside the day of the folder",
    "unsorted_events": "out of order",
    "duplicate_events": "of a line that has another",
}
_GIVE_ALL = "remove {} and give all logs again"
_BEFORE_NEW_LOGS = "give the last `surf2vec run` again, before new logs: it is {} anew, if it is needed"


@dataclass(frozen=True)
class Diagnosis:
    """One result: its level, place and message."""

    level: Level
    place: str
    message: str


def examine(root: Root) -> list[Diagnosis]:
    """Returns all findings of a root, in the order of the data flow."""
    findings = [*_examine_events(root), *_examine_corpora(root)]
    if root.store.exists():
        findings += [Diagnosis(*found) for found in examine_store(root.store)]  # type: ignore[arg-type]
    findings += _examine_exports(root)
    if root.database.exists():  # otherwise the root publishes elsewhere, or has published nothing
        damage = [Diagnosis("damage", *problem) for problem in _examine_registry(root)]
        findings += damage or [Diagnosis("ok", root.tracking_uri, "the root's own registry")]
    for folder in list_folders(root.path / "runs"):
        try:
            ended = format_counted(len(read_run_record(folder / "run.json").steps.ended()), "step")
            findings.append(Diagnosis("ok", str(folder), f"{ended} ended"))
        except DamageError as error:
            findings.append(Diagnosis("damage", str(folder), str(error)))
    leftovers = {path for path in root.path.rglob(f"*{TEMPORARY_SUFFIX}") if path != root.temporary}
    leftovers |= set(root.temporary.iterdir()) if root.temporary.exists() else set()
    return [*findings, *_orphans(leftovers, "temporary files of runs that died, or of one that is under way")]


def _examine_events(root: Root) -> Iterator[Diagnosis]:
    try:
        catalog = read_json(root.sources)
        sources, partitions = catalog["sources"], catalog["partitions"]
    except (DamageError, KeyError, TypeError) as error:
        yield Diagnosis("damage", str(root.sources), f"cannot be used ({error}); {_GIVE_ALL.format(root.sources)}")
        return
    named: set[Path] = set()
    with TemporaryDirectory() as spill, connect(EVENTS_BYTES, Path(spill), EVENTS_THREADS) as con:
        for source in sources:
            files = {root.path / name: about for name, about in source["files"].items()}
            named |= set(files)
            for place, text in list(_damaged(files)) or list(_broken_events(con, files, partitions)):
                way_out = f"remove {place}, if it is there, and give the log {source['name']} again"
                yield Diagnosis("damage", place, f"{text}; {way_out}")
            if sum(about["rows"] for about in files.values()) != source["events"]:
                text = f"{source['name']}: events and rows of files differ; {_GIVE_ALL.format(root.sources)}"
                yield Diagnosis("damage", str(root.sources), text)
    yield Diagnosis("ok", str(root.events), f"{len(sources)} sources in {len(named)} files")
    yield from _orphans(set(root.events.rglob("*.parquet")) - named, "events files that no source names")


def _examine_corpora(root: Root) -> Iterator[Diagnosis]:
    for folder in list_folders(root.path / "corpus"):
        extra: set[Path] = set()
        try:
            manifest = read_json(folder / "manifest.json")
            corpora = [Corpus(folder, manifest)]
            if "num_changed" in manifest:
                corpora.append(open_corpus(folder / CHANGED))
            files = {one.folder / name: about for one in corpora for name, about in one.manifest["files"].items()}
            problems = list(_damaged(files)) or [(str(folder), text) for text in find_misfits(*corpora)]
            known = {*files, *(one.folder / "manifest.json" for one in corpora)}
            extra = {path for path in folder.rglob("*") if path.is_file()} - known
        except (DamageError, KeyError, TypeError, ValueError, OSError) as error:
            problems = [(str(folder), str(error))]
        summary = "" if problems else f"{manifest['num_users']:,} users, {manifest['num_tokens']:,} tokens"
        yield from _list_findings(folder, summary, problems, f"remove {folder} and {_BEFORE_NEW_LOGS.format('built')}")
        yield from _orphans(extra, "files that the corpus does not name")


def _examine_exports(root: Root) -> Iterator[Diagnosis]:
    for folder in list_folders(root.path / "export"):
        try:
            manifest = read_json(folder / "manifest.json")
            problems = list(_damaged({folder / name: about for name, about in list_files(manifest).items()}))
        except (DamageError, KeyError, TypeError) as error:
            problems = [(str(folder), str(error))]
        summary = "" if problems else f"release of {manifest['num_users']:,} users and {manifest['num_items']:,} items"
        yield from _list_findings(folder, summary, problems, _find_way_out(root, folder))


def _list_findings(folder: Path, summary: str, problems: list[tuple[str, str]], way_out: str) -> Iterator[Diagnosis]:
    """Yield the findings of a folder: its problems, each with the remedy, or one "ok" with the summary."""
    yield from (Diagnosis("damage", place, f"{text}; {way_out}") for place, text in problems)
    if not problems:
        yield Diagnosis("ok", str(folder), summary)


def _find_way_out(root: Root, export_dir: Path) -> str:
    """Returns how to repair a damaged export: from its copy in the registry, or else from its generation."""
    try:
        registered = Run(root, export_dir.name).record().steps.registered
    except DamageError:
        registered = None
    if registered is None or registered.storage != "copy":
        return f"remove {export_dir} and {_BEFORE_NEW_LOGS.format('made')}"
    uri = registered.tracking_uri
    place = "" if uri == root.tracking_uri else f" --tracking-uri {uri}"
    name = f"models:/{registered.model_name}/{registered.model_version}"
    return f"remove {export_dir}, then `surf2vec pull {name} --out {export_dir} --root {root.path}{place}`"


def _examine_registry(root: Root) -> Problems:
    """Yield the damage in the root's own registry: in its database, and in the copies that versions serve from."""
    try:
        with closing(sqlite3.connect(f"{root.database.as_uri()}?mode=ro", uri=True)) as database:
            found = str(database.execute("pragma integrity_check(1)").fetchone()[0]).splitlines()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        yield (
            str(root.database),
            f"the registry's database is damaged ({found}): bring back a copy of it, or move it away and run "
            "with --full: a release is then registered in a new one, as version 1",
        )
        return
    way_out = "give the `surf2vec run` again that made release {}: it mends the copy"
    try:
        for copy in list_versions(root.tracking_uri):
            for fault in find_faults(copy.folder, copy.tags):
                yield copy.place, f"{fault}; {way_out.format(copy.tags['release'])}"
    except SurfError as error:
        yield str(root.database), str(error)


def _damaged(files: dict[Path, dict[str, Any]]) -> Problems:
    """Yield each file that does not match its manifest."""
    for path, about in files.items():
        try:
            verify_file(path, about)
        except DamageError as error:
            yield str(path), str(error)


def _broken_events(con: duckdb.DuckDBPyConnection, files: dict[Path, dict[str, Any]], partitions: int) -> Problems:
    """Yield each events file whose checksum is right, but whose number of rows is wrong or whose events break a rule."""
    for path, about in files.items():
        if (rows := pq.read_metadata(path).num_rows) != about["rows"]:
            yield str(path), f"{path} has {rows:,} rows where its manifest says {about['rows']:,}"
        [faults] = fetch_rows(con, "checks/event_faults", {"files": [glob.escape(str(path))], "partitions": partitions})
        for check, fault in EVENTS_CHECKS.items():
            if faults[check]:
                yield str(path), f"{path} has {format_counted(faults[check], 'event')} {fault} ({check})"


def _orphans(paths: set[Path], what: str) -> Iterator[Diagnosis]:
    if paths:
        names = ", ".join(sorted(path.name for path in paths)[:3]) + (" ..." if len(paths) > 3 else "")
        yield Diagnosis("warning", str(min(paths).parent), f"{len(paths)} {what}: {names}")
