"""Writes to a store: its lock, the next generation, pinned manifests, and the removal of files that no manifest names."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.errors import DamageError, ResourceError
from surf2vec.trainer.model.rows import Rows
from surf2vec.trainer.store.generation import (
    FORMAT_VERSION,
    Generation,
    entries_of,
    manifest_paths,
    open_generation,
    read_manifest,
    write_manifest,
)
from surf2vec.trainer.store.images import Image, image_of, read_image, verify_image, write_image
from surf2vec.trainer.store.layout import STORE_MANIFEST, Delta, explain_damage, image_of_rows, read_rows
from surf2vec.trainer.system.files import (
    TEMPORARY_SUFFIX,
    lock,
    make_folder,
    raise_if_unwritten,
    read_json,
    sync_path,
    sync_paths,
)
from surf2vec.trainer.system.memory import Bytes

_DATA_FILE = re.compile(r"[a-z]+-\d{5}-g(\d{6,})\.safetensors")
_WAY_OUT = (
    "restore a copy, or remove {} and run again: that may train everything, in another space, which the gate may hold"
)


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

    A file is of a kind and has a number: "users" and a micro-partition, or a part's name and an item block. It belongs to the
    next generation at the time it is written. A caller that writes a manifest itself, without `commit`, calls `sync` before.
    Not thread-safe. has_others: whether other workers write for the same generations.
    """

    def __init__(
        self, folder: Path, generation: int, manifest: Mapping[str, Any] | None = None, has_others: bool = False
    ) -> None:
        """manifest: of the generation whose files the next one starts from."""
        self.folder, self.generation, self.has_others = folder, generation, has_others
        self.entries = entries_of(manifest or {})
        self._fresh: dict[tuple[str, int], dict[str, Any]] = {}
        self._unsynced: set[str] = set()

    def has(self, kind: str, number: int) -> bool:
        """Return whether there is such a file, committed or not."""
        return (kind, number) in self.entries

    def read(self, kind: str, number: int, spare: Bytes | None = None) -> Image:
        """Read the image of a file as last written, committed or not."""
        entry = self.entries[kind, number]
        with explain_damage(self.folder):
            return read_image(self.folder / entry["file"], entry, spare)

    def write(self, kind: str, number: int, image: Image) -> None:
        """Write a file; the next commit includes it."""
        entry = self._write(f"{kind}-{number:05d}", image)
        self.entries[kind, number] = self._fresh[kind, number] = entry

    def write_delta(self, partition: int, delta: Delta) -> None:
        """Write a delta beside a micro-partition's file, replacing an older delta; the next commit includes it."""
        entry = {name: value for name, value in self.entries["users", partition].items() if name != "delta"}
        written = self._write(f"delta-{partition:05d}", image_of(delta.arrays()))
        self.entries["users", partition] = entry | {"delta": written}

    def sync(self) -> None:
        """Wait until all files of this writer are on the disk, with their names. Raises ResourceError when that fails."""
        if self._unsynced:
            with raise_if_unwritten(self.folder, f"{len(self._unsynced):,} files"):
                sync_paths(self.folder / name for name in self._unsynced)
                sync_path(self.folder)
            self._unsynced.clear()

    def take_fresh(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Return kind, number and entry of the files written since the last call."""
        fresh, self._fresh = self._fresh, {}
        return [(*key, entry) for key, entry in fresh.items()]

    def add_written(self, fresh: list[tuple[str, int, dict[str, Any]]]) -> None:
        """Add the files that another writer wrote for this generation."""
        self.entries |= {(kind, number): entry for kind, number, entry in fresh}

    def list_files(self, num_blocks: int) -> dict[str, Any]:
        """Return a manifest's entries of the files; those of untrained blocks are None."""
        users = {str(number): entry for (kind, number), entry in self.entries.items() if kind == "users"}
        others = {kind: [entry] for (kind, _), entry in self.entries.items() if kind not in ("users", "interest")}
        blocks = [self.entries.get(("interest", block)) for block in range(num_blocks)]
        return {"users": users, "items": {"interest": blocks} | others}

    def commit(self, values: dict[str, Any]) -> Generation:
        """Commit the written files as the next generation, with `values` in its manifest; then remove unreferenced files."""
        return self._put_manifest(values | self.list_files(values["num_blocks"]))

    def commit_again(self, older: Generation, values: dict[str, Any]) -> Generation:
        """Commit the files of an older generation as the next one, to return to the best epoch."""
        names = ("users", "items", "num_blocks", "resident_block", "recency")
        return self._put_manifest(values | {name: older.manifest[name] for name in names if name in older.manifest})

    def _put_manifest(self, values: dict[str, Any]) -> Generation:
        manifest = values | {"format_version": FORMAT_VERSION, "generation": self.generation}
        self.sync()
        write_manifest(self.folder, STORE_MANIFEST, manifest)
        self.generation += 1
        remove_unreferenced(self.folder, before=self.generation if self.has_others else None)
        return Generation(self.folder, manifest)

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
    return {name for path in manifest_paths(folder) for name in Generation(folder, read_json(path)).files()}


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


def examine_store(folder: Path) -> list[tuple[str, str, str]]:
    """Return the findings of `doctor` for a store: (level "ok" | "warning" | "damage", place, message). Reads every file."""
    findings: list[tuple[str, str, str]] = []
    for path in manifest_paths(folder):
        level, way_out = "damage", _WAY_OUT.format(path)
        try:
            generation = Generation(folder, read_manifest(path))
            for name, entry in generation.files().items():
                verify_image(folder / name, entry)
            level, message = "ok", f"generation {generation.generation}: {len(generation.files())} files whole"
        except DamageError as error:
            message = f"{error}; {way_out}"
        except (KeyError, TypeError, AttributeError):
            message = f"is not a manifest of a store: it was altered; {way_out}"
        findings.append((level, str(path), message))
    if not any(level == "damage" for level, _, _ in findings):
        orphans = {path.name for path in folder.glob("*.safetensors")} - referenced_files(folder)
        if orphans:
            message = f"{len(orphans)} files belong to no generation; the next commit removes them"
            findings.append(("warning", str(folder), message))
    return findings


def erase_rows(
    generation: Generation, going: dict[int, NDArray[np.int64]], num_users: list[int], number: int
) -> dict[str, Any]:
    """Write users' files without these rows for a generation `number`, and return their entries. Nothing is committed.

    going: micro-partition → rows, ascending; num_users: current rows of each micro-partition. A file with rows to erase is
    rewritten without gaps and with its delta's changes. All other rows keep their bits. One micro-partition is in memory at a
    time. Raises DamageError when a file has another number of rows, or was altered.
    """
    writer = Writer(generation.folder, number, generation.manifest)
    for partition, gone in going.items():
        rows = read_rows(generation.folder, generation.manifest["users"][str(partition)])
        if len(rows.squares) != num_users[partition]:
            raise DamageError(
                f"micro-partition {partition} of generation {generation.generation} has {len(rows.squares):,} rows where its "
                f"corpus has {num_users[partition]:,} users: they do not belong together; nothing was changed"
            )
        kept = np.setdiff1d(np.arange(len(rows.squares)), gone)
        if len(kept):
            writer.write("users", partition, image_of_rows(Rows(rows.vectors[kept], rows.squares[kept])))
        else:  # a training writes no file for a micro-partition without users
            del writer.entries["users", partition]
    writer.sync()
    return writer.list_files(generation.num_blocks)["users"]
