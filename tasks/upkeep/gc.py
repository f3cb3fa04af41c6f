"""`surf2vec gc`: removes what nothing refers to any more. Returns what it removed, with the bytes.

A release stays if a promotion or a rollback needs one of its versions, if it is among the newest `publish.keep_releases`, or if
the newest run made it. When a release is removed, its version goes first, so that no client loads an incomplete one; then its
export, its pinned generation and its copy in the root's own registry. Copies in another registry are complete without the root
and stay, like everything that this root did not register. Records and reports of runs stay. A run whose release was removed
starts from scratch if its command is repeated.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.corpus.folder import newest_corpus
from surf2vec.tasks.ingest.sources import find_orphans, read_catalog
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.ownership import Ownership
from surf2vec.tasks.registry.versions import Version
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.root.identity import find_record_uri, is_own_registry, is_same_registry
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.run import (
    Root,
    current_generation,
    forget_releases,
    list_folders,
    read_run_records,
    remove_scratch_folder,
)
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.store.tokens import whole_window
from surf2vec.trainer.store.writer import open_pinned, remove_unreferenced, unpin_generations
from surf2vec.trainer.system.files import TEMPORARY_SUFFIX, digest_file, is_locked, read_json, remove_folder

_TEMPORARY_PLACES = ("", "corpus/", "export/", "events/", "events/*/", "rejects/", "runs/*/", "tune/")
_PROCESS = re.compile(rf"\.(\d+){re.escape(TEMPORARY_SUFFIX)}")
_YOUNG_SECONDS = 3600


@dataclass(frozen=True)
class Waste:
    """Something that nothing refers to: what it is, its place, its bytes, and the function that removes it."""

    what: str
    place: str
    bytes: int
    remove: Callable[[], Any]


@dataclass(frozen=True)
class References(Ownership):
    """What refers to what: the records of runs, the versions in the registry, and the releases that stay."""

    @cached_property
    def records(self) -> dict[str, RunRecord]:
        return {record.run_id: record for record in read_run_records(self.root)}

    @cached_property
    def newest_run(self) -> RunRecord | None:
        return max(self.records.values(), key=lambda record: record.created_at, default=None)

    @cached_property
    def kept(self) -> set[str]:
        """The releases that stay. Raises InputError if runs registered to another registry."""
        versions = [
            version
            for version in reversed(self.registered.versions)
            if version.tags.get("release") in self.records and self.owns_version(version)
        ]
        for run_id, record in self.records.items():
            if record.steps.registered and self.is_judged(run_id) and not versions:
                raise InputError(
                    f"run {run_id} registered a version of {self.publish.model_name}, of which the registry has none: nothing "
                    "was removed; check --root and publish.tracking_uri"
                )
        newest = list(dict.fromkeys(version.tags["release"] for version in versions))[: self.publish.keep_releases]
        kept = {*newest, *(version.tags["release"] for version in versions if version.number in self.registered.needed)}
        return kept | ({self.newest_run.run_id} if self.newest_run else set())

    def is_judged(self, release: str) -> bool:
        """Return whether this root registered the release in this registry, or was about to."""
        record = self.records.get(release)
        if record is None or record.setting("publish", "model_name") != self.publish.model_name:
            return False
        uri = find_record_uri(self.root, record) or record.setting("publish", "tracking_uri") or self.uri
        return is_same_registry(uri, self.uri)

    def may_remove(self, release: str) -> bool:
        return self.is_judged(release) and release not in self.kept

    def window_ids(self) -> set[str]:
        """Return the corpora that are still read: by the generations, the next run, `similar`, `infer` and `tune`."""
        store, aliases = self.root.store, self.registered.aliases.values()
        pinned = [path.stem for path in self.root.pinned() if not self.may_remove(path.stem)]
        wanted = {open_pinned(store, name).manifest["window_id"] for name in pinned}
        if generation := current_generation(self.root):
            wanted.add(generation.manifest["window_id"])
        if self.newest_run:
            wanted.add(self.newest_run.window_id)
        if self.root.corpora():
            wanted.add(newest_corpus(self.root))
        aliased = {version.tags.get("release") for version in self.registered.versions if version.number in aliases}
        for folder in self.root.exports():
            if folder.name in aliased or not self.is_judged(folder.name):
                wanted.add(read_json(folder / EXPORT_MANIFEST)["created_from"]["window_id"])
        return {whole_window(window_id) for window_id in wanted}


def collect_garbage(
    root: Root, publish: PublishConfig, dry_run: bool, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """Remove, or with `dry_run` only list, what nothing refers to. The caller holds the locks of root, aliases and store.

    Run the same command to resume. Raises InputError if the runs registered to another registry, ResourceError if the registry
    cannot be reached, DamageError if a manifest cannot be read; nothing is removed then.
    """
    started = time.monotonic()
    references = References(root, publish)
    kept, wastes = sorted(references.kept), list(find_waste(references))
    if not dry_run:
        removed = {Path(waste.place) for waste in wastes}
        run_ids = set()  # runs that lose their export, or the corpus that they need to finish
        for record in references.records.values():
            is_unfinished = record.window_id and not record.steps.report
            if root.export(record.run_id) in removed or (is_unfinished and root.corpus(record.window_id) in removed):
                run_ids.add(record.run_id)
        forget_releases(root, run_ids)
        for waste in wastes:
            log(on_event, f"removing {waste.what}: {waste.place}")
            waste.remove()
    return {
        "dry_run": dry_run,
        "removed": [{"what": waste.what, "place": waste.place, "bytes": waste.bytes} for waste in wastes],
        "bytes": sum(waste.bytes for waste in wastes),
        "kept_releases": kept,
        "seconds": round(time.monotonic() - started, 3),
    }


def find_waste(references: References) -> Iterator[Waste]:
    """Yield what nothing refers to, in a safe order of removal: a reference before its target."""
    root, is_own = references.root, is_own_registry(references.root, references.publish)
    to_remove = [
        version
        for version in references.registered.versions
        if references.may_remove(version.tags.get("release", "")) and references.owns_version(version)
        if is_own or "export_uri" in version.tags  # a copy in another registry is complete without the root
    ]
    for version in to_remove:
        yield Waste("model version", version.place, 0, partial(tracking.delete_version, references.uri, version))
    to_keep = [version for version in references.versions if version not in to_remove]
    referred = {version.tags.get("export_uri") for version in to_keep}
    for folder in list_folders(root.path / "export"):
        if references.may_remove(folder.name) and folder.resolve().as_uri() not in referred:
            yield _waste("export", folder, remove_folder)
    yield from _find_unreferenced(references)
    wanted = references.window_ids()
    is_searching = is_locked(root.path / "tune" / ".lock")
    for folder in list_folders(root.path / "corpus"):
        if folder.name not in wanted and not is_searching:
            yield _waste("corpus", folder, remove_folder)
    if is_own and references.registered.versions:
        yield from _find_copies(references, to_keep)
    for path in find_orphans(root, read_catalog(root)):
        yield _waste("events file", path, Path.unlink)
    yield from find_temporaries(root)


def _waste(what: str, path: Path, remove: Callable[[Path], Any]) -> Waste:
    return Waste(what, str(path), _size(path), partial(remove, path))


def _find_copies(references: References, to_keep: list[Version]) -> Iterator[Waste]:
    """Yield copies in the root's own registry that have no version, and no export from which one may still be made."""
    root = references.root
    digests = {version.tags.get("manifest_sha256") for version in to_keep}
    for folder in root.exports():
        digests |= set() if references.may_remove(folder.name) else {digest_file(folder / EXPORT_MANIFEST)}
    for copy in references.copies:
        is_needed = copy.tags["manifest_sha256"] in digests or any(copy.is_used_by(version) for version in to_keep)
        if references.owns_copy(copy) and not is_needed and copy.folder:
            remove = partial(tracking.delete_model, references.uri, copy.model_id)
            yield Waste("copy in the registry", str(copy.folder), _size(copy.folder), remove)


def _find_unreferenced(references: References) -> Iterator[Waste]:
    """Yield pinned generations of releases that are removed, and vector files that no generation names."""
    store, current = references.root.store, current_generation(references.root)
    if not current:
        return
    pinned = {path.stem for path in references.root.pinned()}
    kept_names = {name for name in pinned if not references.may_remove(name)}
    for name in sorted(pinned - kept_names):
        place = f"{store}/pinned/{name}.json"
        yield Waste("pinned generation", place, 0, partial(unpin_generations, store, pinned - {name}))
    named = {name for one in (current, *(open_pinned(store, name) for name in kept_names)) for name in one.files()}
    files = [path for path in store.glob("*.safetensors") if path.name not in named]
    files += store.rglob(f".*{TEMPORARY_SUFFIX}")
    if files:
        what = f"{len(files):,} vector files of no generation"
        yield Waste(what, str(store), sum(map(_size, files)), partial(remove_unreferenced, store))


def find_temporaries(root: Root) -> Iterator[Waste]:
    """Yield leftovers of killed processes. The locks exclude running writers, except calls of `infer`."""
    for path in sorted(root.temporary.glob("*")):
        is_young = path.name.startswith(".") and time.time() - path.stat().st_mtime < _YOUNG_SECONDS
        if not (is_young or is_locked(path / ".lock")):
            yield _waste("temporary folder", path, _remove)
    for path in sorted(path for place in _TEMPORARY_PLACES for path in root.path.glob(f"{place}.*{TEMPORARY_SUFFIX}")):
        process = _PROCESS.search(path.name)
        if path != root.temporary and not (process and psutil.pid_exists(int(process[1]))):
            yield _waste("temporary file", path, _remove)


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if it is gone. A link has those of its own."""
    paths = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(one.lstat().st_size for one in paths if one.is_file() or one.is_symlink())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_scratch_folder(path)
    else:
        path.unlink(missing_ok=True)
