"""Where vectors are pushed to: the URL of a store, and what push asks of every store.

    postgresql://USER@HOST/DB   lancedb:///PATH   qdrant://HOST:6333   qdrant:///PATH   parquet:///PATH

`?prefix=shop_` goes before the names of all tables. A store has two sides, a and b: each has a table of users and one of
items. One side serves. A push updates the other one, then readers are switched to it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.release.release_reader import KEYS
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.wording import install_command
from surf2vec.trainer.errors import ConfigError, DamageError, InputError, SurfError, UnavailableError
from surf2vec.trainer.system.files import lock

ADAPTERS = {  # scheme → module, class, package, extra
    "postgresql": ("postgres", "PostgresStore", "psycopg2", "pgvector"),
    "lancedb": ("lance", "LanceStore", "lancedb", "lancedb"),
    "qdrant": ("qdrant", "QdrantStore", "qdrant_client", "qdrant"),
    "parquet": ("parquet", "ParquetStore", "pyarrow", ""),
}
FOLDERS = ("lancedb", "parquet")  # whose clients do not lock what they write to
WAYS = "postgresql://USER@HOST/DB, lancedb:///PATH, qdrant://HOST:6333, qdrant:///PATH or parquet:///PATH"
_HOST = r"([\w.%-]*|\[[\da-fA-F:.]+\])(:\d+)?"
PLAIN = {  # the whole URL: nothing in it can be a password
    "postgresql": rf"postgresql://([\w.%+-]+@)?{_HOST}(,{_HOST})*(/[\w.%-]*)?(\?[^#]*)?",
    "qdrant": rf"qdrant://({_HOST})?(/[^?#]*)?(\?[^#]*)?",
}
POSTGRES_OPTION = re.compile(  # those of libpq that have no password, and ours
    r"prefix|index|options|passfile|service|host|hostaddr|port|user|dbname|ssl(mode|rootcert|cert|key|crl)|channel_binding|"
    r"ssl_min_protocol_version|target_session_attrs|gssencmode|krbsrvname|keepalives(_idle|_interval|_count)?|tcp_user_timeout"
)
FAULTS: list[tuple[str, type[SurfError], str]] = [
    ("no password supplied", ConfigError, "needs a password: set PGPASSWORD, or write it into ~/.pgpass"),
    ("authentication failed", ConfigError, "refuses the user or the password of PGPASSWORD: {}"),
    (
        'extension "vector"',
        ConfigError,
        "has no pgvector: install it there, and let an owner run `create extension vector` ({})",
    ),
    ("lock timeout", UnavailableError, "is held by another push, or by a reader's long query: try again later ({})"),
    ("", UnavailableError, "failed: {}; readers have what they had: run the same push again to resume it"),
]
"""Text in the error of a vendor's client, the error to raise, and its message."""


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


class Store(ABC):
    """What push asks of every store. `name` is a side's, `kind` users or items. Errors of its client become SurfErrors."""

    place: Place
    client: Any = None  # the connection, where there is one
    keeps_tables = True

    @abstractmethod
    def read_log(self) -> list[dict[str, Any]]:
        """Return what is recorded of each side, from the table of that name, which there is."""

    @abstractmethod
    def list_names(self) -> set[str]:
        """Return the names of all tables, views and aliases in the store."""

    @abstractmethod
    def record(self, side: Side) -> None:
        """Record a side."""

    @abstractmethod
    def make_table(self, kind: str, side: Side, since: Side | None) -> None:
        """Make the empty table of a side in the place of another one; it may be a copy of that of `since`."""

    @abstractmethod
    def read_digests(self, name: str, kind: str) -> pl.DataFrame:
        """Return the key and the digest of every row."""

    @abstractmethod
    def change(self, name: str, kind: str, removed: list[str], rows: Iterable[pa.Table], share: float) -> None:
        """Remove the rows with these keys, then write `rows`: tables with key, `vector` and `digest`.

        share: of the release's rows that are written. A changed row is removed and written.
        """

    def erase(self, name: str, user_ids: list[str]) -> None:
        """Remove these users from a side, and from what the store keeps of its older states, if that has names of users."""
        if user_ids:
            self.change(name, "users", user_ids, [], 0.0)

    @abstractmethod
    def read_vectors(self, name: str, kind: str, keys: list[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of these rows by key."""

    @abstractmethod
    def swap(self, side: Side) -> None:
        """Record the side and let readers see it instead of the other, in one step."""

    def read_sides(self) -> list[Side]:
        """Return what the store holds. Raises DamageError if it is not what a push recorded."""
        rows = self.read_log() if self.place.log_table in self.list_names() else []
        try:
            return [Side(**{field.name: values[field.name] for field in fields(Side)}) for values in rows]
        except KeyError as error:
            raise DamageError(
                f"{self.place.log_table} in {self.place} has no {error}: no push made it, or a newer version did"
            ) from None

    def begin(self, side: Side, since: Side | None) -> None:
        """Record that the side is being written, and make its tables.

        Its tables all stay or none: those of a known side with vectors of this size, with `since`. Raises InputError for a name
        that is taken by what no push made.
        """
        place, sides, present = self.place, self.read_sides(), self.list_names()
        known = next((one for one in sides if one.name == side.name), None)
        tables = {place.table(kind, side.name) for kind in KEYS}
        views = set() if any(one.serves for one in sides) else {place.table(kind) for kind in KEYS}
        if names := ", ".join(sorted(present & (views if known else views | tables))):
            raise InputError(
                f"{place} has {names} already, which no push made: nothing was changed; push beside it with ?prefix=NAME_"
            )
        if not (self.keeps_tables and known and since and known.vector_size == side.vector_size and tables <= present):
            self.record(replace(side, vector_size=0))  # if this push is killed, the next one makes the tables again
            for kind in KEYS:
                self.make_table(kind, side, since)
        self.record(side)


def parse_place(url: str) -> Place:
    """Return the parts of a store's URL. Raises ConfigError if it is none, or has a password."""
    parts = urlsplit(url)
    if parts.scheme not in ADAPTERS:
        raise ConfigError(f"{mask_credentials(url)!r} is not the URL of a store: write {WAYS}")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    is_plain = parts.scheme not in PLAIN or re.fullmatch(PLAIN[parts.scheme], url)
    if not is_plain or (parts.scheme == "postgresql" and not all(map(POSTGRES_OPTION.fullmatch, query))):
        raise ConfigError(
            f"the URL of a {parts.scheme} store has a password, which logs and manifests would keep, or something unknown: "
            f"write {WAYS}, with options of docs/stores.md, and set PGPASSWORD (Qdrant: QDRANT_API_KEY) in the environment"
        )
    prefix = query.pop("prefix", "")
    if not re.fullmatch(r"([a-z][a-z0-9_]{0,29})?", prefix):
        raise ConfigError(
            f"prefix={prefix!r} cannot begin the name of a table: use up to 30 of a to z, 0 to 9 and _, a letter first"
        )
    path, has_host = unquote(parts.path), parts.scheme == "qdrant" and bool(parts.netloc)
    if parts.scheme != "postgresql" and not has_host and (parts.netloc or len(path) < 2):
        raise ConfigError(f"{url!r} names no folder: write {parts.scheme}:///PATH, with three slashes")
    if has_host and path.strip("/"):
        raise ConfigError(f"{mask_credentials(url)!r} has a path after the host: write qdrant://HOST:6333?prefix=NAME_")
    for name, value in query.items() if parts.scheme != "postgresql" else ():
        if not (has_host and name == "https" and value in ("true", "false")):
            options = "prefix=NAME_, https=true and https=false" if has_host else "prefix=NAME_ only"
            raise ConfigError(f"the option {name} of a {parts.scheme} store, or its value, is unknown: write {options}")
    return Place(url, parts.scheme, parts.netloc, path, prefix, query)


@contextmanager
def open_store(url: str) -> Iterator[Store]:
    """Yield the store of a URL, connected. Raises ConfigError for a wrong URL or a missing extra, UnavailableError if away."""
    place = parse_place(url)
    module, name, package, extra = ADAPTERS[place.scheme]
    if find_spec(package) is None:
        raise ConfigError(f"{place.scheme}:// needs {package}: {install_command(extra)}")
    adapter = import_module(f"surf2vec.tasks.stores.{module}")
    try:
        with lock_folder(place) if place.scheme in FOLDERS else nullcontext():
            store: Store = getattr(adapter, name)(place)
            try:
                yield store
            finally:
                if store.client:
                    store.client.close()
    except adapter.ERRORS as error:
        text = mask_credentials(" ".join(str(error).split()))[:500]
        if getattr(error, "status_code", None) in (401, 403):
            raise ConfigError(f"{place} refuses the key: set QDRANT_API_KEY to one that may write ({text})") from None
        raised, message = next((raised, message) for part, raised, message in FAULTS if part in text)
        raise raised(f"{place} {message.format(text)}") from None


def lock_folder(place: Place) -> AbstractContextManager[None]:
    """Make the folder of a store, and return its lock, which raises UnavailableError if another push has it."""

    def refuse(holder: str) -> None:
        raise UnavailableError(f"another push to {place} is running: run the same command again when it has ended")

    try:
        Path(place.path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {place}: {error.strerror}") from None
    return lock(Path(place.path) / f".{place.log_table}.lock", on_wait=refuse)


def empty_digests(kind: str) -> pl.DataFrame:
    """Return digests of no rows, with the columns that `Store.read_digests` returns: the key and `digest`."""
    return pl.DataFrame(schema={KEYS[kind]: pl.String, "digest": pl.Int64})
