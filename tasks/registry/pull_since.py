"""What changed between two releases, out of the registry: a few per cent of the bytes, where a night changed few rows.

Into a folder with a pull of the older release the changes are worked in; each file must then have the checksum of the full
one, or is fetched, so that the folder is byte for byte what a full pull makes. Into a new folder go the changes alone:

    user_vectors/part-00012.parquet, item_vectors/part-00000.parquet   rows that are new or other, in the export's layout
    removed_users.parquet, removed_items.parquet                       user_id, url: who is gone
    manifest.json                                                      from which release to which; rows, bytes, checksums

Where the links between the two are broken, whole releases are fetched and compared here.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.export.changes import (
    Difference,
    apply_to_items,
    apply_to_users,
    explain_incomparable,
    read_items,
    write_difference,
    write_removed,
    write_rows,
)
from tasks.export.export import EXPORT_MANIFEST, list_files, write_index
from tasks.export.index import FLAT, plan_flat
from tasks.export.vector_files import ITEM_ROW_GROUP_ROWS, USER_ROW_GROUP_ROWS, write_encoded
from tasks.registry.change_chain import Link, fold_removed, fold_rows, follow_links, join
from tasks.registry.pull import Fetcher, Provide, check_out, fill, find_version, is_whole, take_from, tell
from tasks.registry.tracking import Version
from tasks.registry.whole_folder import hold_folder, is_there, put_in_place, take_over
from trainer.errors import InputError
from trainer.events import OnEvent, ignore_event
from trainer.system.files import digest_file, read_json, write_manifest_json

FORMAT_VERSION = 1


class Forgotten(Protocol):
    """Who was forgotten (tasks/users/tombstones.py); false when nobody was."""

    def __bool__(self) -> bool: ...

    def is_forgotten(self, user_ids: Any) -> NDArray[np.bool_]: ...


@dataclass(frozen=True)
class Pulling:
    """A pull under way: to which version, from which, the folders, and what it fetches with."""

    target: Version
    since: int
    out: Path
    gathered: Path
    scratch: Path
    fetcher: Fetcher
    forgotten: Forgotten | None

    @property
    def manifest_path(self) -> Path:
        return self.scratch / EXPORT_MANIFEST

    def say(self, message: str) -> None:
        self.fetcher.on_event("log", {"message": message})

    def older(self) -> Version:
        """The version that is asked about. Raises InputError when it is not in the registry."""
        return find_version(f"models:/{self.target.name}/{self.since}", self.fetcher.tracking_uri)


def pull_since(
    uri: str,
    out: Path,
    since: int,
    tracking_uri: str,
    on_event: OnEvent = ignore_event,
    forgotten: Forgotten | None = None,
    leave_out: Callable[[Path], object] = lambda folder: None,
) -> dict[str, Any]:
    """Bring `out` from version `since` to the release of `uri`; a new `out` gets only what changed between them.

    Among changes users who were `forgotten` count as gone; `leave_out` takes them out of a whole release in a folder. Raises
    InputError when `out` holds another release than these two, or one that is needed is not in the registry.
    """
    check_out(out)
    target = find_version(uri, tracking_uri)
    with (
        hold_folder(out, lambda line: on_event("log", {"message": line})) as gathered,
        tempfile.TemporaryDirectory() as scratch,
    ):
        job = Pulling(target, since, out, gathered, Path(scratch), Fetcher(tracking_uri, on_event), forgotten)
        manifest = job.fetcher.get_manifest(target, job.manifest_path)
        held = read_json(out / EXPORT_MANIFEST) if (out / EXPORT_MANIFEST).exists() else None
        if is_whole(out, job.manifest_path) and not forgotten:
            shutil.rmtree(
                gathered
            )  # a pull that was killed right after its folder was in place left the older one here
            told = {"way": "nothing was to be done"}
        elif held is None or "since" in held:
            told = gather_changes(job, manifest)
        else:
            told = bring_up_to_date(job, manifest, held, leave_out)
    return tell(manifest, target, out, job.fetcher) | {"since": since} | told


def bring_up_to_date(
    job: Pulling, manifest: dict[str, Any], held: dict[str, Any], leave_out: Callable[[Path], object]
) -> dict[str, Any]:
    """Make the pull of an older release in `out` the pull of the target."""
    links, reason = _find_links(job, held)
    providers: list[Provide] = [lambda *file: take_from(job.out, *file)]
    if reason:
        job.say(f"{reason}: all files that differ are fetched whole")
    else:
        providers.append(Rebuilding(job, manifest, links).provide)
    fill(job.gathered, job.target, job.manifest_path, job.fetcher, providers)
    leave_out(job.gathered)
    put_in_place(job.gathered, job.out, {EXPORT_MANIFEST, *list_files(read_json(job.gathered / EXPORT_MANIFEST))})
    return {"way": reason or f"the changes of {len(links):,} releases were worked in"}


def _find_links(job: Pulling, held: dict[str, Any]) -> tuple[list[Link], str]:
    """The links from what `out` holds to the target, or why there are none. Raises InputError when it is not as asked."""
    if "users_forgotten" in held:
        return [], f"users who were forgotten are left out of what {job.out} holds"
    digest = digest_file(job.out / EXPORT_MANIFEST)
    known = {version.number: version for version in job.fetcher.list_versions(job.target.name)}
    if job.since in known and known[job.since].tags.get("manifest_sha256") != digest:
        holds = next((f"version {n}" for n, v in known.items() if v.tags.get("manifest_sha256") == digest), "another")
        raise InputError(
            f"{job.out} holds release {held['release']} ({holds}), not version {job.since}: say --since with the version that "
            "it holds, or give another --out"
        )
    return follow_links(job.target, digest, job.fetcher, job.gathered, job.scratch)


@dataclass(frozen=True)
class Rebuilding:
    """Makes files of the target out of the older release's in `out` and the changes; a Provide."""

    job: Pulling
    manifest: dict[str, Any]
    links: list[Link]

    @cached_property
    def fetched(self) -> list[Link]:
        """The links, oldest first, once all their files are here: only when a first file is to be made of them."""
        for link in self.links:
            link.fetch(self.job.fetcher)
        return self.links

    def provide(self, name: str, about: dict[str, Any], target: Path) -> bool:
        """Make the file, if it can be made; returns whether it is, byte for byte, the one of the release."""
        make = {"user_vectors": self._make_users, "item_vectors": self._make_items, "index": self._make_index}
        make_file = make.get(name.partition("/")[0])
        if make_file is None:
            return False
        try:
            if any(is_there(target, about) for _ in make_file(name, target)):
                return True
        except (OSError, pa.ArrowException) as error:
            self.job.say(f"{self.job.out / name} cannot be read ({error})")
        self.job.say(f"{name} cannot be made from the changes: it is fetched whole")
        return False

    def _make_users(self, name: str, target: Path) -> Iterator[None]:
        """By their ids, as releases have them; else in the places they had, with new ones last."""
        tables = [pq.read_table(self.job.out / name)] if (self.job.out / name).exists() else []
        for link in self.fetched:
            changed = link.read(name)
            tables = tables or ([] if changed is None else [changed[:0]])
            tables = [apply_to_users(table, changed, link.removed["users"]) for table in tables]
        for order in (sort_users, lambda rows: rows) if tables else ():
            write_encoded(target, [order(tables[0])], USER_ROW_GROUP_ROWS)
            yield

    def _make_items(self, name: str, target: Path) -> Iterator[None]:
        tables = read_items(self.job.out / name)
        for link in self.fetched:
            tables = apply_to_items(tables, link.read(name), link.removed["items"])
        write_encoded(target, tables, ITEM_ROW_GROUP_ROWS)
        yield

    def _make_index(self, name: str, target: Path) -> Iterator[None]:
        """The same users give the same index; their files come before it. A quantised one would take longer than to fetch it."""
        if self.manifest["index"]["kind"] == FLAT:
            plan = plan_flat(self.manifest["num_users"], self.manifest["vector_size"])
            write_index(self.job.gathered, self.manifest, plan)
            yield


def gather_changes(job: Pulling, manifest: dict[str, Any]) -> dict[str, Any]:
    """Make `out` a folder of what changed from the older version to the target."""
    older = job.older()
    links, reason = follow_links(job.target, older.tags["manifest_sha256"], job.fetcher, job.gathered, job.scratch)
    if reason:
        job.say(f"{reason}: both releases are fetched whole and compared")
        difference = _compare_whole(job, older)
    else:
        for link in links:
            link.fetch(job.fetcher)
        difference = _write_folded(job.gathered, links)
    difference = leave_out_changes(job.gathered, difference, job.forgotten)
    about: dict[str, Any] = {
        name: manifest[name] for name in ("release", "space_id", "vector_size", "storage") if name in manifest
    }
    about |= {"format_version": FORMAT_VERSION, "since": older.tags["release"], "since_version": older.number}
    about |= {"model_version": job.target.number, "files": difference.files} | difference.counts
    write_manifest_json(job.gathered / EXPORT_MANIFEST, about)
    put_in_place(job.gathered, job.out, {EXPORT_MANIFEST, *difference.files})
    return {"way": reason or f"the changes of {len(links):,} releases"} | difference.changed


def leave_out_changes(folder: Path, difference: Difference, forgotten: Forgotten | None) -> Difference:
    """The difference in a folder, written anew without users who were forgotten: they are among those who are gone."""
    if not forgotten:
        return difference
    files = dict(difference.files)
    gone = [pq.read_table(folder / f"removed_{kind}.parquet").column(0) for kind in ("users", "items")]
    for name in [name for name in files if name.startswith("user_vectors/")]:
        rows = pq.read_table(folder / name)
        is_forgotten = pa.array(forgotten.is_forgotten(rows["user_id"]))
        if pc.any(is_forgotten).as_py():
            gone[0] = join([gone[0], rows["user_id"].filter(is_forgotten)])
            (folder / name).unlink()
            entry = write_rows(folder / name, iter([rows.filter(pc.invert(is_forgotten))]))
            files = {other: about for other, about in files.items() if other != name} | ({name: entry} if entry else {})
    kept = {name: about for name, about in files.items() if not name.startswith("removed_")}
    return write_removed(folder, kept, *gone)


def _write_folded(folder: Path, links: list[Link]) -> Difference:
    """Write what all links changed as one difference."""
    names = sorted({name.partition("/")[2] for link in links for name in link.files if "_vectors/" in name})
    files = {}
    for name in names:
        rows = fold_rows(links, name)
        if rows is not None and (entry := write_rows(folder / name, iter([sort_users(rows)]))):
            files[name] = entry
    return write_removed(folder, files, fold_removed(links, "users"), fold_removed(links, "items"))


def sort_users(rows: pa.Table) -> pa.Table:
    """Users by their ids; items as they are."""
    return rows.take(pc.sort_indices(rows["user_id"])) if "user_id" in rows.column_names else rows


def _compare_whole(job: Pulling, older: Version) -> Difference:
    """Fetch both releases and write what differs. Of releases that are stored otherwise every row is another one."""
    folders, manifests = [], []
    for version, name in ((older, ".older"), (job.target, ".newer")):
        folder, manifest_path = job.gathered / name, job.scratch / f"{name}.json"
        manifests.append(job.fetcher.get_manifest(version, manifest_path))
        fill(folder, version, manifest_path, job.fetcher, [])
        folders.append(folder)
    (old_dir, new_dir), (old, new) = folders, manifests
    reason = explain_incomparable(old, new)
    if not reason:
        difference = write_difference(old_dir, old, new_dir, new, job.gathered, is_bounded=False)
        assert difference is not None
        return difference
    job.say(f"{reason}: every row counts as changed")
    files = {name: about for name, about in list_files(new).items() if name.startswith(("user_v", "item_v"))}
    for name, about in files.items():
        take_over(new_dir / name, about, job.gathered / name)
    gone = [_missing(old_dir, new_dir, kind, key) for kind, key in (("user", "user_id"), ("item", "url"))]
    return write_removed(job.gathered, files, *gone)


def _missing(old_dir: Path, new_dir: Path, kind: str, key: str) -> pa.ChunkedArray:
    """The ids that the files of one folder have and those of the other have not."""
    old, new = (join(list(_read_column(folder / f"{kind}_vectors", key))) for folder in (old_dir, new_dir))
    return old.filter(pc.invert(pc.is_in(old, new)))


def _read_column(folder: Path, key: str) -> Iterator[pa.ChunkedArray]:
    for path in sorted(folder.glob("*.parquet")):
        yield pq.read_table(path, columns=[key]).column(0)
