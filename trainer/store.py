"""The vectors on disk: one file a micro-partition and generation, and a manifest that says which of them count.

    store/MANIFEST.json            the current generation: position of training, and name, size and sha256 of each file
    store/users-00012-g000007.safetensors      micro-partition 12, written for generation 7: "vectors" float32 or
                                   bfloat16[n, D], "squares" float32[n] (the optimizer's state)
    store/items-g000007.safetensors            the item table: "outputs" float32[V, D], "output_squares" float32[V], and
                                   with context "inputs" and "input_squares"; with a tree, outputs are its rows
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
from safetensors import safe_open
from safetensors.numpy import save_file

from trainer.config import TrainConfig, config_from_dict
from trainer.errors import ConfigError, DamageError, ResourceError
from trainer.files import TEMPORARY_SUFFIX, describe_file, read_json, replace_file, verify_file, write_json
from trainer.rows import Items, Rows

FORMAT_VERSION = 2
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

    @property
    def config(self) -> TrainConfig:
        """The settings that it was trained with."""
        return config_from_dict(self.manifest["config"])

    def read_users(self, partition: int) -> NDArray[np.float32]:
        """The user vectors of a micro-partition, float32[n, D]. Raises DamageError when its file was altered."""
        return read_rows(self.folder, self.manifest["users"][str(partition)]).widened()

    @property
    def has_item_vectors(self) -> bool:
        """Whether items have vectors of their own: not with a tree."""
        return not self.config.hs

    def read_items(self) -> NDArray[np.float32]:
        """The vectors that rank items by their dot product with a user's, float32[V, D].

        Raises DamageError when the file was altered, ConfigError when a tree was trained, whose rows are no items.
        """
        if not self.has_item_vectors:
            raise ConfigError("this generation was trained with train.hs = 1: a tree has no item vectors")
        return self.read_item_table().outputs.vectors

    def read_item_table(self) -> Items:
        """All that training keeps of items. Raises DamageError when the file was altered."""
        return read_item_table(self.folder, self.manifest["items"])

    def files(self) -> dict[str, dict[str, Any]]:
        """Every file of the generation with its size and checksum, by name."""
        entries = [*self.manifest["users"].values(), self.manifest["items"]]
        return {entry["file"]: entry for entry in entries}


def read_rows(folder: Path, entry: dict[str, Any]) -> Rows:
    """The rows in the users' file that a manifest's entry names, as stored. Raises DamageError when it was altered."""
    arrays = read_arrays(folder, entry)
    return Rows(arrays["vectors"], arrays["squares"])


def read_item_table(folder: Path, entry: dict[str, Any]) -> Items:
    """The item table in the file that a manifest's entry names. Raises DamageError when it was altered."""
    arrays = read_arrays(folder, entry)
    return Items(
        Rows(arrays["outputs"], arrays["output_squares"]),
        Rows(arrays["inputs"], arrays["input_squares"]),
    )


def read_arrays(folder: Path, entry: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays in a file, bfloat16 ones as uint16. Raises DamageError when it was altered."""
    path = folder / entry["file"]
    verify_file(path, entry)
    with safe_open(path, framework="np") as file:
        is_half = any(file.get_slice(name).get_dtype() == "BF16" for name in file.keys())  # noqa: SIM118 (no mapping)
        if not is_half:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    import torch  # numpy has no bfloat16
    from safetensors.torch import load_file

    tensors = load_file(path)
    return {name: (t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).numpy() for name, t in tensors.items()}


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write a safetensors file; uint16 arrays are bfloat16."""
    if all(array.dtype != np.uint16 for array in arrays.values()):
        save_file(arrays, path)
        return
    import torch
    from safetensors import torch as torch_files

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    halves = {name: t.view(torch.bfloat16) if t.dtype == torch.uint16 else t for name, t in tensors.items()}
    torch_files.save_file(halves, path)


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


def is_outdated(folder: Path) -> bool:
    """Whether the current generation was written by an earlier version of the program, so that it cannot be gone on with."""
    version = read_json(folder / MANIFEST).get("format_version")
    return isinstance(version, int) and version < FORMAT_VERSION


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

    def read_users(self, partition: int) -> Rows:
        """The rows of a micro-partition as last written, committed or not."""
        return read_rows(self.folder, self.users[str(partition)])

    def write_users(self, partition: int, rows: Rows) -> None:
        """Write the rows of a micro-partition; they count from the next commit on."""
        name = f"users-{partition:05d}-g{self.generation:06d}.safetensors"
        self.users[str(partition)] = self._write(name, {"vectors": rows.vectors, "squares": rows.squares})

    def commit(self, items: Items, values: dict[str, Any]) -> Generation:
        """Make the next generation: the item table, the manifest with `values`, then the removal of what is not named."""
        arrays = {
            "outputs": items.outputs.vectors, "output_squares": items.outputs.squares,
            "inputs": items.inputs.vectors, "input_squares": items.inputs.squares,
        }  # fmt: skip
        entry = self._write(f"items-g{self.generation:06d}.safetensors", arrays)
        return self._put_manifest(values | {"users": self.users, "items": entry})

    def commit_again(self, older: Generation, values: dict[str, Any]) -> Generation:
        """Make the next generation of the files of an older one: the way back to the best."""
        return self._put_manifest(values | {"users": older.manifest["users"], "items": older.manifest["items"]})

    def _put_manifest(self, values: dict[str, Any]) -> Generation:
        manifest = values | {"format_version": FORMAT_VERSION, "generation": self.generation}
        write_json(self.folder / MANIFEST, manifest)
        self.generation += 1
        remove_unreferenced(self.folder)
        return Generation(self.folder, manifest)

    def _write(self, name: str, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        path = self.folder / name
        num_bytes = sum(array.nbytes for array in arrays.values())
        try:
            with replace_file(path) as temporary:
                write_arrays(temporary, {key: np.ascontiguousarray(array) for key, array in arrays.items()})
        except OSError as error:
            raise full_disk(self.folder, num_bytes, error) from error
        except Exception as error:  # safetensors raises its own error type for a failed write
            if "No space left" in str(error) or "os error 28" in str(error):
                raise full_disk(self.folder, num_bytes, error) from error
            raise
        self.bytes_written += num_bytes
        return {"file": name, **describe_file(path)}


def full_disk(folder: Path, needed_bytes: int, error: Exception) -> ResourceError:
    """The error for a write that did not succeed, with the numbers."""
    stat = os.statvfs(folder)
    return ResourceError(
        f"could not write {needed_bytes:,} bytes to {folder} ({error}; {stat.f_bavail * stat.f_frsize:,} bytes are free): "
        "free space or permit writing, then run the same command again; what was committed is whole"
    )


def pin_generation(folder: Path, name: str) -> None:
    """Keep the files of the current generation under a name, a release's or "best", whatever comes after."""
    write_json(folder / "pinned" / f"{name}.json", open_generation(folder).manifest)


def open_pinned(folder: Path, name: str) -> Generation:
    """The generation that is kept under a name. Raises DamageError when there is none."""
    return Generation(folder, read_json(folder / "pinned" / f"{name}.json"))


def unpin_best(folder: Path) -> None:
    """Let go of the generation that early stopping kept; its files go at the next commit or gc, if nothing names them."""
    (folder / "pinned" / "best.json").unlink(missing_ok=True)


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
    for path in sorted([*folder.iterdir(), *folder.glob(f"pinned/.*{TEMPORARY_SUFFIX}")]):
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
