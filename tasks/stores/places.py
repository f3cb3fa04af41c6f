"""Where vectors are pushed to: the URL of a store, and what push asks of every store.

    postgresql://USER@HOST/DB   lancedb:///PATH   qdrant://HOST:6333   qdrant:///PATH   parquet:///PATH

`?prefix=shop_` goes before the names of all tables. A store has two sides, a and b: each has a table of users and one of
items. One side serves. A push brings the other one up to date, then readers are switched to it.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.release.release_reader import KEYS
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.trainer.errors import ConfigError, DamageError, InputError, SurfError, UnavailableError
from surf2vec.trainer.system.files import lock

ADAPTERS = {  # scheme → module, class, package, extra
    "postgresql": ("postgres", "PostgresStore", "psycopg2", "pgvector"),
    "lancedb": ("lance", "LanceStore", "lancedb", "lancedb"),
    "qdrant": ("qdrant", "QdrantStore", "qdrant_client", "qdrant"),
    "parquet": ("parquet", "ParquetStore", "pyarrow", ""),
}
WAYS = "postgresql://USER@HOST/DB, lancedb:///PATH, qdrant://HOST:6333, qdrant:///PATH or parquet:///PATH"


@dataclass(frozen=True)
class Side:
    """What one side of a store holds, as the store records it.

    number: counts pushes up, so that the side with the lower one is the former; is_complete: False while a push writes it.
    """

    name: str
    release: str
    version: int
    space_id: str
    window_end: str
    vector_size: int
    manifest_sha256: str
    pushed_at: str
    number: int
    is_complete: bool = False
    serves: bool = False

    def record(self) -> dict[str, Any]:
        """Return the values that a store keeps."""
        return asdict(self)


@dataclass(frozen=True)
class Change:
    """What a side's table must lose and gain. Changed rows are in both.

    share: of the release's rows that are written. rows: tables with the key, `vector` and `digest`.
    """

    removed: list[str]
    rows: Iterable[pa.Table]
    share: float


class Store(Protocol):
    """What push asks of a store. `name` is a side's, `kind` users or items. Errors of the vendor's client become SurfErrors."""

    place: "Place"

    def read_sides(self) -> list[Side]:
        """Return what is recorded of each side."""

    def begin(self, side: Side, since: Side | None) -> None:
        """Record that the side is being written, and make its tables: empty, or copies of those of `since`.

        Existing tables stay, unless `since` is None or their vectors have another size. Raises InputError if a name is taken by
        what no push made.
        """

    def read_digests(self, name: str, kind: str) -> pl.DataFrame:
        """Return the key and the digest of every row."""

    def change(self, name: str, kind: str, change: Change) -> None:
        """Remove and write rows."""

    def read_vectors(self, name: str, kind: str, keys: list[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of these rows by key."""

    def count(self, name: str, kind: str) -> int:
        """Return the number of rows."""

    def swap(self, side: Side) -> None:
        """Record the side and let readers see it instead of the other, in one step."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True)
class Place:
    """The URL of a store, in parts. options: its query without the prefix."""

    url: str
    scheme: str
    host: str
    path: str
    prefix: str
    options: dict[str, str]

    def __str__(self) -> str:
        return mask_credentials(self.url)

    def table(self, kind: str, name: str = "") -> str:
        """Return the name that readers use, or that of a side's own table."""
        return f"{self.prefix}{kind[:-1]}_vectors{f'_{name}' if name else ''}"

    @property
    def log_table(self) -> str:
        """The table in which the store keeps its sides."""
        return f"{self.prefix}surf2vec_push"

    def keep_tables(self, sides: list[Side], present: set[str], side: Side, since: Side | None) -> set[str]:
        """Return the tables of a side that stay when a push begins: all or none.

        present: all names in the store. Raises InputError if a name is taken by what no push made.
        """
        known = next((one for one in sides if one.name == side.name), None)
        tables = {self.table(kind, side.name) for kind in KEYS}
        views = set() if any(one.serves for one in sides) else {self.table(kind) for kind in KEYS}
        if names := ", ".join(sorted(present & (views if known else views | tables))):
            raise InputError(
                f"{self} has {names} already, which no push made: nothing was changed; push beside it with ?prefix=NAME_"
            )
        return present & tables if known and since and known.vector_size == side.vector_size else set()


def parse_place(url: str) -> Place:
    """Return the parts of a store's URL. Raises ConfigError if it is none, or has a password."""
    parts = urlsplit(url)
    if parts.scheme not in ADAPTERS:
        raise ConfigError(f"{mask_credentials(url)!r} is no store: write {WAYS}")
    query = dict(parse_qsl(parts.query))
    if parts.password is not None or "password" in query:
        raise ConfigError(
            f"the URL of a {parts.scheme} store has a password, which logs and manifests would keep: leave it out, and set "
            "PGPASSWORD (Qdrant: QDRANT_API_KEY) in the environment"
        )
    prefix = query.pop("prefix", "")
    if not re.fullmatch(r"([a-z][a-z0-9_]{0,29})?", prefix):
        raise ConfigError(
            f"prefix={prefix!r} is no prefix of a table: use up to 30 of a to z, 0 to 9 and _, a letter first"
        )
    path = unquote(parts.path)
    is_folder = parts.scheme in ("lancedb", "parquet") or (parts.scheme == "qdrant" and not parts.netloc)
    if is_folder and (parts.netloc or len(path) < 2):
        raise ConfigError(f"{url!r} names no folder: write {parts.scheme}:///PATH, with three slashes")
    if parts.scheme == "qdrant" and parts.netloc and path.strip("/"):
        raise ConfigError(f"{mask_credentials(url)!r} has a path after the host: write qdrant://HOST:6333?prefix=NAME_")
    known = {"https": ("true", "false")} if parts.scheme == "qdrant" and parts.netloc else {}
    for name, value in query.items() if parts.scheme != "postgresql" else ():  # libpq knows its own
        if value not in known.get(name, ()):
            options = "prefix=NAME_, https=true and https=false" if known else "prefix=NAME_ only"
            raise ConfigError(
                f"the option {name} in the URL of a {parts.scheme} store, or its value, is unknown: write {options}"
            )
    return Place(url, parts.scheme, parts.netloc, path, prefix, query)


@contextmanager
def open_store(url: str) -> Iterator[Store]:
    """Yield the store of a URL, connected. Raises ConfigError for a wrong URL or a missing extra, UnavailableError if away."""
    place = parse_place(url)
    module, name, package, extra = ADAPTERS[place.scheme]
    if find_spec(package) is None:
        raise ConfigError(f"{place.scheme}:// needs {package}: pip install -c constraints.txt -e '.[{extra}]'")
    adapter = import_module(f"surf2vec.tasks.stores.{module}")
    try:
        store: Store = getattr(adapter, name)(place)
        try:
            yield store
        finally:
            store.close()
    except adapter.ERRORS as error:
        raise explain(place, error) from None


def parse_side(values: dict[str, Any], place: Place) -> Side:
    """Return a side from what a store recorded. Raises DamageError if it is not what a push recorded."""
    try:
        return Side(**{field.name: values[field.name] for field in fields(Side)})
    except KeyError as error:
        raise DamageError(
            f"{place.log_table} in {place} has no {error}: no push made it, or a newer version did"
        ) from None


def lock_folder(place: Place) -> ExitStack:
    """Make the folder of a store and lock it until the result is closed. Raises UnavailableError if another push has it."""

    def refuse(holder: str) -> None:
        raise UnavailableError(f"another push to {place} is running: run the same command again when it has ended")

    folder, stack = Path(place.path), ExitStack()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(lock(folder / f".{place.log_table}.lock", on_wait=refuse))
    except OSError as error:
        raise ConfigError(f"cannot write to {place}: {error.strerror}") from None
    return stack


def explain(place: Place, error: Exception) -> SurfError:
    """Return the error to raise for one of a vendor's client."""
    text = " ".join(str(error).split())[:500]
    if "no password supplied" in text:
        return ConfigError(f"{place} wants a password, and there is none: set PGPASSWORD, or write it into ~/.pgpass")
    if "authentication failed" in text:
        return ConfigError(f"{place} refuses the user or the password of PGPASSWORD: {text}")
    if getattr(error, "status_code", None) in (401, 403):
        return ConfigError(f"{place} refuses the key: set QDRANT_API_KEY to one that may write ({text})")
    if 'extension "vector"' in text:
        return ConfigError(
            f"{place} has no pgvector: install it there, and let an owner run `create extension vector` ({text})"
        )
    if "lock timeout" in text:
        return UnavailableError(
            f"another push to {place}, or a reader's long query, holds it: try again later ({text})"
        )
    return UnavailableError(f"{place} does not do it: {text}; readers have what they had, and the same push goes on")


def as_vectors(rows: pa.Table) -> NDArray[np.float32]:
    """Return the column `vector` as float32[n, D]."""
    column = rows["vector"].combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1).astype(np.float32, copy=False)


def empty_digests(kind: str) -> pl.DataFrame:
    """Return digests of no rows, with the columns that `Store.read_digests` returns: the key and `digest`."""
    return pl.DataFrame(schema={KEYS[kind]: pl.String, "digest": pl.Int64})


def slice_rows(tables: Iterable[pa.Table], num_rows: int) -> Iterator[pa.Table]:
    """Yield tables in pieces of at most so many rows."""
    for rows in tables:
        for start in range(0, len(rows), num_rows):
            yield rows.slice(start, num_rows)
