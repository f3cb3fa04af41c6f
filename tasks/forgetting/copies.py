"""Searches the root and the registry for users to forget, removes the releases that have some, and makes the proof.

The sha256 of its export's manifest identifies a release: in its export in the root, in the logged models that contain a copy,
and in the versions made of these. Only what this root registered is removed (`tasks/registry/tracking.py`), and no copy that
a version of another root is made of. Copies that stay are searched too, and listed.

The proof does not rely on what was removed: it reads all rows that are now on the disk and in the registry. If rows have no
names (the store, the index), their number must equal the number of names stored with them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.events.events_files import BATCH_ROWS
from surf2vec.tasks.export.without_users import count_users, list_named
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.mlflow_runs import download
from surf2vec.tasks.registry.ownership import Ownership
from surf2vec.tasks.registry.tracking import Copy
from surf2vec.tasks.registry.versions import Version, local_folder
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, open_folder
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.root.run import Root, current_generation, forget_releases, list_folders, open_scratch_folder
from surf2vec.tasks.users.user_set import UserSet
from surf2vec.trainer.errors import DamageError, SurfError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.store.generation import Generation, read_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST, read_rows
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.system.files import digest_file, read_json, remove_folder, verify_once

Searched = dict[str, Any]
"""place, rows: the number searched, found: how many of them belong to a user to forget."""


@dataclass(frozen=True)
class Copies(Ownership):
    """The exports of a root and their copies in a registry; no copies if nothing was ever registered."""

    wanted: UserSet

    @cached_property
    def champion(self) -> Version | None:
        """The version that serves, if this root registered it."""
        champion = self.registered.champion
        return champion if champion and self.owns_version(champion) else None

    @cached_property
    def found_in(self) -> dict[Path, int]:
        """Export of the root → how many of the wanted users it has."""
        return {folder: count_users(folder, self.wanted) for folder in self.root.exports()}

    @cached_property
    def kept(self) -> dict[str, list[str]]:
        """The logged models that stay: id → the versions that others made of it, if any."""
        others = [version for version in self.versions if not self.owns_version(version)]
        used = {copy.model_id: sorted(one.place for one in others if copy.is_used_by(one)) for copy in self.copies}
        own_ids = {copy.model_id for copy in self.copies if self.owns_copy(copy)}
        return {model_id: places for model_id, places in used.items() if places or model_id not in own_ids}

    def search(self, copies: Sequence[Copy]) -> Iterator[tuple[Copy, int, int | None]]:
        """Yield each copy with the number of these users in it, and its number of vectors (rows); rows 0: nothing is left of it.

        rows None: it could not be searched, because it refers to a folder on another machine or may not be read. A copy that
        refers to an export of this root holds no files itself.
        """
        known = {digest_file(folder / EXPORT_MANIFEST): folder for folder in self.found_in}
        for copy in copies:
            is_ours, is_copy = self.owns_copy(copy), copy.tags.get("storage") == "copy"
            folder = known.get(copy.tags["manifest_sha256"]) if is_ours and copy.is_ready else None
            if is_ours and is_copy:
                yield copy, *(self._search_export(folder) if folder else self._search_copy(copy))
            elif not is_ours:
                try:
                    folder = local_folder(copy.tags.get("export_uri", "")) or Path()
                    yield copy, *(self._search_copy(copy) if is_copy else self._search_export(folder))
                except (SurfError, OSError):
                    yield copy, 0, None

    def _search_export(self, folder: Path) -> tuple[int, int]:
        found = self.found_in[folder] if folder in self.found_in else count_users(folder, self.wanted)
        return found, read_json(folder / EXPORT_MANIFEST)["num_users"]

    def _search_copy(self, copy: Copy) -> tuple[int, int]:
        """Read the files of a copy that may name users. An incomplete upload or removal counts as empty."""
        found = rows = 0
        with open_scratch_folder(self.root, "forget") as scratch:
            path = self._download(copy, EXPORT_MANIFEST, scratch)
            manifest = read_json(path) if path else {}
            for name in list_named(manifest, self.wanted) if manifest else ():
                path = self._download(copy, name, scratch)
                if path is None:
                    return 0, 0
                way_out = f"it is {name} of {copy.location}: the `surf2vec run` that registered it repairs it"
                verify_once(path, list_files(manifest)[name], way_out)
                ids = pq.read_table(path, columns=["user_id"])["user_id"]
                found, rows = found + int(np.asarray(self.wanted.find(ids)).sum()), rows + len(ids)
                path.unlink()
        return found, rows

    def _download(self, copy: Copy, name: str, folder: Path) -> Path | None:
        place = f"{copy.location.rstrip('/')}/{copy.tags['export_path']}/{name}"
        with suppress(DamageError):  # it is missing
            return download(self.uri, place, folder, name)
        return None


def remove_releases(copies: Copies, on_event: OnEvent) -> list[str]:
    """Remove everything of the root that has the users: versions, then their copies, then exports. Returns what was removed.

    If it is killed, the same call continues: whatever is needed to find a copy is removed last.
    """
    exports = [folder for folder, found in copies.found_in.items() if found]
    digests = {digest_file(folder / EXPORT_MANIFEST) for folder in exports}
    removable = [copy for copy in copies.copies if copy.model_id not in copies.kept]
    digests |= {copy.tags["manifest_sha256"] for copy, found, _ in copies.search(removable) if found}
    removed = []
    for version in copies.versions:
        if version.tags.get("manifest_sha256") in digests and copies.owns_version(version):
            tracking.delete_version(copies.uri, version)
            removed.append(version.place)
    for copy in removable:
        if copy.tags["manifest_sha256"] in digests or not copy.is_ready:
            tracking.delete_model(copies.uri, copy.model_id)
            removed.append(copy.location)
    forget_releases(copies.root, {folder.name for folder in exports})
    for folder in exports:
        remove_folder(folder)
        removed.append(str(folder))
    for place in removed:
        log(on_event, f"removed {place}")
    return removed


def search_everywhere(copies: Copies) -> tuple[list[Searched], list[Searched]]:
    """Return every place of this root, and the copies in the registry that it may not remove.

    Those have `used_by`, others' versions of them, and `is_here`, if they could be searched. A row group is in memory at a time.
    """
    root, wanted = copies.root, copies.wanted
    exports = list_folders(root.path / "export", "*")
    names = ["events", "rejects", ".tmp", "tune"]
    names += [str(folder.relative_to(root.path)) for folder in [*list_folders(root.path / "corpus", "*"), *exports]]
    places = [_search_files(root, name, wanted) for name in names]
    places += [_search_index(folder) for folder in exports]
    places += _search_store(root)
    others = []
    for copy, found, rows in copies.search(copies.copies):
        place: Searched = {"place": f"registry: {copy.location}", "rows": rows or 0, "found": found}
        if copy.model_id in copies.kept:
            others.append(place | {"used_by": copies.kept[copy.model_id], "is_here": rows is not None})
        else:
            places.append(place)
    folders = [copy.folder.resolve() for copy in copies.copies if copy.model_id in copies.kept and copy.folder]
    return [*places, _search_files(root, "mlartifacts", wanted, folders)], others


def _search_files(root: Root, name: str, wanted: UserSet, skipped: Sequence[Path] = ()) -> Searched:
    """Search all Parquet files with user ids under a folder, including hidden files and leftovers, except those in `skipped`."""
    rows = found = 0
    for path in sorted((root.path / name).rglob("*.parquet")):
        if any(path.resolve().is_relative_to(one) for one in skipped):
            continue
        try:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                rows += file.metadata.num_rows
                if "user_id" in file.schema_arrow.names:
                    for batch in file.iter_batches(BATCH_ROWS, columns=["user_id"]):
                        found += int(np.asarray(wanted.find(batch["user_id"])).sum())
        except (OSError, pa.ArrowException) as error:
            raise DamageError(
                f"{path} cannot be read ({error}), so it cannot be searched; remove it or restore a copy, "
                "then run the same command again"
            ) from None
    return {"place": name, "rows": rows, "found": found}


def _search_index(folder: Path) -> Searched:
    """Return the rows of an index, and how many it has beyond the vectors of its export."""
    release = open_folder(folder)
    name = release.manifest["index"]["file"]
    index: Any = faiss.read_index(str(release.path(name)), faiss.IO_FLAG_MMAP_IFC)
    surplus = index.ntotal - release.first[-1]
    return {"place": f"export/{folder.name}/{name}", "rows": index.ntotal, "found": abs(surplus)}


def _search_store(root: Root) -> Iterator[Searched]:
    """Yield the rows of each generation, and how many it has beyond its corpus, which was searched by name."""
    if not current_generation(root):
        return
    for path in [root.store / STORE_MANIFEST, *root.pinned()]:
        generation = Generation(root.store, read_manifest(path))
        corpus = root.corpus(generation.manifest["window_id"])
        num_users = open_corpus(corpus).users.tolist() if corpus.exists() else [0] * generation.num_partitions
        rows = surplus = 0
        for partition, entry in generation.manifest["users"].items():
            num_rows = len(read_rows(root.store, entry).squares)
            rows, surplus = rows + num_rows, surplus + abs(num_rows - num_users[int(partition)])
        yield {"place": f"store/{path.relative_to(root.store)}", "rows": rows, "found": surplus}
