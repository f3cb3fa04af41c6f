"""Writes to a store: its lock, the next generation, pinned manifests, and the removal of files that no manifest names."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.store import manifests
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.images import Image, image_of, read_image, write_image
from surf2vec.trainer.store.layout import Delta
from surf2vec.trainer.store.manifests import STORE_MANIFEST, explain_damage, read_manifest, write_manifest
from surf2vec.trainer.system.files import (
    TEMPORARY_SUFFIX,
    lock,
    make_folder,
    raise_if_unwritten,
    read_json,
    sync_files,
    sync_folder,
)
from surf2vec.trainer.system.memory import Bytes

_DATA_FILE = re.compile(r"[a-z]+-\d{5}-g(\d{6,})\.safetensors")


@contextmanager
def lock_store(folder: Path, rank: int = 0) -> Iterator[None]:
    """Hold the store's writer lock, which the operating system releases when the process dies. Each worker has its own.

    Raises ResourceError, naming the process, when another trainer holds it.
    """

    def refuse(holder: str) -> None:
        raise ResourceError(f"{holder} is training on the store {folder}: wait for it, or use another store")

    with ExitStack() as held:
        try:
            make_folder(folder)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "no write permission")
            held.enter_context(lock(folder / (f".lock-{rank}" if rank else ".lock"), f"process {os.getpid()}", refuse))
        except OSError as error:
            raise ResourceError(
                f"cannot write to the store {folder}: {error.strerror}; use another folder or permit writing"
            ) from None
        yield


class Writer:
    """Writes the next generation of a store: files first, then the manifest that lists them.

    Not thread-safe. A file belongs to the next generation at the time it is written. A caller that writes a
    manifest itself, without `commit`, calls `sync` before. has_others: whether other workers write for the same generations.
    """

    def __init__(
        self, folder: Path, generation: int, users: dict[str, Any], items: dict[int, Any] | None = None,
        has_others: bool = False, tables: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`users`, `items`, `tables`: the entries that the next generation starts from, by micro-partition, block and part."""
        self.folder, self.generation = folder, generation
        self.users, self.items = dict(users), dict(items or {})
        self.has_others, self.tables = has_others, dict(tables or {})
        self._fresh: dict[str, dict[str, Any]] = {"users": {}, "items": {}}
        self._unsynced: set[str] = set()

    def has_users(self, partition: int) -> bool:
        """Return whether a file has vectors of this micro-partition."""
        return str(partition) in self.users

    def read_users(self, partition: int, spare: Bytes | None = None) -> Image:
        """Read the image of a micro-partition as last written, committed or not."""
        return self._read(self.users[str(partition)], spare)

    def read_items(self, block: int, spare: Bytes | None = None) -> Image:
        """Read the image of an item block as last written, committed or not."""
        return self._read(self.items[block], spare)

    def write_users(self, partition: int, image: Image) -> None:
        """Write a micro-partition; the next commit includes it."""
        entry = self._write(f"users-{partition:05d}", image)
        self.users[str(partition)] = self._fresh["users"][str(partition)] = entry

    def write_delta(self, partition: int, delta: Delta) -> None:
        """Write a delta beside a micro-partition's file, replacing an older delta; the next commit includes it."""
        entry = {name: value for name, value in self.users[str(partition)].items() if name != "delta"}
        written = self._write(f"delta-{partition:05d}", image_of(delta.arrays()))
        self.users[str(partition)] = entry | {"delta": written}

    def write_items(self, block: int, image: Image) -> None:
        """Write an item block; the next commit includes it."""
        self.items[block] = self._fresh["items"][str(block)] = self._write(f"items-{block:05d}", image)

    def read_table(self, part: str) -> Image | None:
        """Read the image of a part's item table as last written, committed or not; None if there is none."""
        return self._read(self.tables[part], None) if part in self.tables else None

    def write_table(self, part: str, image: Image) -> None:
        """Write the item table of a part beside the interest; the next commit includes it."""
        self.tables[part] = self._write(f"{part}-00000", image)

    def sync(self) -> None:
        """Wait until all files of this writer are on the disk, with their names. Raises ResourceError when that fails."""
        if self._unsynced:
            with raise_if_unwritten(self.folder, f"{len(self._unsynced):,} files"):
                sync_files(self.folder / name for name in self._unsynced)
                sync_folder(self.folder)
            self._unsynced.clear()

    def take_fresh(self) -> dict[str, dict[str, Any]]:
        """Return the entries of files written since the last call, by micro-partition and by block, with JSON keys."""
        fresh, self._fresh = self._fresh, {"users": {}, "items": {}}
        return fresh

    def add_written(self, fresh: dict[str, dict[str, Any]]) -> None:
        """Add the files that another writer wrote for this generation."""
        self.users |= fresh["users"]
        self.items |= {int(block): entry for block, entry in fresh["items"].items()}

    def commit(self, values: dict[str, Any]) -> Generation:
        """Commit the written files as the next generation, with `values` in its manifest; then remove unreferenced files."""
        items = [self.items.get(block) for block in range(values["num_blocks"])]  # None: not trained yet
        tables = values.get("tables", {}) | self.tables
        return self._put_manifest(values | {"users": dict(self.users), "items": items, "tables": tables})

    def commit_again(self, older: Generation, values: dict[str, Any]) -> Generation:
        """Commit the files of an older generation as the next one, to return to the best epoch."""
        names = ("users", "items", "tables", "num_blocks", "resident_block", "recency")
        kept = {name: older.manifest[name] for name in names if name in older.manifest}
        return self._put_manifest(values | kept)

    def _put_manifest(self, values: dict[str, Any]) -> Generation:
        manifest = values | {"format_version": manifests.FORMAT_VERSION, "generation": self.generation}
        self.sync()
        write_manifest(self.folder, STORE_MANIFEST, manifest)
        self.generation += 1
        remove_unreferenced(self.folder, before=self.generation if self.has_others else None)
        return Generation(self.folder, manifest)

    def _read(self, entry: dict[str, Any], spare: Bytes | None) -> Image:
        with explain_damage(self.folder):
            return read_image(self.folder / entry["file"], entry, spare)

    def _write(self, stem: str, image: Image) -> dict[str, Any]:
        name = f"{stem}-g{self.generation:06d}.safetensors"
        path = self.folder / name
        with raise_if_unwritten(self.folder, f"{name} ({image.num_bytes:,} bytes)"):
            if name not in self._unsynced:
                path.unlink(missing_ok=True)  # left by a killed run; not overwritten, as it may have hard links
            self._unsynced.add(name)
            try:
                written = write_image(path, image)
            except OSError:
                self._unsynced.discard(name)
                path.unlink(missing_ok=True)  # a partial file only takes space
                raise
        return {"file": name, **written}


def pin_generation(folder: Path, name: str) -> None:
    """Keep the files of the current generation under a name: a release's or "best"."""
    write_manifest(folder, f"pinned/{name}.json", open_generation(folder).manifest)


def open_pinned(folder: Path, name: str) -> Generation:
    """Return the generation pinned under a name. Raises DamageError when there is none."""
    return Generation(folder, read_manifest(folder / "pinned" / f"{name}.json"))


def find_pinned(folder: Path, name: str) -> Generation | None:
    """Return the pinned generation, or None if it is missing. Raises DamageError if it was altered."""
    with explain_damage(folder):
        return open_pinned(folder, name) if (folder / "pinned" / f"{name}.json").exists() else None


def unpin_best(folder: Path) -> None:
    """Unpin the generation that early stopping kept. The next commit or gc removes its files, unless a manifest names them."""
    (folder / "pinned" / "best.json").unlink(missing_ok=True)


def unpin_generations(folder: Path, keep: set[str]) -> None:
    """Unpin all releases but `keep`. The next commit or gc removes their files."""
    for path in (folder / "pinned").glob("*.json"):
        if path.stem not in keep:
            path.unlink()


def referenced_files(folder: Path) -> set[str]:
    """Return the names of all files in the current and the pinned manifests."""
    manifests = [folder / STORE_MANIFEST, *sorted((folder / "pinned").glob("*.json"))]
    return {name for path in manifests if path.exists() for name in Generation(folder, read_json(path)).files()}


def remove_unreferenced(folder: Path, before: int | None = None) -> int:
    """Remove vector files that no manifest names, and temporary files and folders. Returns the freed bytes.

    before: remove only files of generations before this one, and no temporary ones, which others may be writing.
    """
    referenced = referenced_files(folder)
    freed_bytes = 0
    for path in sorted([*folder.iterdir(), *folder.glob(f"pinned/.*{TEMPORARY_SUFFIX}")]):
        found = _DATA_FILE.fullmatch(path.name)
        is_stale = found and path.name not in referenced and (before is None or int(found[1]) < before)
        if is_stale or (before is None and path.name.endswith(TEMPORARY_SUFFIX)):
            freed_bytes += sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
            if path.is_dir():  # left by a refit that was killed
                shutil.rmtree(path)
            else:
                path.unlink()
    return freed_bytes
