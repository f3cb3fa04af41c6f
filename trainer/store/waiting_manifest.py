"""The manifest of a store whose micro-partitions were split or joined, while it waits to count.

It waits as `pinned/repartitioned.json`, so that nobody removes its files. What decides is the number of micro-partitions that
the root names in one file of its own: whoever writes next makes the waiting manifest the current one, or lets go of it.
"""

import os
from pathlib import Path
from typing import Any

from trainer.store.manifests import STORE_MANIFEST, write_manifest
from trainer.store.writer import remove_unreferenced
from trainer.system.files import read_json, sync_folder

WAITING = "repartitioned"


def has_waiting(folder: Path) -> bool:
    """Whether a manifest waits in the store."""
    return _path(folder).exists()


def hold_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Let a manifest, whose files are written, wait. The caller holds the store's lock."""
    write_manifest(folder, f"pinned/{WAITING}.json", manifest)


def settle_manifest(folder: Path, partitions: int | None) -> None:
    """Make the manifest that waits the current one if it has so many micro-partitions; let go of it otherwise.

    The caller holds the store's lock. Killed anywhere, the same call completes it. A store that was trained on meanwhile
    stays as it is.
    """
    path = _path(folder)
    if not path.exists():
        return
    waiting, current = read_json(path), read_json(folder / STORE_MANIFEST)
    if waiting["partitions"] == partitions and waiting["generation"] > current["generation"]:
        os.replace(path, folder / STORE_MANIFEST)
    else:
        path.unlink()
    sync_folder(folder)
    remove_unreferenced(folder)


def _path(folder: Path) -> Path:
    return folder / "pinned" / f"{WAITING}.json"
