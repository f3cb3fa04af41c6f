"""The vectors of a release in Python. surf2vec/commands.py and surf2vec/operations.py have the commands as functions.

Frames are Polars. Every error that the caller can fix is a `SurfError`; its message says what to do.
"""

import glob
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from surf2vec import commands
from surf2vec.arguments import configure, existing_root, find_names
from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, ReleaseFolder, check_tables, open_folder
from surf2vec.tasks.release.release_reader import describe_token, find_other, read_token
from surf2vec.tasks.release.url_rules import KnownItems
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import InputError, SurfError

__all__ = ["Release", "SurfError", "check_pair", "make_item", "open_release"]


def open_release(place: str | Path, release: str | None = None) -> "Release":
    """Open a release: of a root the one that serves, or the one named; or that in a folder which `pull` wrote.

    Raises InputError if there is none.
    """
    folder = Path(place)
    if (folder / EXPORT_MANIFEST).exists():
        return Release(folder)
    from surf2vec.tasks.registry.releases import current_release

    root = existing_root(place)
    return Release(root.export(release or current_release(root, configure(None, {}, place).publish)), root)


def check_pair(*files: str | Path) -> None:
    """Raise InputError unless these files of vectors are all of one release: only then users rank items by dot product.

    files: Parquet files or globs, such as "vectors/user_vectors/*.parquet". A `Release` checks its own files by itself.
    """
    paths = [path for one in files for path in sorted(glob.glob(str(one))) or [str(one)]]
    found = {describe_token(token) if (token := read_token(Path(path))) else "no release": path for path in paths}
    if len(found) > 1 or "no release" in found:
        named = "; ".join(f"{path} is of {release}" for release, path in found.items())
        raise InputError(f"{named}: vectors of two releases do not belong together; read both from one folder")


def make_item(url: str, place: "str | Path | Release") -> str | None:
    """Return the item of a URL, a path or a page id by the rules of a root, or of a release; None if it is not a page.

    place: a root, the folder of a release, or a `Release`, for many URLs. A token in the path stays if the release has it in an
    item; a root masks all. Raises InputError if the place is none of these.
    """
    if not isinstance(place, Release):
        if not (Path(place) / EXPORT_MANIFEST).exists():
            return KnownItems.of_release({"rules": read_catalog(existing_root(place)).rules}, []).make_item(url)
        place = Release(Path(place))
    return place._reader.known_items.make_item(url)


@dataclass(frozen=True)
class Release:
    """The vectors of a release. root: the root that has it; None for a folder that was pulled.

    What is read is checked against the manifest first; DamageError says which file was altered, and what to do.
    """

    folder: Path
    root: Root | None = None

    @cached_property
    def _reader(self) -> ReleaseFolder:
        reader = open_folder(self.folder)
        if self.root is None:  # it came from somewhere
            check_tables(self.folder, reader.manifest)
        return reader

    @property
    def manifest(self) -> dict[str, Any]:
        """Its manifest: release, space_id, num_users, num_items, and the columns of each part of a vector."""
        return self._reader.manifest

    def user_vectors(self, part: str | None = None) -> pl.LazyFrame:
        """Return user_id and vector of all users, lazily; a vector is float32[D]. part: interest, trail or activity; by default
        all.
        """
        return self._scan("user", part)

    def item_vectors(self, part: str | None = None) -> pl.LazyFrame:
        """Return url, count (its events in the window) and vector of all items, lazily. A user's dot product with a vector ranks.

        part: as of users. A release that was trained with a tree has no item vectors: InputError.
        """
        return self._scan("item", part)

    def similar(self, user_id: str, k: int = 10, part: str | None = None) -> pl.DataFrame:
        """Return the k users nearest by cosine: user_id, score. Raises InputError for a user without a vector.

        part: interest, trail or activity; by default all but activity. By a part every user is compared, which takes longer.
        """
        found = self._ask(user_id, k, part)["neighbours"]
        return pl.DataFrame(found, schema={"user_id": pl.String, "score": pl.Float64})

    def rank(self, user_id: str, k: int = 10) -> pl.DataFrame:
        """Return the k items that rank first for a user, without those that the user has seen: url, score.

        A pulled folder does not know what a user has seen. Raises InputError for a user without a vector.
        """
        return pl.DataFrame(self._ask(user_id, k)["items"], schema={"url": pl.String, "score": pl.Float64})

    def renew(self, vectors: np.ndarray, pages: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return vectors float32[n, D] whose trails are summed up from the users' last pages; whose were renewed, bool[n]; and of
        how many pages the release does not know the item, int64[n].

        vectors: last night's, float32[n, D]; zeros for a user without one, who then has neither interest nor activity. pages: a
        list of URLs for each user, oldest first. A user without a known page keeps the vector. Nothing is trained.
        Raises InputError if the release has no trail, ValueError for vectors of another shape and pages that are no lists.
        """
        sums, found = self._reader.trail_sums, self._reader.known_items.find(pages)
        return *sums.renew(vectors, *found), found.count_unknown()

    def infer(self, events: pl.DataFrame, **settings: Any) -> pl.DataFrame:
        """Return vectors of the users in a frame of events (user_id, url, ts), whom the release need not know: user_id, vector.

        The events are cleaned like those of a night. Raises InputError if the root serves another release by now.
        """
        if self.root is None:
            raise InputError(
                f"{self.folder} was pulled: open the root to infer, as that has the item vectors of the training"
            )
        with tempfile.TemporaryDirectory() as name:
            logs, out = Path(name) / "events.parquet", Path(name) / "vectors.parquet"
            events.write_parquet(logs)
            commands.infer(str(logs), out, self.root.path, **settings)
            if other := find_other(out, self.manifest):
                raise InputError(f"what was inferred {other}; open the release that serves")
            return pl.read_parquet(out)

    def _scan(self, kind: str, part: str | None) -> pl.LazyFrame:
        names = list(self.manifest.get(f"{kind}_files", {}))
        if not names:
            raise InputError(f"release {self.manifest['release']} has no {kind} vectors: it was trained with a tree")
        paths = [self._reader.path(f"{kind}_vectors/{name}") for name in names]
        frame, values = pl.scan_parquet(paths), pl.col("vector").arr.to_list().cast(pl.List(pl.Float32))
        if "scale" in frame.collect_schema():
            values = values * pl.col("scale")
        columns = self._reader.find_columns(part) if part else slice(0, self.manifest["vector_size"])
        size: int = columns.stop - columns.start
        values = values.list.slice(columns.start, size)
        return frame.with_columns(values.list.to_array(size).cast(pl.Array(pl.Float32, size))).drop(
            "scale", strict=False
        )

    def _ask(self, user_id: str, k: int, part: str | None = None) -> dict[str, Any]:
        from surf2vec.tasks.queries.similar import similar_users

        name = find_names(self.root, configure(None, {}, self.root.path))(user_id) if self.root else user_id
        return similar_users(self.root or Root(self.folder), self.folder, name, k, part)
