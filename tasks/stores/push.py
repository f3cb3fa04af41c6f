"""Pushes a release into a store that serves: what is new, changed and gone, a check, then one switch for readers.

Each row has a digest of its vector in the store. So the difference is right whatever the store holds: the release before, an
older one, or what a killed push left. A push writes only to the side that does not serve; the other stays for a rollback.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.export.vector_files import encode_rows
from surf2vec.tasks.registry.pull import find_version, pull
from surf2vec.tasks.registry.versions import Version
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, ReleaseFolder, open_folder
from surf2vec.tasks.release.release_reader import KEYS
from surf2vec.tasks.root.run import Root, open_scratch_folder
from surf2vec.tasks.stores.places import Side, Store, empty_digests
from surf2vec.tasks.users.tombstones import NOBODY, Tombstones, read_tombstones
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.system.files import digest_file

CHECKED_ROWS = 100
DIGEST_BYTES = 8
REWRITE_SHARE = 0.5  # if more of the rows change, the whole side is written


@dataclass(frozen=True)
class Pushed:
    """What is pushed: a release in a folder, and its version in the registry."""

    release: ReleaseFolder
    version: Version

    def name_side(self, name: str, number: int) -> Side:
        """Return what a side is that holds this release."""
        manifest = self.release.manifest
        return Side(
            name=name,
            release=manifest["release"],
            version=self.version.number,
            space_id=manifest["space_id"],
            window_end=self.version.tags.get("window_until", ""),
            vector_size=manifest["vector_size"],
            manifest_sha256=digest_file(self.release.folder / EXPORT_MANIFEST),
            pushed_at=datetime.now(UTC).isoformat(timespec="seconds"),
            number=number,
        )

    def read_rows(self, kind: str) -> Iterator[pa.Table]:
        """Yield all rows in batches: key, vector as float32, digest."""
        for keys, vectors in self.release.read_batches(kind):
            yield make_rows(kind, keys, vectors)

    def read_digests(self, kind: str) -> pl.DataFrame:
        """Return the key and the digest of every row."""
        return pl.concat([empty_digests(kind), *(pl.DataFrame(rows.drop(["vector"])) for rows in self.read_rows(kind))])

    def read_some(self, kind: str, keys: pl.Series) -> Iterator[pa.Table]:
        if len(keys):
            for rows in self.read_rows(kind):
                is_wanted = pl.Series(rows[KEYS[kind]]).is_in(keys.implode())
                if is_wanted.any():
                    yield rows.filter(is_wanted.to_arrow())


@contextmanager
def open_pushed(root: Root, uri: str, tracking_uri: str, on_event: OnEvent) -> Iterator[Pushed]:
    """Yield the release that `uri` names: from the root if it is there, else pulled into a folder that is removed at the end.

    That is in the root, if there is one: then the next command removes what a killed one left.
    """
    version = find_version(uri, tracking_uri)
    folder = root.export(version.tags["release"])
    manifest = folder / EXPORT_MANIFEST
    if manifest.exists() and digest_file(manifest) == version.tags["manifest_sha256"]:
        yield Pushed(open_folder(folder), version)
        return
    has_root = root.sources.exists()
    with open_scratch_folder(root, "push") if has_root else TemporaryDirectory(prefix="surf2vec-push-") as scratch:
        log(on_event, f"{folder} does not have {version.place}: it is pulled from the registry")
        folder = Path(scratch) / "pulled"
        pull(version.place, folder, tracking_uri, on_event, read_tombstones(root))
        yield Pushed(open_folder(folder), version)


def push(
    store: Store, pushed: Pushed, whole: bool, on_event: OnEvent = ignore_event, forgotten: Tombstones = NOBODY
) -> dict[str, Any]:
    """Let readers of the store see the release. Returns a summary; a repeated call changes nothing.

    whole: write every row, whatever the store's digests say. Users who were `forgotten` leave the former side, too. Raises
    DamageError, and switches nothing, if the store's rows are not those of the release.
    """
    started = time.monotonic()
    sides = {side.name: side for side in store.read_sides()}
    serving = next((side for side in sides.values() if side.serves), None)
    name = "b" if serving and serving.name == "a" else "a"
    num_forgotten = remove_forgotten(store, forgotten, [side for side in sides.values() if not side.serves])
    target = pushed.name_side(name, max((side.number for side in sides.values()), default=0) + 1)
    wanted = {kind: pushed.read_digests(kind) for kind in KEYS}
    served = {kind: store.read_digests(serving.name, kind) if serving else empty_digests(kind) for kind in KEYS}
    found = {
        f"{name}{'' if kind == 'users' else '_items'}": len(keys)
        for kind, key in KEYS.items()
        for name, keys in compare(served[kind], wanted[kind], key).items()
    }
    is_rewritten = whole or found["new"] + found["changed"] > REWRITE_SHARE * len(wanted["users"])
    if not whole and serving and holds(serving, target):
        checked = check_side(store, serving, served, wanted)
        changed, message = False, f"release {target.release} serves there already: nothing to do"
    else:
        if whole or not holds(sides.get(name), target):
            log(on_event, f"writing side {name} of {store.place}")
            write_side(store, pushed, target, None if is_rewritten else serving, wanted, on_event)
        written = {kind: store.read_digests(target.name, kind) for kind in KEYS}
        checked = check_side(store, target, written, wanted)
        store.swap(replace(target, is_complete=True, serves=True))
        changed, message = True, f"release {target.release} serves there now"
    num_forgotten += remove_forgotten(store, forgotten, store.read_sides())
    log(on_event, f"{store.place}: {message}")
    return {
        "store": str(store.place),
        "release": target.release,
        "version": target.version,
        "since": serving.release if serving else None,
        **found,
        "checked": checked,
        "users_forgotten": num_forgotten,
        "changed_store": changed,
        "message": message,
        "seconds": round(time.monotonic() - started, 3),
    }


def roll_back(store: Store, on_event: OnEvent = ignore_event) -> dict[str, Any]:
    """Switch readers back to the previous release. Repeating the call changes nothing. Raises InputError if there is none."""
    started = time.monotonic()
    sides = {side.serves: side for side in store.read_sides()}
    serving, former = sides.get(True), sides.get(False)
    if serving is None:
        raise InputError(f"nothing was pushed to {store.place} yet: there is nothing to roll back")
    if former is None or not former.is_complete:
        interrupted = "an interrupted push was writing over it: run the same push to finish it"
        reason = interrupted if former else "only one was pushed"
        raise InputError(f"{store.place} has no release before {serving.release}: {reason}")
    is_back = former.number > serving.number
    if not is_back:
        store.swap(replace(former, serves=True))
        log(on_event, f"{store.place}: release {former.release} serves there")
    shown = serving if is_back else former
    return {
        "store": str(store.place),
        "release": shown.release,
        "version": shown.version,
        "changed_store": not is_back,
        "message": f"release {shown.release} serves there{' already, rolled back' if is_back else ', rolled back'}",
        "seconds": round(time.monotonic() - started, 3),
    }


def holds(side: Side | None, target: Side) -> bool:
    """Return whether a side completely holds the release of `target`."""
    return side is not None and side.is_complete and side.manifest_sha256 == target.manifest_sha256


def compare(held: pl.DataFrame, wanted: pl.DataFrame, key: str) -> dict[str, pl.Series]:
    """Return the keys of rows that are new, changed and gone from `held` to `wanted`; both have the key and `digest`."""
    both = wanted.join(held, on=key, how="left", suffix="_held", maintain_order="left")
    is_new = both["digest_held"].is_null()
    is_changed = ~is_new & (both["digest"] != both["digest_held"])
    gone = held.join(wanted, on=key, how="anti")[key]
    return {"new": both.filter(is_new)[key], "changed": both.filter(is_changed)[key], "gone": gone}


def write_side(
    store: Store, pushed: Pushed, target: Side, since: Side | None, wanted: dict[str, pl.DataFrame], on_event: OnEvent
) -> None:
    """Bring a side that does not serve up to date: remove and write the rows that differ."""

    def report(tables: Iterator[pa.Table], kind: str, total: int) -> Iterator[pa.Table]:
        done = 0
        for rows in tables:
            yield rows
            done += len(rows)
            log_progress(on_event, f"push {kind}", done, total, "rows")

    store.begin(target, since)
    for kind, key in KEYS.items():
        found = compare(store.read_digests(target.name, kind), wanted[kind], key)
        written = pl.concat([found["new"], found["changed"]])
        log(on_event, f"{kind}: {len(written):,} rows to write, {len(found['gone']):,} to remove")
        rows = report(pushed.read_some(kind, written), kind, len(written))
        share = len(written) / max(1, len(wanted[kind]))
        store.change(target.name, kind, [*found["changed"], *found["gone"]], rows, share)


def check_side(store: Store, side: Side, held: dict[str, pl.DataFrame], wanted: dict[str, pl.DataFrame]) -> int:
    """Return how many random rows of a side were compared with the release. Raises DamageError if rows or digests differ."""
    checked, way_out = 0, "nothing was switched; `surf2vec push STORE --whole` writes every row"
    for kind, key in KEYS.items():
        place = f"{store.place.table(kind, side.name)} of {store.place}"
        if num_differing := sum(map(len, compare(held[kind], wanted[kind], key).values())):
            raise DamageError(f"{place} has {num_differing:,} rows that differ from release {side.release}: {way_out}")
        sample = wanted[kind].sample(min(CHECKED_ROWS, len(wanted[kind])))
        vectors = store.read_vectors(side.name, kind, sample[key].to_list())
        found = {name: digest_vectors(vector[None])[0] for name, vector in vectors.items()}
        differing = [name for name, digest in sample.iter_rows() if found.get(name) != digest]
        if differing:
            raise DamageError(
                f"{place} has {len(differing):,} of {len(sample):,} rows that differ from release {side.release}: {way_out}"
            )
        checked += len(sample)
    return checked


def remove_forgotten(store: Store, forgotten: Tombstones, sides: list[Side]) -> int:
    """Remove forgotten users from these sides of the store; return how many rows they had.

    Also from what the store keeps of rows that earlier pushes removed, unless a side was pushed since somebody was forgotten.
    """
    num_removed, present = 0, store.list_names() if forgotten else set()
    for side in sides:
        if store.place.table("users", side.name) not in present:
            continue
        keys = store.read_digests(side.name, "users")["user_id"]
        names = keys.filter(pl.Series(forgotten.is_forgotten(keys.to_list()), dtype=pl.Boolean)).to_list()
        if names or max(forgotten.days.values()).isoformat() >= side.pushed_at[:10]:
            store.erase(side.name, names)
        num_removed += len(names)
    return num_removed


def make_rows(kind: str, keys: pa.Array, vectors: NDArray[np.float32]) -> pa.Table:
    """Return rows as a table: key, vector, digest."""
    rows = encode_rows(pa.table({KEYS[kind]: keys.cast(pa.string())}), vectors, "float32")
    return rows.append_column("digest", pa.array(digest_vectors(vectors)))


def digest_vectors(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return a digest of each vector, int64[n]."""
    rows, size = np.ascontiguousarray(vectors, np.float32).tobytes(), vectors.shape[1] * 4
    starts = range(0, len(rows), size)
    digests = b"".join(blake2b(rows[at : at + size], digest_size=DIGEST_BYTES).digest() for at in starts)
    return np.frombuffer(digests, "<i8").astype(np.int64)
