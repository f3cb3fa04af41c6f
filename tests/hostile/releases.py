"""Releases that lie: whoever opens or pulls one gets a message, never a traceback, a file from elsewhere or wrong numbers.

The manifest is sealed again after each change, so that no checksum gives the lie away, but for those that are about checksums.
"""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import surf2vec
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import SurfError
from surf2vec.trainer.system.files import describe_file, digest_file, read_json, write_manifest_json
from tests.faults.power_loss.worlds import list_files
from tests.roots.releases import make_release, write_run_record

USER = "user-1"
PATIENCE_SECONDS = 20
MODEL = "models:/surf2vec-users@champion"
ABOUT = {"bytes": 1, "sha256": "0" * 64}
SECRET = "a file that is none of the release's"
Lie = Callable[[Path, dict[str, Any]], None]


@dataclass
class Found:
    """What opening and pulling came to; refusals: the message for each lie."""

    releases: int = 0
    refused: int = 0
    harmless: int = 0
    refusals: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def first(manifest: dict[str, Any], kind: str = "user") -> str:
    return sorted(manifest[f"{kind}_files"])[0]


def rename(name: str) -> Lie:
    """The first file of users is called so in the manifest."""

    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        files = manifest["user_files"]
        target = folder / "user_vectors" / name
        about = files.pop(old := first(manifest))
        manifest["user_files"] = {name: about | describe_file(folder / "user_vectors" / old)} | files
        if not Path(name).is_absolute():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "user_vectors" / old, target)

    return lie


def rewrite(change: Callable[[pa.Table], pa.Table], kind: str = "user") -> Lie:
    """The first file of users, or of items, has another table."""

    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        name = first(manifest, kind)
        path = folder / f"{kind}_vectors" / name
        table = change(pq.read_table(path))
        pq.write_table(table, path)
        manifest[f"{kind}_files"][name] |= {"rows": table.num_rows} | describe_file(path)

    return lie


def with_vectors(values: np.ndarray) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        size, kind = values.shape[-1], pa.from_numpy_dtype(values.dtype)
        flat = pa.array(np.resize(values, (table.num_rows, size)).ravel(), kind)
        column = pa.FixedSizeListArray.from_arrays(flat, size)
        return table.set_column(table.schema.get_field_index("vector"), "vector", column)

    return change


def with_ids(make: Callable[[int], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(0, "user_id", make(table.num_rows))


def replace_bytes(change: Callable[[bytes], bytes], *, is_sealed: bool) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        path = folder / "user_vectors" / (name := first(manifest))
        path.write_bytes(change(path.read_bytes()))
        if is_sealed:
            manifest["user_files"][name] |= describe_file(path)

    return lie


def link(to: str) -> Lie:
    """The first file of users is a link: to a file elsewhere, to itself, to a device."""

    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        (folder.parent / "secret.txt").write_text(SECRET)
        path = folder / "user_vectors" / first(manifest)
        path.unlink()
        path.symlink_to(to.format(folder=folder.parent, path=path))

    return lie


def set_value(**values: Any) -> Lie:
    return lambda folder, manifest: manifest.update(values)


def set_rule(**values: Any) -> Lie:
    return lambda folder, manifest: manifest["rules"].update(values)


def without(key: str) -> Lie:
    return lambda folder, manifest: manifest.pop(key)


def remove(name: str) -> Lie:
    return lambda folder, manifest: (folder / name.format(first=first(manifest))).unlink()


def replace_index(data: bytes) -> Lie:
    def lie(folder: Path, manifest: dict[str, Any]) -> None:
        path = folder / manifest["index"]["file"]
        path.write_bytes(data)
        manifest["index"] |= describe_file(path)

    return lie


def huge(folder: Path, manifest: dict[str, Any]) -> None:
    """A file of 8 TB, without a byte on the disk."""
    with open(folder / "user_vectors" / first(manifest), "r+b") as file:
        file.truncate(8 * 10**12)


LIES: dict[str, Lie] = (
    {"a name with ..": rename("../../part-00000.parquet")}
    | {"a name with .. inside": rename("x/../../part-00000.parquet")}
    | {"an absolute name": rename("/etc/hostname")}
    | {"a name with a line end": rename("part\n00000.parquet")}
    | {"a link to a file elsewhere": link("{folder}/secret.txt"), "a link to itself": link("{path}")}
    | {"a link to a device": link("/dev/zero"), "a missing file": remove("user_vectors/{first}")}
    | {"no index": remove("index/users.faiss")}
    | {"a file cut short": replace_bytes(lambda data: data[: len(data) // 2], is_sealed=False)}
    | {"a file that is too long": replace_bytes(lambda data: data + bytes(100_000), is_sealed=False)}
    | {"a file of 8 TB": huge}
    | {"a file cut short, sealed": replace_bytes(lambda data: data[: len(data) // 2], is_sealed=True)}
    | {"no Parquet, sealed": replace_bytes(lambda data: b"PAR1" + bytes(100), is_sealed=True)}
    | {"an empty file, sealed": replace_bytes(lambda data: b"", is_sealed=True)}
    | {"other columns": rewrite(lambda table: table.rename_columns(["id", *table.column_names[1:]]))}
    | {"no vectors": rewrite(lambda table: table.select(["user_id"]))}
    | {"ids that are numbers": rewrite(with_ids(lambda num: pa.array(range(num), pa.int64())))}
    | {"shorter vectors": rewrite(with_vectors(np.ones((1, 3), np.float32)))}
    | {"longer vectors": rewrite(with_vectors(np.ones((1, 99), np.float32)))}
    | {"vectors of integers": rewrite(with_vectors(np.ones((1, 8), np.int64)))}
    | {"more rows than the index": rewrite(lambda table: pa.concat_tables([table, table]))}
    | {"no rows": rewrite(lambda table: table[:0])}
    | {"items without pages": rewrite(lambda table: table.drop_columns(["url"]), "item")}
    | {"items with shorter vectors": rewrite(with_vectors(np.ones((1, 3), np.float32)), "item")}
    | {"an index that is none": replace_index(b"IxFI" + bytes(60))}
    | {"an empty index": replace_index(b""), "another vector_size": set_value(vector_size=3)}
    | {"a vector_size that is text": set_value(vector_size="<b>")}
    | {"an immense vector_size": set_value(vector_size=10**12)}
    | {"no vector_size": without("vector_size"), "no user_files": without("user_files")}
    | {"user_files that is a list": set_value(user_files=[1])}
    | {"no index in the manifest": without("index"), "no created_from": without("created_from")}
    | {"a release that is none": set_value(release={"a": 1})}
    | {"a format of the future": set_value(format_version=99), "no rules": without("rules")}
    | {"rules that are text": set_value(rules="page"), "an unknown granularity": set_rule(granularity=["page"])}
    | {"a query key that is a number": set_rule(keep_query=[1]), "a depth of text": set_rule(prefix_depth="1")}
)
MANIFESTS = (
    {"no manifest": None, "a manifest that is no JSON": b"{", "a manifest that is a list": b"[]"}
    | {"a manifest that is null": b"null", "an empty manifest": b"{}"}
    | {"a manifest that is not UTF-8": b"\xff\xfe{}"}
    | {"a manifest without a digest": b'{"release": "r1"}'}
    | {"a manifest nested a million deep": b"[" * 1_000_000}
)


def tell_lie(folder: Path, lie: Lie) -> None:
    """Change the folder of a release, and seal its manifest again."""
    manifest = read_json(folder / EXPORT_MANIFEST)
    lie(folder, manifest)
    write_manifest_json(folder / EXPORT_MANIFEST, manifest)


def ask_all(folder: Path) -> Any:
    """All that a release opened in Python returns."""
    release = surf2vec.open_release(folder)
    users, items = release.user_vectors().collect(), release.item_vectors().collect()
    near, ranked = release.similar(USER), release.rank(USER)
    assert dict(users.schema) == {"user_id": pl.String, "vector": pl.Array(pl.Float32, 8)}, users.schema
    assert items.columns == ["url", "count", "vector"]
    return users, items, near, ranked


def judge(what: str, ask: Callable[[], Any], expected: Any, found: Found) -> None:

    found.releases += 1
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE_SECONDS)
    try:
        answer = ask()
    except SurfError as error:
        found.refused += 1
        found.refusals[what] = str(error)
        if SECRET in str(error) or not str(error).isprintable():
            found.faults.append(f"{what}: the message shows {str(error)!r}"[:400])
    except BaseException as error:  # polars panics are no Exceptions
        found.faults.append(f"{what}: {type(error).__name__}: {error}"[:400])
    else:
        if same(answer, expected):
            found.harmless += 1
        else:
            found.faults.append(f"{what}: another answer")
    finally:
        signal.alarm(0)


def stop(*_: Any) -> None:
    raise TimeoutError(f"no answer after {PATIENCE_SECONDS} seconds")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, pl.DataFrame):
        return one.equals(other)
    if isinstance(one, tuple):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def check_releases(folder: Path) -> Found:
    """Each lie in a folder that is opened, and in a registered copy that is pulled, whose digest in the registry is mended."""
    found, root = Found(), Root(folder / "root")
    make_release(root)
    publish_release(root, PublishConfig(), write_run_record("r1"), root.export("r1"))
    good, place = root.export("r1"), folder / "told" / "release"
    expected, pulled = ask_all(good), list_files(good)
    for what in [*LIES, *MANIFESTS]:
        shutil.rmtree(place.parent, ignore_errors=True)
        shutil.copytree(good, place)
        lie_in(place, what)
        judge(f"open: {what}", lambda: ask_all(place), expected, found)
    (version,) = read_model(root.tracking_uri, "surf2vec-users").versions
    registered = version.folder
    assert registered
    copy = registered / version.tags["export_path"]
    shutil.copytree(copy, folder / "copy")
    for what in [*LIES, *MANIFESTS]:
        shutil.rmtree(copy)
        shutil.copytree(folder / "copy", copy)
        lie_in(copy, what)
        digest = digest_file(copy / EXPORT_MANIFEST) if (copy / EXPORT_MANIFEST).exists() else "none"
        tracking.set_tags(root.tracking_uri, version, {"manifest_sha256": digest})
        out = folder / "out" / what.replace("/", "")
        judge(f"pull: {what}", lambda out=out: pull_and_ask(root, out), (pulled, expected), found)
        outside = [path for path in (folder / "out").rglob("*") if path.is_symlink() or SECRET.encode() in read(path)]
        if outside or sorted(path.name for path in folder.iterdir()) != ["copy", "out", "root", "told"]:
            found.faults.append(f"pull: {what}: {outside} or a file beside the folder")
    return found


def lie_in(folder: Path, what: str) -> None:
    if what in LIES:
        tell_lie(folder, LIES[what])
    elif MANIFESTS[what] is None:
        (folder / EXPORT_MANIFEST).unlink()
    else:
        (folder / EXPORT_MANIFEST).write_bytes(MANIFESTS[what] or b"")


def read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def pull_and_ask(root: Root, out: Path) -> Any:
    """A release that lies about what no pull can know, such as its vectors, is refused by whoever opens the folder."""
    told = pull(MODEL, out, root.tracking_uri)
    assert json.dumps(told)
    return list_files(out), ask_all(out)
