"""A release out of the registry, in the export's layout: what a downstream job reads every morning.

Of a release that was registered by reference the registry has the manifest; the files come from the folder it refers to.
Each file is checked against the manifest as it arrives, and the folder appears whole or not at all. What is there
already, in the folder or of a pull that was killed, is not fetched again.
"""

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from tasks.export.export import EXPORT_MANIFEST, list_files
from tasks.export.without_users import count_users, erase_from_export
from tasks.registry import tracking
from tasks.registry.tracking import Version
from tasks.registry.whole_folder import hold_folder, is_there, put_in_place, take_over
from tasks.root.credentials import mask_credentials
from tasks.users.tombstones import NOBODY, Tombstones
from tasks.users.user_set import want_forgotten
from trainer.errors import DamageError, InputError
from trainer.events import OnEvent, ignore_event
from trainer.system.files import digest_file, read_json, verify_file

COPY_BYTES = 1 << 20
LEAVE_OUT_BYTES = 4 * 10**9  # of memory, to build the index anew
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")


@dataclass
class Fetcher:
    """Gets files of releases out of a registry, checked; counts and reports their bytes, those of manifests not."""

    tracking_uri: str
    on_event: OnEvent
    total_bytes: int = 0
    done_bytes: int = 0
    fetched_bytes: int = 0

    def get_manifest(self, version: Version, target: Path) -> dict[str, Any]:
        """The release's manifest, which is then also in `target`."""
        _fetch(self.tracking_uri, version, EXPORT_MANIFEST, target)
        return _read_manifest(target, version)

    def get(self, version: Version, name: str, about: dict[str, Any], target: Path) -> None:
        """Bring a file of the release to `target`, unless it is there. Raises DamageError, naming it, for a corrupt one."""
        if not is_there(target, about):
            arriving = target.with_name(f"{target.name}.part")
            _fetch(self.tracking_uri, version, name, arriving)
            _verify(arriving, about, name, version)
            os.replace(arriving, target)
            self.fetched_bytes += about["bytes"]

    def list_versions(self, name: str) -> list[Version]:
        """The versions of a model that are registered."""
        return tracking.get_registered(self.tracking_uri, name).versions

    def count(self, num_bytes: int) -> None:
        """Report so many bytes more as done."""
        self.done_bytes += num_bytes
        progress = {"step": "pull", "done": self.done_bytes, "total": self.total_bytes, "unit": "bytes"}
        self.on_event("progress", progress)


def pull(
    uri: str, out: Path, tracking_uri: str, on_event: OnEvent = ignore_event, forgotten: Tombstones = NOBODY
) -> dict[str, Any]:
    """Bring the release that `uri` (`models:/NAME@champion`, `models:/NAME/3`) names to the folder `out`.

    A whole copy of it that is there already is left as it is; another export there is replaced. Users who were `forgotten` after
    it was made are left out; its manifest then says how many. Raises InputError for an unknown name, alias or version and for
    an `out` that holds something else, DamageError naming a corrupt file.
    """
    check_out(out)
    version = find_version(uri, tracking_uri)
    fetcher = Fetcher(tracking_uri, on_event)
    with (
        hold_folder(out, lambda line: on_event("log", {"message": line})) as gathered,
        tempfile.TemporaryDirectory() as scratch,
    ):
        manifest = fetcher.get_manifest(version, Path(scratch) / EXPORT_MANIFEST)
        num_forgotten = 0
        if not _is_whole(out, Path(scratch) / EXPORT_MANIFEST) or _count_forgotten(out, forgotten):
            fill(gathered, version, Path(scratch) / EXPORT_MANIFEST, fetcher, out)
            num_forgotten = _leave_out(gathered, forgotten, on_event)
            put_in_place(gathered, out, {EXPORT_MANIFEST, *list_files(read_json(gathered / EXPORT_MANIFEST))})
        else:
            shutil.rmtree(gathered)  # the older folder, of a pull that was killed right after the new one was in place
    users = {"num_users": manifest["num_users"] - num_forgotten, "users_forgotten": num_forgotten}
    return tell(manifest, version, out, fetcher) | users


def _leave_out(folder: Path, forgotten: Tombstones, on_event: OnEvent) -> int:
    """Take users who were forgotten out of an export that was fetched; returns how many."""
    num_forgotten = _count_forgotten(folder, forgotten)
    if num_forgotten:
        on_event("log", {"message": f"{num_forgotten:,} users who were forgotten since are left out"})
        erase_from_export(
            folder, want_forgotten(forgotten), LEAVE_OUT_BYTES, {"users_forgotten": num_forgotten}, folder
        )
    return num_forgotten


def _count_forgotten(folder: Path, forgotten: Tombstones) -> int:
    return count_users(folder, read_json(folder / EXPORT_MANIFEST), want_forgotten(forgotten)) if forgotten else 0


def fill(gathered: Path, version: Version, manifest_path: Path, fetcher: Fetcher, older: Path | None) -> None:
    """Gather all files of a release: what `older` has of the same bytes is taken from there, the rest from the registry."""
    files = list_files(read_json(manifest_path))
    fetcher.total_bytes = sum(about["bytes"] for about in files.values())
    for name, about in files.items():
        target = gathered / name
        if not is_there(target, about) and not (older and take_over(older / name, about, target)):
            fetcher.get(version, name, about, target)
        fetcher.count(about["bytes"])
    shutil.copyfile(manifest_path, gathered / EXPORT_MANIFEST)


def tell(manifest: dict[str, Any], version: Version, out: Path, fetcher: Fetcher) -> dict[str, Any]:
    """What came of a pull."""
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
    """The version that `models:/NAME@alias` or `models:/NAME/3` names. Raises InputError saying what there is."""
    match = _MODEL_URI.fullmatch(uri)
    if not match:
        raise InputError(f"{uri!r} is no model: write models:/surf2vec-users@champion or models:/surf2vec-users/3")
    place = mask_credentials(tracking_uri)
    if tracking_uri.startswith("sqlite:///") and not Path(tracking_uri.removeprefix("sqlite:///")).exists():
        # MLflow would make an empty one.
        raise InputError(f"there is no registry at {place}: see that --root or the tracking URI is right")
    there = tracking.get_registered(tracking_uri, match["name"])
    if not there.versions:
        names = ", ".join(tracking.list_models(tracking_uri)) or "none: register a release first"
        raise InputError(f"{place} has no model {match['name']!r} with a version; its models are {names}")
    number = int(match["version"] or there.aliases.get(match["alias"], 0))
    version = next((one for one in there.versions if one.number == number), None)
    if version is None:
        aliases = ", ".join(f"@{alias} (version {number})" for alias, number in there.aliases.items()) or "no alias"
        newest = ", ".join(str(one.number) for one in there.versions[-10:])
        raise InputError(f"{place} has no {uri}; it has {aliases}, and of the versions the newest are {newest}")
    if "export_path" not in version.tags:
        raise InputError(f"{uri} was not registered by surf2vec: it names no export to pull")
    return version


def _fetch(tracking_uri: str, version: Version, name: str, target: Path) -> None:
    """Copy one file of the release to `target`: out of the registry, or from the folder that the version refers to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if "export_uri" in version.tags and name != EXPORT_MANIFEST:
        _copy_file(referenced_folder(version), name, target, version)
        return
    tracking.download_file(tracking_uri, version, f"{version.tags['export_path']}/{name}", target)


def referenced_folder(version: Version) -> Path:
    """The folder that the version refers to. Raises DamageError when it is not there."""
    uri = version.tags["export_uri"]
    folder = Path(unquote(urlsplit(uri).path))
    if not uri.startswith("file:///") or not folder.is_dir():
        raise DamageError(
            f"{_place(version)} was registered by reference to {uri}, which is not on this machine: moved, deleted, or its disk "
            "is not mounted; nothing was changed: put that folder back as it was, or pull another version"
        )
    return folder


def _copy_file(folder: Path, name: str, target: Path, version: Version) -> None:
    """Copy one file out of the folder that the version refers to."""
    try:
        with open(folder / name, "rb") as source, open(target, "wb") as copy:
            shutil.copyfileobj(source, copy, COPY_BYTES)
    except OSError as error:
        if error.filename != str(folder / name):
            raise
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise DamageError(
            f"{name} of {_place(version)} {problem} in {folder}, which it refers to; nothing was changed: put that file back, "
            "or pull another version"
        ) from None


def _read_manifest(path: Path, version: Version) -> dict[str, Any]:
    """The release's manifest, if it is the one that was registered and names only files inside the export."""
    if digest_file(path) != version.tags["manifest_sha256"]:
        raise DamageError(
            f"{EXPORT_MANIFEST} of {_place(version)} is not the one that was registered: its bytes were altered"
        )
    manifest = read_json(path)
    for name in list_files(manifest):
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise DamageError(f"{EXPORT_MANIFEST} of {_place(version)} names {name!r}, which is outside the export")
    return manifest


def _verify(path: Path, about: dict[str, Any], name: str, version: Version) -> None:
    """Raise DamageError, in words of the registry, unless the file is the one of the manifest."""
    try:
        verify_file(path, about)
    except DamageError as error:
        reason = str(error).removeprefix(f"{path} ")
        raise DamageError(
            f"{name} of {_place(version)} {reason}; nothing was changed: pull another version, or register it again; "
            "what was fetched whole is kept for the same command"
        ) from None


def _is_whole(out: Path, manifest_path: Path) -> bool:
    """Whether `out` is the release of this manifest, every byte of it."""
    if not (out / EXPORT_MANIFEST).exists() or (out / EXPORT_MANIFEST).read_bytes() != manifest_path.read_bytes():
        return False
    return all(is_there(out / name, about) for name, about in list_files(read_json(manifest_path)).items())


def check_out(out: Path) -> None:
    """Raise InputError when replacing `out` would remove something that is no export."""
    if out.exists() and not (out / EXPORT_MANIFEST).exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is no export: give --out an empty or new folder, or an earlier pull")


def _place(version: Version) -> str:
    return f"models:/{version.name}/{version.number}"
