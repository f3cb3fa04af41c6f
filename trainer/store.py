"""The vectors on disk: one file a micro-partition and generation, and a manifest that says which of them count.

    store/MANIFEST.json            the current generation: position of training, and name, size and sha256 of each file
    store/users-00012-g000007.safetensors      "vectors" float32[n, D] of micro-partition 12, written for generation 7
    store/items-g000007.safetensors            "vectors" float32[V, D]
    store/pinned/<release>.json    a copy of a manifest whose files must stay: a release that may be served or returned to

New files are written beside the old; the manifest is renamed last; only then are files that no manifest names removed.
So a crash at any moment leaves the last generation whole.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from trainer.errors import DamageError, ResourceError
from trainer.files import TEMPORARY_SUFFIX, describe_file, read_json, replace_file, verify_file, write_json

FORMAT_VERSION = 1
MANIFEST = "MANIFEST.json"
_DATA_FILE = re.compile(r"(users-\d{5}|items)-g\d{6,}\.safetensors")


@dataclass(frozen=True)
class Generation:
    """A committed state of all vectors, as its manifest describes it."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def generation(self) -> int:
        return self.manifest["generation"]

    @property
    def num_partitions(self) -> int:
        return self.manifest["partitions"]

    @property
    def num_items(self) -> int:
        return self.manifest["num_items"]

    @property
    def vector_size(self) -> int:
        return self.manifest["vector_size"]

    @property
    def position(self) -> int:
        """Micro-partitions trained so far, over all epochs."""
        return self.manifest["position"]

    def read_users(self, partition: int) -> NDArray[np.float32]:
        """The user vectors of a micro-partition, float32[n, D]. Raises DamageError when its file was altered."""
        return read_vectors(self.folder, self.manifest["users"][str(partition)])

    def read_items(self) -> NDArray[np.float32]:
        """The item vectors, float32[V, D]. Raises DamageError when the file was altered."""
        return read_vectors(self.folder, self.manifest["items"])

    def files(self) -> dict[str, dict[str, Any]]:
        """Every file of the generation with its size and checksum, by name."""
        entries = [*self.manifest["users"].values(), self.manifest["items"]]
        return {entry["file"]: entry for entry in entries}


def read_vectors(folder: Path, entry: dict[str, Any]) -> NDArray[np.float32]:
    """The vectors in the file that a manifest's entry names. Raises DamageError when it was altered."""
    path = folder / entry["file"]
    verify_file(path, entry)
    return load_file(path)["vectors"]


def open_generation(folder: Path) -> Generation:
    """The current generation of a store. Raises DamageError when there is none or its manifest is unreadable."""
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format_version") != FORMAT_VERSION:
        raise DamageError(
            f"{folder / MANIFEST} is not a manifest of format {FORMAT_VERSION}: it was altered or is of another version"
        )
    return Generation(folder, manifest)


def has_generation(folder: Path) -> bool:
    """Whether anything was ever committed to the store."""
    return (folder / MANIFEST).exists()


@contextmanager
def lock_store(folder: Path) -> Iterator[None]:
    """Hold the store's writer lock, which the kernel releases when the process dies.

    Raises ResourceError, naming the process that has it, when another trainer does.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (closed below, after the lock)
    except OSError as error:
        raise ResourceError(
            f"cannot write to the store {folder}: {error.strerror}; give another folder or free it"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ResourceError(
                f"{holder} is training on the store {folder}: wait for it, or give another store"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
        file.truncate(0)


class Writer:
    """Writes the next generation of a store: files first, then one manifest that makes them count."""

    def __init__(self, folder: Path, generation: int, users: dict[str, Any]) -> None:
        """`users`: the entries of user files that the next generation starts from, by micro-partition."""
        self.folder = folder
        self.generation = generation
        self.users = dict(users)
        self.bytes_written = 0

    def has_users(self, partition: int) -> bool:
        """Whether vectors of this micro-partition are in a file."""
        return str(partition) in self.users

    def read_users(self, partition: int) -> NDArray[np.float32]:
        """The vectors of a micro-partition as last written, committed or not, float32[n, D]."""
        return read_vectors(self.folder, self.users[str(partition)])

    def write_users(self, partition: int, vectors: NDArray[np.float32]) -> None:
        """Write the vectors of a micro-partition; they count from the next commit on."""
        self.users[str(partition)] = self._write(f"users-{partition:05d}-g{self.generation:06d}.safetensors", vectors)

    def commit(self, item_vectors: NDArray[np.float32], values: dict[str, Any]) -> Generation:
        """Make the next generation: the item table, the manifest with `values`, then the removal of what is not named."""
        items = self._write(f"items-g{self.generation:06d}.safetensors", item_vectors)
        manifest = values | {
            "format_version": FORMAT_VERSION,
            "generation": self.generation,
            "users": self.users,
            "items": items,
        }
        write_json(self.folder / MANIFEST, manifest)
        self.generation += 1
        remove_unreferenced(self.folder)
        return Generation(self.folder, manifest)

    def _write(self, name: str, vectors: NDArray[np.float32]) -> dict[str, Any]:
        path = self.folder / name
        try:
            with replace_file(path) as temporary:
                save_file({"vectors": np.ascontiguousarray(vectors)}, temporary)
        except OSError as error:
            raise full_disk(self.folder, vectors.nbytes, error) from error
        except Exception as error:  # safetensors raises its own error type for a failed write
            if "No space left" in str(error) or "os error 28" in str(error):
                raise full_disk(self.folder, vectors.nbytes, error) from error
            raise
        self.bytes_written += vectors.nbytes
        return {"file": name, **describe_file(path)}


def full_disk(folder: Path, needed_bytes: int, error: Exception) -> ResourceError:
    """The error for a write that did not succeed, with the numbers."""
    stat = os.statvfs(folder)
    return ResourceError(
        f"could not write {needed_bytes:,} bytes to {folder} ({error}; {stat.f_bavail * stat.f_frsize:,} bytes are free): "
        "free space or permit writing, then run the same command again; what was committed is whole"
    )


def pin_generation(folder: Path, release: str) -> None:
    """Keep the files of the current generation under the name of a release, whatever comes after."""
    write_json(folder / "pinned" / f"{release}.json", open_generation(folder).manifest)


def unpin_generations(folder: Path, keep: set[str]) -> None:
    """Let go of all pinned releases but `keep`; their files go at the next commit or gc."""
    for path in (folder / "pinned").glob("*.json"):
        if path.stem not in keep:
            path.unlink()


def referenced_files(folder: Path) -> set[str]:
    """Names of the files that the current or a pinned manifest names."""
    manifests = [folder / MANIFEST, *sorted((folder / "pinned").glob("*.json"))]
    return {name for path in manifests if path.exists() for name in Generation(folder, read_json(path)).files()}


def remove_unreferenced(folder: Path) -> int:
    """Remove vector files that no manifest names, and temporary files; answers the bytes set free."""
    referenced = referenced_files(folder)
    freed_bytes = 0
    for path in sorted(folder.iterdir()):
        is_stale = _DATA_FILE.fullmatch(path.name) and path.name not in referenced
        if is_stale or path.name.endswith(TEMPORARY_SUFFIX):
            freed_bytes += path.stat().st_size
            path.unlink()
    return freed_bytes


def examine_store(folder: Path) -> list[tuple[str, str, str]]:
    """What `doctor` says of a store: (level "ok" | "warning" | "damage", place, message) a finding."""
    findings: list[tuple[str, str, str]] = []
    manifests = [folder / MANIFEST, *sorted((folder / "pinned").glob("*.json"))]
    for path in (path for path in manifests if path.exists()):
        try:
            generation = Generation(folder, read_json(path))
            for name, entry in generation.files().items():
                verify_file(folder / name, entry)
            findings.append(
                ("ok", str(path), f"generation {generation.generation}: {len(generation.files())} files whole")
            )
        except DamageError as error:
            findings.append(("damage", str(path), str(error)))
        except (KeyError, TypeError, AttributeError):
            findings.append(("damage", str(path), "is not a manifest of a store: it was altered"))
    if not any(level == "damage" for level, _, _ in findings):
        orphans = {path.name for path in folder.glob("*.safetensors")} - referenced_files(folder)
        if orphans:
            findings.append(
                ("warning", str(folder), f"{len(orphans)} files belong to no generation; the next commit removes them")
            )
    return findings
