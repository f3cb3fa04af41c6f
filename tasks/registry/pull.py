"""Copies a release out of the registry, in the export's layout, for downstream jobs.

For a release by reference the registry has only the manifest; the files come from the folder that the version refers to.
Each file is checked against the manifest as it arrives. The folder appears complete or not at all.

During a pull, these are beside the folder `NAME`: `.NAME.pull.lock` (one pull at a time), `.NAME.pull.tmp` (files fetched so
far) and, for a moment, `.NAME.old.tmp`. A killed pull leaves the first two, and the next pull resumes from them.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surf2vec.tasks.export.without_users import count_users, erase_from_export
from surf2vec.tasks.registry.releases import list_versions, read_model
from surf2vec.tasks.registry.versions import Version, local_folder
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, README, check_manifest, check_tables, leads_outside
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.users.tombstones import NOBODY, Tombstones
from surf2vec.tasks.users.user_set import want_forgotten
from surf2vec.trainer.errors import DamageError, InputError, ResourceError
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.system.files import (
    digest_file,
    link_file,
    lock,
    make_folder,
    put_folder,
    read_json,
    restore_folder,
    sync_tree,
    verify_file,
    verify_size,
)

LEAVE_OUT_BYTES = 4 * 10**9  # memory for rebuilding the index
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")


@dataclass
class Fetcher:
    """Copies files of releases out of a registry and checks them. Counts and reports their bytes, except those of manifests.

    tag: of the version, with the folder of the files: its export or its state.
    """

    tracking_uri: str
    on_event: OnEvent
    tag: str = "export_path"
    step: str = "pull"
    fetched_bytes: int = 0

    def get_manifest(self, version: Version, target: Path, digest_tag: str = "manifest_sha256") -> Any:
        """Return the manifest, of any form, and write it to `target`. Raises DamageError unless it is the registered one."""
        _fetch(self.tracking_uri, version, EXPORT_MANIFEST, target, self.tag)
        if digest_file(target) != version.tags[digest_tag]:
            what = f"{version.tags[self.tag]}/{EXPORT_MANIFEST} of {version.place}"
            raise DamageError(f"{what} is not the one that was registered: its bytes were altered")
        return read_json(target)

    def get(self, version: Version, name: str, about: dict[str, Any], target: Path) -> None:
        """Copy a file of the release to `target`, unless it is there. Raises DamageError with its name if it is corrupt."""
        if is_whole(target, about):
            return
        arriving, what = target.with_name(f"{target.name}.part"), f"{name} of {version.place}"
        if (source := _find_source(version, name, self.tag)) and source.exists():
            _check(verify_size, source, about, what)  # before it is copied: it may be larger than the disk
        _fetch(self.tracking_uri, version, name, arriving, self.tag)
        _check(verify_file, arriving, about, what)
        os.replace(arriving, target)
        self.fetched_bytes += about["bytes"]

    def get_all(self, version: Version, files: dict[str, dict[str, Any]], folder: Path, older: Path | None) -> None:
        """Gather files of a release in `folder`: link those that `older` has with the same bytes, and copy the rest.

        Raises DamageError for a name that leads outside the folder.
        """
        total_bytes, done_bytes = sum(about["bytes"] for about in files.values()), 0
        for name, about in files.items():
            if leads_outside(name):
                raise DamageError(f"the manifest of {version.place} names {name!r}, which is outside its folder")
            target = folder / name
            if older and not is_whole(target, about) and is_whole(older / name, about):
                target.unlink(missing_ok=True)
                link_file(older / name, target)
            self.get(version, name, about, target)
            done_bytes += about["bytes"]
            log_progress(self.on_event, self.step, done_bytes, total_bytes, "bytes")


def pull(
    uri: str, out: Path, tracking_uri: str, on_event: OnEvent = ignore_event, forgotten: Tombstones = NOBODY
) -> dict[str, Any]:
    """Copy the release that `uri` (`models:/NAME@champion`, `models:/NAME/3`) names to the folder `out`.

    A complete copy of it in `out` is not changed; another export in `out` is replaced. Users `forgotten` after the export are
    left out, and the manifest has their number. Raises InputError for an unknown name, alias or version and if `out` holds
    something else; DamageError with the name of a corrupt file.
    """
    check_out(out)
    version = find_version(uri, tracking_uri)
    fetcher = Fetcher(tracking_uri, on_event)
    with hold_folder(out, on_event) as gathered, tempfile.TemporaryDirectory(dir=gathered) as scratch:
        path, out_path = Path(scratch) / EXPORT_MANIFEST, out / EXPORT_MANIFEST
        manifest = check_manifest(fetcher.get_manifest(version, path), f"{EXPORT_MANIFEST} of {version.place}")
        is_same = out_path.exists() and out_path.read_bytes() == path.read_bytes()
        is_complete = is_same and all(is_whole(out / name, about) for name, about in list_files(manifest).items())
        num_forgotten = 0
        if is_complete and not _count_forgotten(out, forgotten):
            shutil.rmtree(gathered)  # the replaced folder, left by a pull that was killed after the exchange
        else:
            fetcher.get_all(version, list_files(manifest), gathered, out)
            check_tables(gathered, manifest)
            shutil.copyfile(path, gathered / EXPORT_MANIFEST)
            if num_forgotten := _count_forgotten(gathered, forgotten):
                log(on_event, f"{num_forgotten:,} users who were forgotten since are left out")
                values = {"users_forgotten": num_forgotten}
                erase_from_export(gathered, want_forgotten(forgotten), LEAVE_OUT_BYTES, values, gathered)
            put_in_place(gathered, out, {EXPORT_MANIFEST, *list_files(read_json(gathered / EXPORT_MANIFEST))})
    users = {"num_users": manifest["num_users"] - num_forgotten, "users_forgotten": num_forgotten}
    return describe_pull(manifest, version, out, fetcher) | users


def _count_forgotten(folder: Path, forgotten: Tombstones) -> int:
    return count_users(folder, want_forgotten(forgotten)) if forgotten else 0


def describe_pull(manifest: dict[str, Any], version: Version, out: Path, fetcher: Fetcher) -> dict[str, Any]:
    return {
        "release": manifest["release"],
        "out": str(out),
        "model_name": version.name,
        "model_version": version.number,
        "num_users": manifest["num_users"],
        "num_items": manifest["num_items"],
        "bytes": sum(about["bytes"] for about in list_files(manifest).values()),
        "fetched_bytes": fetcher.fetched_bytes,
    }


def find_version(uri: str, tracking_uri: str) -> Version:
    """Return the version that `models:/NAME@alias` or `models:/NAME/3` names. Raises InputError with the available ones."""
    match = _MODEL_URI.fullmatch(uri)
    if not match:
        raise InputError(f"{uri!r} is not a model: write models:/surf2vec-users@champion or models:/surf2vec-users/3")
    place = mask_credentials(tracking_uri)
    if tracking_uri.startswith("sqlite:///") and not Path(tracking_uri.removeprefix("sqlite:///")).exists():
        # MLflow would make an empty one.
        raise InputError(f"there is no registry at {place}: see that --root or the tracking URI is right")
    registered = read_model(tracking_uri, match["name"])
    if not registered.versions:
        names = ", ".join(sorted({one.name for one in list_versions(tracking_uri)})) or "none: register a release first"
        raise InputError(f"{place} has no model {match['name']!r} with a version; its models are {names}")
    version = registered.get(int(match["version"] or registered.aliases.get(match["alias"], 0)))
    if version is None:
        aliases = ", ".join(f"@{one} (version {number})" for one, number in registered.aliases.items()) or "no alias"
        newest = ", ".join(str(one.number) for one in registered.versions[-10:])
        raise InputError(f"{place} has no {uri}; it has {aliases}, and of the versions the newest are {newest}")
    if "export_path" not in version.tags:
        raise InputError(f"{uri} was not registered by surf2vec: it names no export to pull")
    return version


def _fetch(tracking_uri: str, version: Version, name: str, target: Path, tag: str) -> None:
    """Copy one file of the release to `target`: from a folder on this machine, or else through MLflow."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = _find_source(version, name, tag)
    if source is None:
        from surf2vec.tasks.registry import tracking  # imports MLflow, which a registry on this machine does not need

        tracking.download_file(tracking_uri, version, f"{version.tags[tag]}/{name}", target)
        return
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        if error.filename != str(source):
            raise
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise DamageError(
            f"{name} of {version.place} {problem} in {source.parents[name.count('/')]}; nothing was changed: put that file back, "
            "or pull another version"
        ) from None


def _find_source(version: Version, name: str, tag: str) -> Path | None:
    """Return where a file of the release is on this machine; None if MLflow has to copy it."""
    if "export_uri" in version.tags and (tag != "export_path" or name != EXPORT_MANIFEST):
        return referenced_folder(version) / ("" if tag == "export_path" else version.tags[tag]) / name
    return version.folder / version.tags[tag] / name if version.folder else None


def _check(verify: Callable[[Path, dict[str, Any]], None], path: Path, about: dict[str, Any], what: str) -> None:
    """Verify a file of a release against its manifest. Raises DamageError that calls it `what`."""
    try:
        verify(path, about)
    except DamageError as error:
        raise DamageError(
            f"{what} {str(error).removeprefix(f'{path} ')}; nothing was changed: pull another version, or register it again"
        ) from None


def referenced_folder(version: Version) -> Path:
    """Return the folder that the version refers to. Raises DamageError if it does not exist."""
    uri = version.tags["export_uri"]
    folder = local_folder(uri)
    if folder is None or not uri.startswith("file:///") or not folder.is_dir():
        raise DamageError(
            f"{version.place} was registered by reference to {uri}, which is not on this machine: moved, deleted, or its disk "
            "is not mounted; nothing was changed: restore that folder, or pull another version"
        )
    return folder


def check_out(out: Path) -> None:
    """Raise InputError if `out` contains anything but a release, which a pull replaces with all that is in the folder."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    problem = f"{out} exists and is not an export"
    try:
        manifest = read_json(out / EXPORT_MANIFEST)
        known = manifest["files"] if "since" in manifest else list_files(check_manifest(manifest, str(out)))
        files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_symlink() or not path.is_dir()}
        if not (others := sorted(files - {EXPORT_MANIFEST, README, *known})):
            return
        problem = f"{out} has files that its export does not name, such as {others[0]}"
    except (DamageError, OSError, KeyError, TypeError):
        pass
    raise InputError(f"{problem}: nothing was changed; use an empty or new folder for --out, or an earlier pull")


@contextmanager
def hold_folder(out: Path, on_event: OnEvent) -> Iterator[Path]:
    """Yield a temporary folder that is to become `out`. Waits for another pull into `out`.

    Raises ResourceError if it cannot be written to. Gathered files are kept if the block raises.
    """
    gathered, locked = (out.with_name(f".{out.name}.pull.{kind}") for kind in ("tmp", "lock"))
    try:
        make_folder(out.parent)
        with lock(locked, on_wait=lambda _: log(on_event, f"waiting for another pull into {out}")):
            restore_folder(out)
            gathered.mkdir(exist_ok=True)
            try:
                yield gathered
            finally:
                with suppress(OSError):
                    gathered.rmdir()  # if nothing is in it
                locked.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"cannot write {out}: {reason}; free that disk, then run the same command again") from None


def put_in_place(gathered: Path, out: Path, names: set[str]) -> None:
    """Remove all files but `names` from `gathered`, then rename it to `out`, durably and in one step."""
    for path in sorted(gathered.rglob("*"), reverse=True):
        if path.is_dir():
            with suppress(OSError):
                path.rmdir()  # if empty
        elif str(path.relative_to(gathered)) not in names:
            path.unlink()
    sync_tree(gathered)
    put_folder(gathered, out)


def is_whole(path: Path, about: dict[str, Any]) -> bool:
    try:
        verify_file(path, about)
    except DamageError:
        return False
    return True
