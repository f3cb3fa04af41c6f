"""The vectors on disk: one file a micro-partition and generation, and a manifest that says which of them count.

    store/MANIFEST.json            the current generation: position of training, name, size and checksum of each file, and
                                   a digest of all that it says
    store/users-00012-g000007.safetensors      micro-partition 12, written for generation 7: "vectors" float32 or
                                   bfloat16[n, D], "squares" float32[n] (the optimizer's state)
    store/items-00000-g000007.safetensors      an item block: "outputs" float32[R, D], "output_squares" float32[R], and
                                   with context "inputs" and "input_squares"; with a tree, outputs are its rows. Which rows
                                   of the item table a block of several has, "rows" uint32[R] says: blocks share the first
    store/pinned/<release>.json    a copy of a manifest whose files must stay: a release that may be served or returned to

New files are written beside the old, and written over until they count; when all are on the disk the manifest is renamed;
only then are files that no manifest names removed. So a crash at any moment leaves the last generation whole.

What is damaged later, by a disk or a hand, is refused by name and not trained on. There is no generation before it to fall
back on: it would be a third of the size of the store, for what a crash cannot do and a copy or a training mends.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import TrainConfig, config_from_dict
from trainer.errors import ConfigError, ResourceError
from trainer.model.rows import Items, Rows
from trainer.store.deltas import Delta, delta_in, lay_over
from trainer.store.images import Arrays, Image, Shapes, image_of, make_image, map_image, read_image, write_image
from trainer.store.item_table import fill_outputs, join_blocks, take_items
from trainer.store.manifests import (
    FORMAT_VERSION,
    STORE_MANIFEST,
    is_of_earlier_version,
    read_manifest,
    tell_way_out,
    write_manifest,
)
from trainer.system.files import (
    TEMPORARY_SUFFIX,
    make_folder,
    read_json,
    sync_files,
    sync_folder,
    told_if_unwritten,
    verify_size,
)
from trainer.system.pages import Bytes

_DATA_FILE = re.compile(r"(?:users|items|delta)-\d{5}-g(\d{6,})\.safetensors")


@dataclass(frozen=True)
class Generation:
    """A committed state of all vectors, as its manifest describes it."""

    folder: Path
    manifest: dict[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        """What of it goes to another process: where it is, not what of it is in memory."""
        return {"folder": self.folder, "manifest": self.manifest}

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
        """Micro-partitions trained so far, over all epochs and item blocks."""
        return self.manifest["position"]

    @property
    def has_seen_held_out(self) -> bool:
        """Whether the held-out users were fitted again on all they did: nothing can be asked of it any more."""
        return self.manifest["stage"] not in ("training", "trained")

    @property
    def config(self) -> TrainConfig:
        """The settings that it was trained with; those that came later were not at work in older generations."""
        return config_from_dict({"bias": 0.0, "discount": 0.0, "negative_weight": 1.0} | self.manifest["config"])

    @property
    def bias(self) -> float:
        """The last coordinate of every user, 0 where it is none of its own."""
        return self.config.bias

    def read_users(self, partition: int) -> NDArray[np.float32]:
        """The user vectors of a micro-partition, float32[n, D], none where it has no users.

        Raises DamageError when its file was altered.
        """
        entry = self.manifest["users"].get(str(partition))
        if entry is None:
            return np.empty((0, self.vector_size), dtype=np.float32)
        return read_rows(self.folder, entry).widened()

    @property
    def has_item_vectors(self) -> bool:
        """Whether items have vectors of their own: not with a tree."""
        return not self.config.hs

    @property
    def num_blocks(self) -> int:
        """The blocks that the item table is divided into."""
        return len(self.manifest["items"])

    def read_items(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """The vectors that rank items by their dot product with a user's, float32[n, D]: of items `start` to `stop`, or all.

        Raises DamageError when a file was altered, ConfigError when a tree was trained, whose rows are no items.
        """
        if not self.has_item_vectors:
            raise ConfigError("this generation was trained with train.hs = 1: a tree has no item vectors")
        return take_items(*self._trained_blocks, start, self.num_items if stop is None else stop)

    def read_item_block(self, block: int, num_shared_rows: int = 0) -> Items:
        """All that training keeps of an item block; the first rows, which all blocks of a tree have, as training left them.

        Raises DamageError when a file was altered.
        """
        entry = self.manifest["items"][block]
        with tell_way_out(self.folder):
            items = items_in(read_image(self.folder / entry["file"], entry))
        if num_shared_rows:
            resident = self._mapped_blocks[self.manifest["resident_block"]]
            items.outputs.vectors[:num_shared_rows] = resident["outputs"][:num_shared_rows]
            items.outputs.squares[:num_shared_rows] = resident["output_squares"][:num_shared_rows]
        return items

    def block_rows(self, block: int) -> NDArray[np.uint32] | None:
        """Which rows of the item table a block of several has, uint32[R]; None for the only one, of which nothing is read."""
        return self._mapped_blocks[block]["rows"] if self.num_blocks > 1 else None

    def map_items(self) -> Items:
        """All that training keeps of items, read-only where it is on disk; only of a table in one block.

        Raises DamageError when the file was altered.
        """
        (arrays,) = self._mapped_blocks.values()
        return _items_of(arrays)

    def read_item_table(self) -> Items:
        """All that training keeps of items. Raises DamageError when a file was altered."""
        with tell_way_out(self.folder):
            images = [read_image(self.folder / entry["file"], entry) for entry in self.manifest["items"]]
        return join_blocks([image.arrays for image in images], self.manifest.get("resident_block", 0))

    def gather_items(self, rows: NDArray[np.uint32] | None, num_rows: int) -> Image:
        """The image of an item block with these rows of the table, or with all of it, from the blocks that there are.

        It is all the memory that this takes. Rows of blocks that were not trained yet are zero, as they begin.

        Raises DamageError when a file was altered.
        """
        image = make_image(shapes_of_items(num_rows, self.vector_size, has_rows=rows is not None))
        fill_outputs(items_in(image).outputs, *self._trained_blocks, rows)
        if rows is not None:
            image.arrays["rows"][:] = rows
        return image

    @cached_property
    def _mapped_blocks(self) -> dict[int, Arrays]:
        """Those that were trained; looked through once."""
        with tell_way_out(self.folder):
            return {
                block: map_image(self.folder / entry["file"], entry) for block, entry in self.item_entries().items()
            }

    @property
    def _trained_blocks(self) -> tuple[list[Arrays], int]:
        """The blocks in order, and which of them was in memory last."""
        last = self.manifest.get("resident_block", 0)
        return list(self._mapped_blocks.values()), list(self._mapped_blocks).index(last)

    def files(self) -> dict[str, dict[str, Any]]:
        """Every file of the generation with its size and checksum, by name."""
        items = self.manifest["items"]
        users = self.manifest["users"].values()
        deltas = [entry["delta"] for entry in users if "delta" in entry]
        entries = [*users, *deltas, *(items if isinstance(items, list) else [items])]  # format 2: one
        return {entry["file"]: entry for entry in entries if entry}

    def item_entries(self) -> dict[int, dict[str, Any]]:
        """The files of the item blocks that were trained, by block."""
        return {block: entry for block, entry in enumerate(self.manifest["items"]) if entry}


def read_rows(folder: Path, entry: dict[str, Any]) -> Rows:
    """The rows of users that a manifest's entry names, as stored: its file's, and what its delta changed.

    Raises DamageError when a file was altered.
    """
    with tell_way_out(folder):
        rows = rows_in(read_image(folder / entry["file"], entry))
        delta = entry.get("delta")
        return lay_over(rows, delta_in(read_image(folder / delta["file"], delta).arrays)) if delta else rows


def rows_in(image: Image) -> Rows:
    """The users' rows whose file an image is."""
    return Rows(image.arrays["vectors"], image.arrays["squares"])


def items_in(image: Image) -> Items:
    """The item table, or block of it, whose file an image is."""
    return _items_of(image.arrays)


def _items_of(arrays: Arrays) -> Items:
    return Items(Rows(arrays["outputs"], arrays["output_squares"]), Rows(arrays["inputs"], arrays["input_squares"]))


def image_of_rows(rows: Rows, spare: Bytes | None = None) -> Image:
    """The image of a users' file with a copy of these rows."""
    return image_of({"vectors": rows.vectors, "squares": rows.squares}, spare)


def image_of_items(items: Items, rows: NDArray[np.uint32] | None = None, spare: Bytes | None = None) -> Image:
    """The image of an item block's file with a copy of this table; `rows`: which rows of the table a block of several has."""
    arrays = {
        "outputs": items.outputs.vectors, "inputs": items.inputs.vectors,
        "output_squares": items.outputs.squares, "input_squares": items.inputs.squares,
    }  # fmt: skip
    return image_of(arrays if rows is None else arrays | {"rows": rows}, spare)


def shapes_of_items(num_outputs: int, vector_size: int, num_inputs: int = 0, has_rows: bool = False) -> Shapes:
    """The arrays in the image of a table, as `image_of_items` makes it; has_rows: of a block of several, which has no inputs.

    Vectors come first, so that rows which are whole cache lines begin where one does.
    """
    return {
        "outputs": (np.float32, (num_outputs, vector_size)), "inputs": (np.float32, (num_inputs, vector_size)),
        "output_squares": (np.float32, (num_outputs,)), "input_squares": (np.float32, (num_inputs,)),
    } | ({"rows": (np.uint32, (num_outputs,))} if has_rows else {})  # fmt: skip


def open_generation(folder: Path) -> Generation:
    """The current generation of a store. Raises DamageError when there is none, or a file is altered, missing or cut short.

    Of the vectors only the sizes are looked at; whoever reads a file checks its bytes.
    """
    with tell_way_out(folder):
        generation = Generation(folder, read_manifest(folder / STORE_MANIFEST))
        for name, entry in generation.files().items():
            verify_size(folder / name, entry)
    return generation


def has_generation(folder: Path) -> bool:
    """Whether anything was ever committed to the store."""
    return (folder / STORE_MANIFEST).exists()


def is_outdated(folder: Path) -> bool:
    """Whether the current generation was written by an earlier version of the program, so that it cannot be gone on with."""
    with tell_way_out(folder):
        return is_of_earlier_version(read_json(folder / STORE_MANIFEST))


@contextmanager
def lock_store(folder: Path, rank: int = 0) -> Iterator[None]:
    """Hold the store's writer lock, which the kernel releases when the process dies; of several workers each has its own.

    Raises ResourceError, naming the process that has it, when another trainer does.
    """
    try:
        make_folder(folder)
        file = open(folder / (f".lock-{rank}" if rank else ".lock"), "a+", encoding="utf-8")  # noqa: SIM115 (closed below, after the lock)
    except OSError as error:
        raise ResourceError(
            f"cannot write to the store {folder}: {error.strerror}; give another folder or permit writing"
        ) from None
    with file:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ResourceError(f"cannot write to the store {folder}: give another folder or permit writing")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            told = f"{holder} is training on the store {folder}: wait for it, or give another store"
            raise ResourceError(told) from None
        file.truncate(0)
        with suppress(OSError):  # a full disk: who has the lock is then not said
            os.write(file.fileno(), f"process {os.getpid()}".encode())
        yield
        file.truncate(0)


class Writer:
    """Writes the next generation of a store: files first, then one manifest that makes them count.

    Not for several threads at once; a file belongs to the generation that is next when it is written. Whoever names its files in
    a manifest without `commit` calls `sync` before. has_others: whether other workers write for the same generations
    (trainer/workers/joint_commit.py).
    """

    def __init__(
        self, folder: Path, generation: int, users: dict[str, Any], items: dict[int, Any] | None = None,
        has_others: bool = False,
    ) -> None:  # fmt: skip
        """`users`, `items`: the entries that the next generation starts from, by micro-partition and by block."""
        self.folder, self.generation = folder, generation
        self.users, self.items = dict(users), dict(items or {})
        self.has_others = has_others
        self._fresh: dict[str, dict[str, Any]] = {"users": {}, "items": {}}
        self._unsynced: set[str] = set()

    def has_users(self, partition: int) -> bool:
        """Whether vectors of this micro-partition are in a file."""
        return str(partition) in self.users

    def read_users(self, partition: int, spare: Bytes | None = None) -> Image:
        """The image of a micro-partition as last written, committed or not."""
        return self._read(self.users[str(partition)], spare)

    def read_items(self, block: int, spare: Bytes | None = None) -> Image:
        """The image of an item block as last written, committed or not."""
        return self._read(self.items[block], spare)

    def write_users(self, partition: int, image: Image) -> None:
        """Write a micro-partition; it counts from the next commit on."""
        entry = self._write(f"users-{partition:05d}", image)
        self.users[str(partition)] = self._fresh["users"][str(partition)] = entry

    def write_delta(self, partition: int, delta: Delta) -> None:
        """Write a delta beside a micro-partition's file, in place of the one before; it counts from the next commit on."""
        whole = {name: value for name, value in self.users[str(partition)].items() if name != "delta"}
        written = self._write(f"delta-{partition:05d}", image_of(delta.arrays()))
        self.users[str(partition)] = whole | {"delta": written}

    def write_items(self, block: int, image: Image) -> None:
        """Write an item block; it counts from the next commit on."""
        self.items[block] = self._fresh["items"][str(block)] = self._write(f"items-{block:05d}", image)

    def sync(self) -> None:
        """Wait until all that this writer wrote is on the disk, with its names. Raises ResourceError when it cannot be."""
        if self._unsynced:
            with told_if_unwritten(self.folder, f"{len(self._unsynced):,} files"):
                sync_files(self.folder / name for name in self._unsynced)
                sync_folder(self.folder)
            self._unsynced.clear()

    def take_fresh(self) -> dict[str, dict[str, Any]]:
        """The entries of what this writer wrote since it was asked last, by micro-partition and by block, as JSON has them."""
        fresh, self._fresh = self._fresh, {"users": {}, "items": {}}
        return fresh

    def add_written(self, fresh: dict[str, dict[str, Any]]) -> None:
        """Count what another writer wrote for this generation."""
        self.users |= fresh["users"]
        self.items |= {int(block): entry for block, entry in fresh["items"].items()}

    def commit(self, values: dict[str, Any]) -> Generation:
        """Make the next generation of what was written: the manifest with `values`, then the removal of what is not named."""
        items = [self.items.get(block) for block in range(values["num_blocks"])]  # None: not trained yet
        return self._put_manifest(values | {"users": dict(self.users), "items": items})

    def commit_again(self, older: Generation, values: dict[str, Any]) -> Generation:
        """Make the next generation of the files of an older one: the way back to the best."""
        names = ("users", "items", "num_blocks", "resident_block", "recency")
        kept = {name: older.manifest[name] for name in names if name in older.manifest}
        return self._put_manifest(values | kept)

    def _put_manifest(self, values: dict[str, Any]) -> Generation:
        manifest = values | {"format_version": FORMAT_VERSION, "generation": self.generation}
        self.sync()
        write_manifest(self.folder, STORE_MANIFEST, manifest)
        self.generation += 1
        remove_unreferenced(self.folder, before=self.generation if self.has_others else None)
        return Generation(self.folder, manifest)

    def _read(self, entry: dict[str, Any], spare: Bytes | None) -> Image:
        with tell_way_out(self.folder):
            return read_image(self.folder / entry["file"], entry, spare)

    def _write(self, stem: str, image: Image) -> dict[str, Any]:
        name = f"{stem}-g{self.generation:06d}.safetensors"
        path = self.folder / name
        with told_if_unwritten(self.folder, f"{name} ({image.num_bytes:,} bytes)"):
            if name not in self._unsynced:
                path.unlink(missing_ok=True)  # of a run that was killed: somebody may have it under a second name
            self._unsynced.add(name)
            try:
                about = write_image(path, image)
            except OSError:
                self._unsynced.discard(name)
                path.unlink(missing_ok=True)  # a part of it would only take room
                raise
        return {"file": name, **about}


def pin_generation(folder: Path, name: str) -> None:
    """Keep the files of the current generation under a name, a release's or "best", whatever comes after."""
    write_manifest(folder, f"pinned/{name}.json", open_generation(folder).manifest)


def open_pinned(folder: Path, name: str) -> Generation:
    """The generation that is kept under a name. Raises DamageError when there is none."""
    return Generation(folder, read_manifest(folder / "pinned" / f"{name}.json"))


def find_pinned(folder: Path, name: str) -> Generation | None:
    """The generation that is kept under a name; None where there is none that this version can read.

    Raises DamageError when its manifest was altered.
    """
    path = folder / "pinned" / f"{name}.json"
    with tell_way_out(folder):
        return open_pinned(folder, name) if path.exists() and not is_of_earlier_version(read_json(path)) else None


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
    manifests = [folder / STORE_MANIFEST, *sorted((folder / "pinned").glob("*.json"))]
    return {name for path in manifests if path.exists() for name in Generation(folder, read_json(path)).files()}


def remove_unreferenced(folder: Path, before: int | None = None) -> int:
    """Remove vector files that no manifest names, and temporary files and folders; returns the bytes set free.

    before: only files of generations before this one, and no temporary ones, which others may be writing.
    """
    referenced = referenced_files(folder)
    freed_bytes = 0
    for path in sorted([*folder.iterdir(), *folder.glob(f"pinned/.*{TEMPORARY_SUFFIX}")]):
        found = _DATA_FILE.fullmatch(path.name)
        is_stale = found and path.name not in referenced and (before is None or int(found[1]) < before)
        if is_stale or (before is None and path.name.endswith(TEMPORARY_SUFFIX)):
            freed_bytes += sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
            if path.is_dir():  # what was refitted when a process was killed
                shutil.rmtree(path)
            else:
                path.unlink()
    return freed_bytes
