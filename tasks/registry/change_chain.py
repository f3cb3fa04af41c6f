"""The changes of several releases, one after another, as one: what the newest of them says of a row holds.

A release names the release that it builds on, by the checksum of that one's manifest (tasks/export/changes.py); so the links are
followed back through the registry, and cannot lead to another release of the same name.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.export.changes import CHANGES
from tasks.export.export import list_files
from tasks.registry.pull import Fetcher
from tasks.registry.tracking import Version
from trainer.system.files import read_json
from trainer.system.units import size

KEYS = {"users": "user_id", "items": "url"}


@dataclass(frozen=True)
class Link:
    """What one release changed: its version, the entries of its files, and the folder where they are once fetched."""

    version: Version
    files: dict[str, dict[str, Any]]
    folder: Path

    @property
    def bytes(self) -> int:
        return sum(about["bytes"] for about in self.files.values())

    def fetch(self, fetcher: Fetcher) -> None:
        for name, about in self.files.items():
            fetcher.get(self.version, name, about, self.folder / name)

    def read(self, name: str) -> pa.Table | None:
        """The rows of a file as `user_vectors/part-00003.parquet` that changed; None where none did."""
        path = self.folder / CHANGES / name
        return pq.read_table(path) if f"{CHANGES}/{name}" in self.files else None

    def read_names(self, kind: str) -> pa.ChunkedArray:
        """The users' ids, or items' urls, of all rows that changed."""
        paths = [self.folder / name for name in self.files if name.startswith(f"{CHANGES}/{kind[:-1]}_vectors/")]
        columns = [pq.read_table(path, columns=[KEYS[kind]]).column(0) for path in paths]
        return join(columns)

    @cached_property
    def removed(self) -> dict[str, pa.ChunkedArray]:
        """Of users and items: the ids, or urls, of rows that are gone."""
        return {kind: pq.read_table(self.folder / CHANGES / f"removed_{kind}.parquet").column(0) for kind in KEYS}


def find_links(
    target: Version, since_digest: str, fetcher: Fetcher, folder: Path, scratch: Path
) -> tuple[list[Link], str]:
    """The links from the release whose manifest has `since_digest` to `target`, oldest first; or why there are none.

    Manifests go to `scratch`, where that of `target` is as manifest.json; the files will go to `folder`/.links/VERSION.
    """
    by_digest = {version.tags.get("manifest_sha256"): version for version in fetcher.list_versions(target.name)}
    manifest = read_json(scratch / "manifest.json")
    worth_bytes = sum(about["bytes"] for name, about in list_files(manifest).items() if not name.startswith(CHANGES))
    links: list[Link] = []
    version, digest = target, target.tags["manifest_sha256"]
    while digest != since_digest:
        if links:
            manifest = fetcher.get_manifest(version, scratch / f"{version.number}.json")
        if "changes" not in manifest:
            return [], f"version {version.number} does not say what it changed"
        changes = manifest["changes"]
        links.insert(0, Link(version, changes["files"], folder / ".links" / str(version.number)))
        if sum(link.bytes for link in links) >= worth_bytes:
            return [], f"{len(links):,} releases changed no less than the {size(worth_bytes)} of the whole one"
        digest = changes["since_manifest_sha256"]
        if digest not in by_digest and digest != since_digest:
            gone = f"release {changes['since']}, which version {version.number} builds on"
            return [], f"{gone}, is not in the registry any more"
        version = by_digest.get(digest, version)
    return links, ""


def fold_rows(links: list[Link], name: str) -> pa.Table | None:
    """The rows of a file that changed over all links, each as the newest has it; None where none did."""
    kind = "users" if name.startswith("user_vectors/") else "items"
    later = join([])
    parts: list[pa.Table] = []
    for link in reversed(links):
        rows = link.read(name)
        if rows is not None:
            parts.insert(0, rows.filter(pc.invert(pc.is_in(rows[KEYS[kind]], later))))
            later = join([later, rows[KEYS[kind]]])
        later = join([later, link.removed[kind]])
    return pa.concat_tables(parts) if any(len(part) for part in parts) else None


def fold_removed(links: list[Link], kind: str) -> pa.ChunkedArray:
    """The users' ids, or items' urls, that are gone after all links."""
    later, gone = join([]), []
    for link in reversed(links):
        removed = link.removed[kind]
        gone.append(removed.filter(pc.invert(pc.is_in(removed, later))))
        later = join([later, link.read_names(kind)])
    return join(gone)


def join(arrays: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Arrays of strings, one after another."""
    return pa.chunked_array([chunk for array in arrays for chunk in array.chunks], pa.string())
