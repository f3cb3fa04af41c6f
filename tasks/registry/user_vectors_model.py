"""The registered model: vectors, nearest users and next items for user ids. Needs mlflow (with pandas), numpy, pyarrow and faiss.

MLflow copies this file and the modules that it imports from surf2vec, release_reader.py, trail_sums.py and url_rules.py, into the
model, and runs it at load time. So they import nothing else of surf2vec, and surf2vec does not import this file. `predict` takes
a column `user_id` and returns a row for each user id, in the same order:

    user_id, vector                 the vector as a list of floats; None for a user without one
    neighbours, scores              with params {"k": 10}: nearest users by cosine, nearest first, the user left out
    items, item_scores              with params {"items": 10}: items by dot product, highest first
    unknown_pages                   with pages: how many of the row's pages the release does not know

With a column `pages`, a list of URLs a row, oldest first, a vector's trail is computed from the last of them. A user who is
unknown, or has no id, then has neither interest nor activity: zeros. Nobody has an interest if the release was reduced: its
dimensions mix interest and trail. URLs become items by the rules of the release. Those that it does not know are left out. A user
without any other keeps last night's vector, or None.

`items` leaves out the row's `pages`, and those in a column `seen`, a list of URLs a row, from which no vector is computed. With
params {"seen": "keep"} and without that column nothing is left out.

With params {"part": "interest"}, "trail" or "activity" vectors, neighbours and items are of that part alone; the manifest names
its columns. With items, activity is refused: it ranks none. Without it vectors are whole, but neighbours are found without
activity. For neighbours by one part every user is compared, which takes longer.

The vectors are in the model, or in the export's folder, whose URI is in the model's configuration. If the folder has another path
on this machine, use `mlflow.pyfunc.load_model(..., model_config={"export_uri": "file:///mnt/export/r1"})`. Loading reads only the
manifest and the sizes of the files.
"""

import hashlib
import json
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import mlflow.pyfunc
import numpy as np
import pandas as pd
from mlflow.models import set_model

for name in ("trail_sums", "release_reader", "url_rules"):
    sys.modules.pop(name, None)  # the modules of another release that this process has loaded
from release_reader import TOKEN, ReleaseError, ReleaseReader, columns_of_part, compared_columns, find_other  # noqa: E402
from trail_sums import TrailSums  # noqa: E402
from url_rules import KnownItems  # noqa: E402 (see above)


class UserVectors(mlflow.pyfunc.PythonModel):
    """Predicts from an export's folder: see the module docstring."""

    def load_context(self, context: Any) -> None:
        self.release = open_registered(context)
        self.manifest = self.release.manifest

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        k, num_items = (read_count(params, name) for name in ("k", "items"))
        name = (params or {}).get("part")
        part = columns_of_part(self.manifest, name) if name else None
        given = read_columns(model_input)
        keeps_seen = read_seen(params, given)
        index = next(iter(given.values())).index
        ids = [as_id(value) for value in given["user_id"]] if "user_id" in given else [None] * len(index)
        own_rows, vectors = self.gather_users(ids)
        is_found = own_rows >= 0
        found = {name: self.known_items.find(list(given[name]), name) for name in ("pages", "seen") if name in given}
        if "pages" in given:
            vectors, is_renewed = self.trail_sums.renew(vectors, *found["pages"])
            is_found |= is_renewed
        own_rows, vectors = own_rows[is_found], vectors[is_found]
        columns: dict[str, list[Any]] = {"vector": vectors[:, part or slice(None)].tolist()}
        part = part or compared_columns(self.manifest)
        if k:
            near = self.release.find_neighbours(own_rows, vectors, k, part)
            columns["neighbours"], columns["scores"] = ([[one[at] for one in row] for row in near] for at in (0, 1))
        if num_items:
            if part.start >= compared_columns(self.manifest).stop:
                raise ValueError("activity ranks no items: leave out `items`, or params['part']")
            if not self.manifest["item_files"]:
                raise ValueError("this release was trained with a tree and has no item vectors: leave out `items`")
            known = [] if keeps_seen else [pages.list_known() for pages in found.values()]
            seen = [np.concatenate(lists) for lists in zip(*known, strict=True)] or [[]] * len(ids)
            left_out = [seen[row] for row in np.flatnonzero(is_found)]
            best = list(self.release.rank_items(vectors, num_items, part, left_out))
            columns["items"], columns["item_scores"] = ([row[at] for row in best] for at in (0, 1))
        answer = {"user_id": given["user_id"].tolist()} if "user_id" in given else {}
        for name, values in columns.items():
            rest = iter(values)
            answer[name] = [next(rest) if one else None for one in is_found]
        if found:
            answer["unknown_pages"] = sum(pages.count_unknown() for pages in found.values()).tolist()
        answer = pd.DataFrame(answer, index, dtype=object)
        answer.attrs |= {key: self.manifest[key] for key in TOKEN}  # the release that the vectors belong to
        return answer

    def gather_users(self, ids: list[str | None]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows in the index int64[n], -1 for who has no vector, and vectors float32[n, D], zeros for them."""
        rows = np.full(len(ids), -1, np.int64)
        vectors = np.zeros((len(ids), self.manifest["vector_size"]), np.float32)
        users = self.release.find_users(set(ids) - {None})
        for place, user_id in enumerate(ids) if users else ():
            if user_id in users:
                rows[place], vectors[place] = users[user_id]
        return rows, vectors

    @cached_property
    def trail_sums(self) -> TrailSums:
        return TrailSums.of_release(self.manifest, self.release.trail_inputs[1])

    @cached_property
    def known_items(self) -> KnownItems:
        return KnownItems.of_release(self.manifest, self.release.urls)


def open_registered(context: Any) -> ReleaseReader:
    """Return the release of a model, all of whose files have the sizes that were registered.

    If the model holds a copy, `context` has the artifact "export". If it refers to a folder, `context` has the artifact
    "manifest", a copy of the folder's manifest, and the configuration "export_uri".
    """
    if "manifest" in context.artifacts:
        registered = Path(context.artifacts["manifest"]).read_bytes()
        folder = folder_of(context.model_config["export_uri"])
        way_out = (
            "restore the folder, load another version, or say where the folder is now with "
            'mlflow.pyfunc.load_model(..., model_config={"export_uri": "file:///the/folder"})'
        )
    else:
        folder = Path(context.artifacts["export"])
        registered = (folder / "manifest.json").read_bytes()
        way_out = "load another version, or repeat the `surf2vec run` that registered this one: it repairs the copy"
    try:
        release = ReleaseReader(folder, read_manifest(registered), way_out)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ReleaseError(f"manifest.json in {folder} was altered: {way_out}") from None
    if not folder.is_dir():
        raise release.error("it is not on this machine: moved, deleted, or its disk is not mounted")
    for name, about in release.files.items():
        release.check(name)
        found_bytes, num_bytes = release.stamps[name][0], about["bytes"]
        if found_bytes != num_bytes:
            other = find_other(folder / name, release.manifest)
            raise release.error(f"{name} there {other or f'has {found_bytes:,} bytes, registered were {num_bytes:,}'}")
    # The manifest is checked last, so that a folder that is replaced meanwhile is noticed.
    with release.opened("manifest.json", is_whole=False) as path:
        digests = [hashlib.sha256(content).hexdigest() for content in (path.read_bytes(), registered)]
    if digests[0] != digests[1]:
        raise release.error("it holds another export: sha256 of manifest.json {}, registered was {}".format(*digests))
    return release


def read_manifest(content: bytes) -> dict[str, Any]:
    """Parse a manifest. Raises ValueError, KeyError, TypeError or AttributeError unless its digest is right."""
    manifest = json.loads(content)
    digest = manifest.pop("digest")
    text = json.dumps(manifest, sort_keys=True, ensure_ascii=False, allow_nan=False)
    if digest != hashlib.sha256(text.encode()).hexdigest():
        raise ValueError(digest)
    return manifest


def folder_of(uri: str) -> Path:
    """Return the folder that a file:// URI or a plain path names."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if not os.path.isabs(uri):
        raise ReleaseError(f"export_uri is {uri!r}: give a folder of this machine, for instance file:///mnt/export/r1")
    return Path(uri)


def read_columns(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the columns `user_id`, `pages` and `seen`, those that are there. Raises ValueError without user_id and pages."""
    given = {name: frame[name] for name in ("user_id", "pages", "seen") if name in frame}
    if not given.keys() - {"seen"}:
        raise ValueError("give a column user_id, a column pages with lists of URLs, or both")
    cells = [column.iloc[0] for column in given.values()] if len(frame) == 1 else [None]
    if all(map(is_list, cells)) and ("user_id" in given or (len(cells[0]) and all(map(is_list, cells[0])))):
        # {"inputs": {"user_id": [...], "pages": [[...]]}} over HTTP arrives as one row with a list in each column.
        if len({len(cell) for cell in cells}) > 1:
            raise ValueError("the columns have different lengths: give a list of pages for each user")
        return {name: pd.Series(list(cell), dtype=object) for name, cell in zip(given, cells, strict=True)}
    return {name: column.astype(object) for name, column in given.items()}


def read_seen(params: dict[str, Any] | None, given: dict[str, pd.Series]) -> bool:
    """Return whether items that the user has seen are kept. Raises ValueError for another value than those of `seen`."""
    value = (params or {}).get("seen") or "leave out"
    if value not in ("leave out", "keep"):
        raise ValueError(f"params['seen'] is {value!r}: use 'keep', or by default 'leave out'")
    if value == "keep" and "seen" in given:
        raise ValueError("params['seen'] is 'keep', but a column `seen` has what to leave out: give one of them")
    return value == "keep"


def is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray))


def read_count(params: dict[str, Any] | None, name: str) -> int:
    """Return an integer of the params, 0 by default. Raises ValueError if it is negative."""
    value = int((params or {}).get(name) or 0)
    if value < 0:
        raise ValueError(f"params[{name!r}] is {value}: give 0 or more")
    return value


def as_id(value: Any) -> str | None:
    """Return a user id as text, None for a missing one. Removes the .0 of integers that pandas converted to floats."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    return str(int(value)) if isinstance(value, (float, np.floating)) and value.is_integer() else str(value)


set_model(UserVectors())
