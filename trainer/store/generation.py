"""The vectors on disk: one file for each micro-partition and generation, and a manifest that lists the valid files.

    store/MANIFEST.json            the current generation: position of training, name, size and checksum of each file, a digest
    store/users-00012-g000007.safetensors      micro-partition 12, written for generation 7: "vectors" float32 or
                                   bfloat16[n, D], "squares" float32[n] (the optimizer's state)
    store/interest-00000-g000007.safetensors   an item block: "outputs" float32[R, D], "output_squares" float32[R], and
                                   with context "inputs" and "input_squares"; with a tree, outputs are its rows. One of
                                   several blocks has "rows" uint32[R], its rows of the table; all share the first ones
    store/trail-00000-g000007.safetensors   the item table of another part, never divided; the trail's with "lags" float32[2 W, 1]
    store/pinned/<release>.json    a copy of a manifest whose files are kept: a release that may be served or restored

New files are written beside the old ones; until a manifest lists them they may be overwritten. When all are on the disk, a rename
replaces the manifest. Then files that no manifest names are removed. So a crash at any moment leaves the last generation intact.
Reading a file damaged later raises an error with its name. No older generation is kept for that: it would take a third more disk.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig, config_from_dict
from surf2vec.trainer.errors import ConfigError, DamageError
from surf2vec.trainer.model.rows import Items, TrailItems
from surf2vec.trainer.store.images import Arrays, Image, make_image, map_image, read_image
from surf2vec.trainer.store.layout import STORE_MANIFEST, explain_damage, items_of, read_rows, shapes_of_items
from surf2vec.trainer.system.files import raise_if_unwritten, read_json, verify_size, write_manifest_json

PIECE_ROWS = 65_536
"""Rows copied at a time, which bounds the memory of intermediate arrays."""
FORMAT_VERSION = 6


@dataclass(frozen=True)
class Generation:
    """A committed state of all vectors, as its manifest describes it."""

    folder: Path
    manifest: dict[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled for another process: everything but the mapped blocks."""
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
        """Dimensions of all parts together."""
        return self.manifest["vector_size"]

    @property
    def position(self) -> int:
        """Micro-partitions trained so far, over all epochs and item blocks."""
        return self.manifest["position"]

    @property
    def has_seen_held_out(self) -> bool:
        """Whether held-out users were refitted on their full histories, so that it cannot be evaluated."""
        return self.manifest["stage"] not in ("training", "trained")

    @cached_property
    def config(self) -> TrainConfig:
        return config_from_dict(self.manifest["config"])

    def read_users(self, partition: int) -> NDArray[np.float32]:
        """Return the interests of a micro-partition's users, float32[n, D]. Raises DamageError when its file was altered."""
        entry = self.manifest["users"].get(str(partition))
        if entry is None:
            return np.empty((0, self.config.interest_size), dtype=np.float32)
        return read_rows(self.folder, entry).widened()

    @property
    def has_item_vectors(self) -> bool:
        """Whether items have vectors: False with a tree."""
        return not self.config.hs

    @property
    def num_blocks(self) -> int:
        return len(self.manifest["items"]["interest"])

    def read_items(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Return the vectors of items `start` to `stop`, or all, float32[n, D]. Their dot products with interests rank items.

        Raises DamageError when a file was altered, ConfigError with a tree, whose rows are not items.
        """
        if not self.has_item_vectors:
            raise ConfigError("this generation was trained with train.hs = 1: a tree has no item vectors")
        if self.num_blocks == 1:
            return np.array(self.map_items().outputs.vectors[start:stop])
        stop = self.num_items if stop is None else stop
        vectors = np.empty((max(stop - start, 0), self.config.interest_size), dtype=np.float32)
        for rows, arrays in self._iterate_blocks():
            found = np.flatnonzero((rows >= start) & (rows < stop))
            vectors[rows[found].astype(np.int64) - start] = arrays["outputs"][found]
        return vectors

    def read_item_block(self, block: int, num_shared_rows: int = 0) -> Items:
        """Return an item block with its optimizer state. The first `num_shared_rows`, shared by all blocks, are the newest.

        Raises DamageError when a file was altered.
        """
        entry = self.manifest["items"]["interest"][block]
        with explain_damage(self.folder):
            items = items_of(read_image(self.folder / entry["file"], entry).arrays)
        if num_shared_rows:
            resident = self._map()[self.manifest["resident_block"]]
            items.outputs.vectors[:num_shared_rows] = resident["outputs"][:num_shared_rows]
            items.outputs.squares[:num_shared_rows] = resident["output_squares"][:num_shared_rows]
        return items

    def map_items(self, part: str = "interest") -> Items:
        """Return the item table of a part, of the interest in one block, mapped read-only from disk. Raises DamageError."""
        (arrays,) = self._map(part).values()
        return items_of(arrays)

    @property
    def trail(self) -> TrailItems | None:
        """The item table of the trail, mapped read-only from disk; None without a trail. Raises DamageError."""
        items = self.map_items("trail") if "trail" in self.manifest["items"] else None
        return items if isinstance(items, TrailItems) else None

    def gather_items(self, rows: NDArray[np.uint32] | None, num_rows: int) -> Image:
        """Return the image of an item block with these rows uint32[n] of the table, or all, gathered from all blocks.

        Takes little more memory than the image. Rows of untrained blocks are zero. Raises DamageError when a file was altered.
        """
        image = make_image(shapes_of_items(num_rows, self.config.interest_size, has_rows=rows is not None))
        outputs, blocks, places = items_of(image.arrays).outputs, list(self._iterate_blocks()), None
        if rows is not None:
            image.arrays["rows"][:] = rows
            num_all = 1 + max(int(each.max(initial=0)) for each in (rows, *(table_rows for table_rows, _ in blocks)))
            places = np.full(num_all, -1, dtype=np.int32)
            places[rows] = np.arange(len(rows), dtype=np.int32)
        for table_rows, arrays in blocks:
            for start in range(0, len(table_rows), PIECE_ROWS):
                piece = slice(start, start + PIECE_ROWS)
                into = table_rows[piece] if places is None else places[table_rows[piece]]
                is_wanted = into >= 0
                outputs.vectors[into[is_wanted]] = arrays["outputs"][piece][is_wanted]
                outputs.squares[into[is_wanted]] = arrays["output_squares"][piece][is_wanted]
        return image

    @cached_property
    def _mapped(self) -> dict[str, dict[int, Arrays]]:
        return {}

    def _map(self, part: str = "interest") -> dict[int, Arrays]:
        """Return the arrays of a part's trained item blocks, mapped from disk, so that they take no memory of the process."""
        if part not in self._mapped:
            with explain_damage(self.folder):
                self._mapped[part] = {
                    block: map_image(self.folder / entry["file"], entry)
                    for (kind, block), entry in entries_of(self.manifest).items()
                    if kind == part
                }
        return self._mapped[part]

    def _iterate_blocks(self) -> Iterator[tuple[NDArray[np.uint32], Arrays]]:
        """Yield the table rows and the arrays of each trained block. The one that was last in memory, the newest, comes last."""
        last = self.manifest.get("resident_block", 0)
        for _, arrays in sorted(self._map().items(), key=lambda item: item[0] == last):
            yield arrays["rows"] if "rows" in arrays else np.arange(len(arrays["outputs"]), dtype=np.uint32), arrays

    def files(self) -> dict[str, dict[str, Any]]:
        """Return each file of this generation by name, with its manifest entry."""
        entries = list(entries_of(self.manifest).values())
        deltas = [entry["delta"] for entry in entries if "delta" in entry]
        return {entry["file"]: entry for entry in entries + deltas}


def entries_of(manifest: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the entries of a manifest's files by kind ("users", or a part's name) and number (micro-partition, or block)."""
    entries = {("users", int(number)): entry for number, entry in manifest.get("users", {}).items()}
    items = manifest.get("items", {}).items()
    return entries | {(part, n): entry for part, blocks in items for n, entry in enumerate(blocks) if entry}


def open_generation(folder: Path) -> Generation:
    """Return the current generation of a store. Raises DamageError when it, or a file of it, is missing, altered or truncated.

    Only the sizes of vector files are checked here. Reading a file checks its bytes.
    """
    with explain_damage(folder):
        generation = Generation(folder, read_manifest(folder / STORE_MANIFEST))
        for name, entry in generation.files().items():
            verify_size(folder / name, entry)
    return generation


def has_generation(folder: Path) -> bool:
    return (folder / STORE_MANIFEST).exists()


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest in `path`. Raises DamageError when it is missing, altered or of another version."""
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format_version") != FORMAT_VERSION:
        raise DamageError(
            f"{path} is not a manifest of format {FORMAT_VERSION}: it was altered or is of another version"
        )
    return manifest


def write_manifest(folder: Path, name: str, manifest: dict[str, Any]) -> None:
    """Write the manifest and its digest to the file `name` of a store."""
    with raise_if_unwritten(folder, name):
        write_manifest_json(folder / name, manifest)


def next_generation(store_dir: Path) -> int:
    """Return the number of the next generation: above that of all generations, pinned ones included."""
    return 1 + max((read_json(path)["generation"] for path in manifest_paths(store_dir)), default=0)


def manifest_paths(folder: Path) -> list[Path]:
    """Return the paths of the current and the pinned manifests of a store."""
    current = folder / STORE_MANIFEST
    return [*([current] if current.exists() else []), *sorted((folder / "pinned").glob("*.json"))]
