"""The proof of a forgetting: every place that can name a user is searched again, all rows of it, and what was found is counted.

It does not ask what was removed: it reads what is on the disk and in the registry now, without leaving out what cannot have
the users. Where rows have no names (the store, the index) there must be as many as there are names beside them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.export.export import EXPORT_MANIFEST, path_of
from tasks.forgetting.copies import Copies, list_copied
from tasks.root.run import Root, list_folders
from tasks.users.user_set import UserSet, search_file
from trainer.errors import DamageError
from trainer.store.generation import Generation, has_generation, is_outdated
from trainer.store.layout import read_rows
from trainer.store.manifests import STORE_MANIFEST, read_manifest
from trainer.store.tokens import open_corpus
from trainer.system.files import read_json

Place = dict[str, Any]
"""place, rows that were searched, found: how many of them are of a user who was to be forgotten."""


def search_everywhere(copies: Copies) -> tuple[list[Place], list[Place]]:
    """Every place of this root's, in the order of the data's way; and the copies in the registry that are not its to remove.

    One row group or micro-partition is in memory at a time.
    """
    root, wanted = copies.root, copies.wanted
    places = [_search_files(root, name, wanted) for name in ("events", "rejects", ".tmp", "tune")]
    for parent in ("corpus", "export"):
        places += [
            _search_files(root, f"{parent}/{folder.name}", wanted) for folder in list_folders(root.path / parent, "*")
        ]
    places += _search_indexes(root)
    places += _search_store(root)
    copied = list_copied(copies)
    places += [place for place in copied if "used_by" not in place]
    folders = [copy.folder.resolve() for copy in copies.logged if copy.model_id in copies.kept and copy.folder]
    places.append(_search_files(root, "mlartifacts", wanted, folders))
    return places, [place for place in copied if "used_by" in place]


def _search_files(root: Root, name: str, wanted: UserSet, besides: Sequence[Path] = ()) -> Place:
    """All Parquet files under a folder, hidden ones and leftovers too: those with user ids are searched, all rows count.

    Those in the folders `besides` are left out.
    """
    rows = found = 0
    paths = sorted((root.path / name).rglob("*.parquet"))
    for path in [path for path in paths if not any(path.resolve().is_relative_to(one) for one in besides)]:
        try:
            with pq.ParquetFile(path) as file:
                rows += file.metadata.num_rows
                if "user_id" in file.schema_arrow.names:
                    found += sum(int(is_wanted.sum()) for is_wanted in search_file(file, wanted))
        except (OSError, pa.ArrowException) as error:
            raise DamageError(
                f"{path} cannot be read ({error}): nobody can be looked for in it; remove it or bring back a copy, "
                "then give the same command again"
            ) from None
    return {"place": name, "rows": rows, "found": found}


def _search_indexes(root: Root) -> Iterator[Place]:
    """Rows of an index beyond the vectors of its export."""
    for folder in list_folders(root.path / "export", "*"):
        manifest = read_json(folder / EXPORT_MANIFEST)
        name = manifest["index"]["file"]
        index: Any = faiss.read_index(str(path_of(folder, manifest, name)), faiss.IO_FLAG_MMAP_IFC)
        surplus = index.ntotal - sum(about["rows"] for about in manifest["user_files"].values())
        yield {"place": f"export/{folder.name}/{name}", "rows": index.ntotal, "found": abs(surplus)}


def _search_store(root: Root) -> Iterator[Place]:
    """Rows of a generation beyond those that its corpus has; which has been searched by name."""
    if not has_generation(root.store) or is_outdated(root.store):
        return
    for path in [root.store / STORE_MANIFEST, *sorted((root.store / "pinned").glob("*.json"))]:
        generation = Generation(root.store, read_manifest(path))
        corpus = root.corpus(generation.manifest["window_id"])
        num_users = open_corpus(corpus).users.tolist() if corpus.exists() else [0] * generation.num_partitions
        rows = surplus = 0
        for partition, entry in generation.manifest["users"].items():
            num_rows = len(read_rows(root.store, entry).squares)
            rows, surplus = rows + num_rows, surplus + abs(num_rows - num_users[int(partition)])
        yield {"place": f"store/{path.relative_to(root.store)}", "rows": rows, "found": surplus}
