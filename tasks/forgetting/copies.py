"""Which releases, in the root and in the registry, have users who are to be forgotten, and the removal of those that do.

A release is known by the sha256 of its export's manifest: its export in the root, the logged models that hold a copy of it, and
the versions made of these have it. What the root has an export of is looked at there; of other copies the registry sends the
manifest and the files that can have any of the users.

Only what this root registered goes (`tasks/registry/ownership.py`), and no copy while a version of somebody else is
made of it. Copies that stay are searched all the same, and named.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow.parquet as pq

from tasks.config import PublishConfig
from tasks.export.export import EXPORT_MANIFEST, list_files
from tasks.export.without_users import count_in_export, list_named
from tasks.registry import tracking
from tasks.registry.ownership import Ownership
from tasks.registry.promotion import read_registry
from tasks.registry.tracking import Copy, Version
from tasks.root.identity import has_registry, registry_uri
from tasks.root.run import Root, forget_releases
from tasks.upkeep.gc import remove_folder
from tasks.users.user_set import UserSet
from trainer.errors import DamageError, SurfError
from trainer.events import OnEvent
from trainer.system.files import digest_file, read_json, verify_once


@dataclass(frozen=True)
class Searched:
    """A copy of an export: how many of the users it has, and how many vectors were looked at; rows 0: nothing is left of it.

    `is_here`: whether it could be searched; what refers to a folder on another machine, or may not be read, cannot.
    """

    found: int
    rows: int
    is_here: bool = True


@dataclass(frozen=True)
class Copies:
    """The exports of a root and their copies in a registry, none where nothing was ever registered."""

    root: Root
    publish: PublishConfig
    wanted: UserSet

    @property
    def uri(self) -> str:
        return registry_uri(self.root, self.publish)

    @cached_property
    def owner(self) -> Ownership:
        return Ownership(self.root, self.publish)

    @cached_property
    def champion(self) -> Version | None:
        """The version that serves, if this root registered it."""
        champion = read_registry(self.root, self.publish).champion
        return champion if champion and self.owner.owns_version(champion) else None

    @cached_property
    def versions(self) -> list[Version]:
        """The versions of all models in the registry."""
        return tracking.list_versions(self.uri) if has_registry(self.root, self.publish) else []

    @cached_property
    def exports(self) -> dict[Path, str]:
        """The exports in the root, with the digest of each one's manifest."""
        return {
            path.parent: digest_file(path) for path in sorted(self.root.path.glob(f"export/[!.]*/{EXPORT_MANIFEST}"))
        }

    @cached_property
    def found_in(self) -> dict[Path, int]:
        """How many of the users each export of the root has."""
        return {
            folder: count_in_export(folder, read_json(folder / EXPORT_MANIFEST), self.wanted) for folder in self.exports
        }

    @cached_property
    def logged(self) -> list[Copy]:
        return tracking.list_copies(self.uri) if has_registry(self.root, self.publish) else []

    @cached_property
    def kept(self) -> dict[str, list[str]]:
        """The logged models that stay, by their id, with the versions that others made of them, if any."""
        others = [version for version in self.versions if not self.owner.owns_version(version)]
        used = {
            copy.model_id: sorted(version.place for version in others if version.uses(copy)) for copy in self.logged
        }
        return {
            copy.model_id: used[copy.model_id]
            for copy in self.logged
            if used[copy.model_id] or not self.owner.owns_copy(copy)
        }

    @cached_property
    def removable(self) -> list[Copy]:
        return [copy for copy in self.logged if copy.model_id not in self.kept]

    def search(self, copies: list[Copy]) -> Iterator[tuple[Copy, Searched]]:
        """What is in each of the copies; one that refers to an export of this root holds nothing itself."""
        known = {
            digest: Searched(self.found_in[folder], read_json(folder / EXPORT_MANIFEST)["num_users"])
            for folder, digest in self.exports.items()
        }
        for copy in copies:
            if not self.owner.owns_copy(copy):
                yield copy, self._search_other(copy)
            elif copy.tags.get("storage") == "copy":
                there = known.get(copy.tags["manifest_sha256"]) if copy.is_ready else None
                yield copy, there or self._search_copy(copy)

    def _search_other(self, copy: Copy) -> Searched:
        """What is in a copy that another root made, or in the folder that it refers to, if that can be read."""
        folder = Path(unquote(urlsplit(copy.tags.get("export_uri", "")).path))
        try:
            if copy.tags.get("storage") == "copy":
                return self._search_copy(copy)
            manifest = read_json(folder / EXPORT_MANIFEST)
            return Searched(count_in_export(folder, manifest, self.wanted), manifest["num_users"])
        except (SurfError, OSError):
            return Searched(0, 0, is_here=False)

    def _search_copy(self, copy: Copy) -> Searched:
        found = rows = 0
        self.root.temporary.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.root.temporary, prefix=f"forget.{os.getpid()}.") as scratch:
            path = self._bring(copy, EXPORT_MANIFEST, Path(scratch))
            manifest = read_json(path) if path else {}
            for name in list_named(manifest, self.wanted) if manifest else ():
                path = self._bring(copy, name, Path(scratch))
                if path is None:
                    return Searched(0, 0)
                way_out = f"it is {name} of {copy.location}: the `surf2vec run` that registered it mends it"
                verify_once(path, list_files(manifest)[name], way_out)
                ids = pq.read_table(path, columns=["user_id"])["user_id"]
                found, rows = found + int(np.asarray(self.wanted.find(ids)).sum()), rows + len(ids)
                path.unlink()
        return Searched(found, rows)

    def _bring(self, copy: Copy, name: str, folder: Path) -> Path | None:
        """A file of a copy in the folder; None where an upload or a removal was cut short."""
        try:
            return tracking.download_copied(self.uri, copy, name, folder)
        except DamageError:
            return None


def remove_releases(copies: Copies, on_event: OnEvent) -> list[str]:
    """Remove all of the root's that the users are in: versions, then their copies, then exports. Return what went.

    Killed anywhere, the same call goes on: what leads to a copy goes last.
    """
    exports = [folder for folder, found in copies.found_in.items() if found]
    digests = {copies.exports[folder] for folder in exports}
    digests |= {copy.tags["manifest_sha256"] for copy, searched in copies.search(copies.removable) if searched.found}
    going = [copy for copy in copies.removable if copy.tags["manifest_sha256"] in digests or not copy.is_ready]
    removed = []
    for version in copies.versions:
        if version.tags.get("manifest_sha256") in digests and copies.owner.owns_version(version):
            tracking.delete_version(copies.uri, version)
            removed.append(version.place)
    for copy in going:
        tracking.delete_model(copies.uri, copy.model_id)
        removed.append(copy.location)
    forget_releases(copies.root, {folder.name for folder in exports})
    for folder in exports:
        remove_folder(folder)
        removed.append(str(folder))
    for place in removed:
        on_event("log", {"message": f"removed {place}"})
    return removed


def list_copied(copies: Copies) -> list[dict[str, Any]]:
    """The proof's lines of the registry: each copy, the rows that were searched, and how many of the users it has.

    Copies that stay have `used_by`, the versions that others made of them, and `is_here`, whether they could be searched.
    """
    places = []
    for copy, searched in copies.search(copies.logged):
        line = {"place": f"registry: {copy.location}", "rows": searched.rows, "found": searched.found}
        if copy.model_id in copies.kept:
            line |= {"used_by": copies.kept[copy.model_id], "is_here": searched.is_here}
        places.append(line)
    return places
