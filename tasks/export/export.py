"""Exports a generation as a release on disk: Parquet files of vectors, an index of neighbours, a manifest.

    export/<release>/user_vectors/part-00012.parquet   one for each micro-partition with users, sorted by user_id
                     item_vectors/part-00000.parquet   by item_ix, float32; missing if a tree was trained
                     trail_inputs.parquet               only with a trail: url and input vector, in the order of the items
                     projection.npy                    only with export.pca_dim: users and items were multiplied by it
                     index/users.faiss                 unit user vectors; row order: partitions in order, rows in order
                     manifest.json                     rows, bytes, checksums, the rules of the items; written last

Data is streamed: one micro-partition is in memory at a time, then a batch of items, then the index and a batch of rows. The same
vectors give the same bytes. Holes in the corpus (rows of users who left) are skipped. Small row groups, for lookups, cost
0.7 % more bytes than large ones.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.activity.count import NAMES, read_activity
from surf2vec.tasks.activity.scale import describe_activity, scale_activity, settle_activity
from surf2vec.tasks.config import ExportConfig
from surf2vec.tasks.export.checks import check_disk, check_fit, check_memory, check_rows
from surf2vec.tasks.export.index import BATCH_ROWS, IndexPlan, build_index, plan_index
from surf2vec.tasks.export.noise import add_noise, name_users
from surf2vec.tasks.export.reduction import PROJECTION_FILE, SecondMoment, project, read_projection
from surf2vec.tasks.export.vector_files import (
    ITEM_BATCH_ROWS,
    ITEM_ROW_GROUP_ROWS,
    USER_ROW_GROUP_ROWS,
    describe_users,
    encode_rows,
    read_vectors,
    write_rows,
)
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, FORMAT_VERSION, open_folder, part_name
from surf2vec.tasks.release.release_reader import compared_columns, list_files, token_of, unit_rows
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.system.fan_out import HERE, FanOut, cut
from surf2vec.trainer.system.files import describe_file, read_json, replace_file, replace_folder, write_manifest_json
from surf2vec.trainer.training.vectors import BothParts, bias_columns, columns_of, read_item_vectors, trail_inputs_of

INDEX_FILE = "index/users.faiss"
TRAIL_FILE = "trail_inputs.parquet"
QUANTISE_ABOVE = 1_000_000
"""With more users the index of nearest users is quantised: an exact one would need more memory than a reader has."""


@dataclass(frozen=True)
class Export:
    """The settings of an export: its corpus, its folder, its names and the memory budget.

    space_dir: an earlier export of the space, whose projection and quantiles of activity are used. noise_key: for `config.noise`.
    """

    corpus_dir: Path
    export_dir: Path
    release: str
    run_id: str
    space_id: str
    config: ExportConfig = field(default_factory=ExportConfig)
    memory_bytes: int = 4 * 10**9
    space_dir: Path | None = None
    noise_key: bytes = field(default=b"", repr=False)


def export_vectors(
    job: Export, generation: Generation, on_event: OnEvent = ignore_event, fan_out: FanOut = HERE
) -> dict[str, Any]:
    """Export the vectors of `generation` to `job.export_dir`; return the record of the step. `fan_out` may write users elsewhere.

    An export of the same release, generation and window is not changed; another one is replaced in one step.
    Raises DamageError if corpus and generation do not fit together, TrainingError if a vector is not finite,
    ResourceError if disk or memory do not suffice, ConfigError if the vectors cannot be stored as `job.config` says.
    """
    corpus = open_corpus(job.corpus_dir)
    identity = _identify(job, corpus, generation)
    if (job.export_dir / EXPORT_MANIFEST).exists():
        manifest = read_json(job.export_dir / EXPORT_MANIFEST)
        if {key: manifest.get(key) for key in {"storage", *identity}} == {"storage": None} | identity:
            return _describe_export(job.export_dir, manifest, index_seconds=0.0)
    check_fit(corpus, generation)
    room_bytes = check_memory(job.memory_bytes, corpus, generation, identity["vector_size"])
    plan = plan_index(corpus.num_users, compared_columns(identity).stop, room_bytes, QUANTISE_ABOVE)
    log(on_event, f"index: {plan.reason}")
    with replace_folder(job.export_dir) as folder:
        num_tables = generation.has_item_vectors + bool(generation.config.trail_size)
        check_disk(folder, corpus, identity["vector_size"], job.config.dtype, plan.index_bytes, num_tables)
        manifest = dict(identity)
        write = Writing(folder, job, corpus, generation, range(corpus.num_partitions))
        if job.config.activity:
            before = open_folder(job.space_dir).manifest if job.space_dir else {}
            manifest["activity"] = settle_activity(corpus, before)
            write = replace(write, quantiles=manifest["activity"]["quantiles"])
        if job.config.pca_dim is not None:
            manifest["projection"] = _write_projection(write, job.config.pca_dim)
        manifest["user_files"] = {}
        parts = [replace(write, partitions=part) for part in cut(corpus.users.tolist(), fan_out.num_parts)]
        for files in fan_out.run(write_users, parts, on_event):
            manifest["user_files"] |= files
        manifest["item_files"] = {}
        if generation.has_item_vectors:
            path = folder / "item_vectors" / "part-00000.parquet"
            write_rows(path, _read_items(write), ITEM_ROW_GROUP_ROWS, write.token)
            manifest["item_files"][path.name] = {"rows": generation.num_items} | describe_file(path)
        if generation.config.trail_size:
            manifest["trail"] = _write_trail(write)
        started = time.monotonic()
        manifest["index"] = write_index(folder, manifest, plan)
        index_seconds = time.monotonic() - started
        write_manifest_json(folder / EXPORT_MANIFEST, manifest)
    return _describe_export(job.export_dir, manifest, index_seconds)


@dataclass(frozen=True)
class Writing:
    """An export in progress: its folder, perhaps with a projection, the micro-partitions to write, and activity's quantiles."""

    folder: Path
    job: Export
    corpus: Corpus
    generation: Generation
    partitions: range
    quantiles: list[list[float]] = field(default_factory=list)

    @property
    def token(self) -> dict[str, str]:
        return token_of({"release": self.job.release, "space_id": self.job.space_id})

    def read_projection(self) -> np.ndarray | None:
        """Return the projection, float32 (D, k), or None."""
        path = self.folder / PROJECTION_FILE
        return read_projection(path) if path.exists() else None


def _identify(job: Export, corpus: Corpus, generation: Generation) -> dict[str, Any]:
    """Return the first entries of the manifest, which identify this export. Raises ConfigError if pca_dim is too high."""
    pca_dim = job.config.pca_dim
    if pca_dim is not None and pca_dim >= generation.vector_size:
        raise ConfigError(
            f"export.pca_dim is {pca_dim}, but the vectors have {generation.vector_size} dimensions: lower it, or leave it out"
        )
    extra: dict[str, Any] = {}
    storage = {name: getattr(job.config, name) for name in ("dtype", "pca_dim", "noise")}
    if storage != {"dtype": "float32", "pca_dim": None, "noise": 0}:
        extra["storage"] = storage
    size, num_activity = pca_dim or generation.vector_size, len(NAMES) if job.config.activity else 0
    parts = {} if pca_dim else columns_of(generation)
    if num_activity:
        parts["activity"] = [size, size + num_activity]
    return {
        "format_version": FORMAT_VERSION,
        "release": job.release,
        "space_id": job.space_id,
        "vector_size": size + num_activity,
        "parts": parts,
        "bias_columns": [] if pca_dim else bias_columns(generation),
        "partitions": corpus.num_partitions,
        "num_users": corpus.num_users,
        "num_items": corpus.num_items,
        "generation": generation.generation,
        "created_from": {"window_id": corpus.manifest["window_id"], "run_id": job.run_id},
        "rules": corpus.manifest["made_from"]["rules"],
    } | extra


def _write_projection(write: Writing, dim: int) -> dict[str, Any]:
    """Write the projection, float32 (D, dim): that of the space, else a new one. Returns the manifest's entry."""
    from_size = write.generation.vector_size
    moment = SecondMoment(from_size)
    for partition in np.flatnonzero(write.corpus.users).tolist():
        moment.add(_read_users(write, partition)[1])
    projection, kept = moment.project_to(dim)
    space_dir = write.job.space_dir
    if space_dir and "projection" in (space := open_folder(space_dir)).manifest:
        frozen = read_projection(space.path(PROJECTION_FILE))
        if frozen.shape == projection.shape:
            projection, kept = frozen, moment.kept_by(frozen)
    path = write.folder / PROJECTION_FILE
    with replace_file(path) as temporary, open(temporary, "wb") as file:
        np.save(file, projection, allow_pickle=False)
    about = {"file": PROJECTION_FILE, "from_size": from_size, "explained_variance": round(kept, 6)}
    return about | describe_file(path)


def write_users(write: Writing, on_event: OnEvent) -> dict[str, Any]:
    """Write the vectors of the users of `write.partitions`; return the manifest's entries."""
    files: dict[str, Any] = {}
    num_done, projection = 0, write.read_projection()
    for partition in write.partitions:
        if write.corpus.users[partition] == write.corpus.holes[partition]:  # nobody is there
            continue
        users, vectors, activity = _read_users(write, partition)
        path = write.folder / "user_vectors" / part_name(partition)
        rows = encode_rows(users, np.hstack([project(vectors, projection), activity]), write.job.config.dtype)
        write_rows(path, [rows], USER_ROW_GROUP_ROWS, write.token)
        files[path.name] = {"rows": len(users)} | describe_users(path)
        num_done += len(users)
        log_progress(on_event, "export", num_done, write.corpus.num_users, "users")
    return files


def _read_items(write: Writing) -> Iterator[pa.Table]:
    """Yield urls, counts and checked vectors of items, in order."""
    projection = write.read_projection()
    for names, start, stop in _read_vocabulary(write, ["url", "count"]):
        vectors = read_item_vectors(write.generation, start, stop)
        check_rows(f"items {start:,} to {stop:,}", vectors, stop - start, write.generation.vector_size)
        zeros = np.zeros((len(vectors), len(write.quantiles)), np.float32)  # activity ranks no item
        yield encode_rows(names, np.hstack([project(vectors, projection), zeros]), "float32")


def _read_vocabulary(write: Writing, columns: list[str]) -> Iterator[tuple[pa.Table, int, int]]:
    """Yield batches of the vocabulary in order: the table, its first item, and the one after its last."""
    start = 0
    with pq.ParquetFile(write.corpus.vocabulary, pre_buffer=False) as file:  # else pyarrow keeps all of it
        for batch in file.iter_batches(ITEM_BATCH_ROWS, columns=columns):
            yield pa.Table.from_batches([batch]), start, start + batch.num_rows
            start += batch.num_rows


def _write_trail(write: Writing) -> dict[str, Any]:
    """Write the input vectors of the trail; return the manifest's entry.

    `columns`: those of a vector that a trail replaces. A projection mixes the parts, so that there it replaces all of them.
    """
    found, projection = trail_inputs_of(write.generation), write.read_projection()
    columns, block = columns_of(write.generation)["trail"], None
    if projection is not None:
        columns, block = [0, projection.shape[1]], projection[slice(*columns)]

    def read_inputs() -> Iterator[pa.Table]:
        for names, start, stop in _read_vocabulary(write, ["url"]):
            vectors = np.array(found.inputs[start:stop])
            check_rows(f"the trail's items {start:,} to {stop:,}", vectors, stop - start, len(found.bias))
            yield encode_rows(names, project(vectors, block), "float32")

    path = write.folder / TRAIL_FILE
    write_rows(path, read_inputs(), ITEM_ROW_GROUP_ROWS, write.token)
    about = {"file": TRAIL_FILE, "rows": write.generation.num_items, "columns": columns, "weight": found.weight}
    numbers = {"lags": found.lags.tolist(), "bias": project(found.bias[None], block)[0].tolist()}
    return about | numbers | describe_file(path)


def write_index(folder: Path, manifest: dict[str, Any], plan: IndexPlan) -> dict[str, Any]:
    """Build the index of the written user vectors, without activity; return the manifest's entry."""
    columns = compared_columns(manifest)
    paths = [folder / "user_vectors" / name for name in manifest["user_files"]]
    index, about = build_index(
        plan,
        manifest["num_users"],
        columns.stop,
        lambda every: ((rows, unit_rows(found[:, columns])) for rows, found in read_vectors(paths, every, BATCH_ROWS)),
    )
    import faiss

    with replace_file(folder / INDEX_FILE) as temporary:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:  # faiss has no other error for a failed write
            raise OSError(str(error)) from None
    return {"file": INDEX_FILE} | about | describe_file(folder / INDEX_FILE)


def _read_users(write: Writing, partition: int) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Return a micro-partition's users by user_id, without holes, their checked vectors float32 (n, D) and activity (n, A)."""
    corpus = write.corpus
    vectors = BothParts(write.generation, corpus).read_users(partition)
    check_rows(f"micro-partition {partition}", vectors, int(corpus.users[partition]), write.generation.vector_size)
    users = pa.table({"user_id": corpus.read_ids(partition)})
    if noise := write.job.config.noise:
        names = name_users(users["user_id"], corpus.read(partition), write.generation.config.trail_window)
        vectors = add_noise(vectors, write.generation, noise, write.job.noise_key, names)
    activity = np.zeros((len(users), 0), np.float32)
    if write.quantiles:
        activity = scale_activity(read_activity(corpus, partition), write.quantiles)
    import pyarrow.compute as pc  # a tenth of a second, which `surf2vec similar` would wait for

    order = pc.sort_indices(users["user_id"])[: len(users) - users["user_id"].null_count]  # holes come last
    return users.take(order), vectors[order.to_numpy()], activity[order.to_numpy()]


def _describe_export(export_dir: Path, manifest: dict[str, Any], index_seconds: float) -> dict[str, Any]:
    """Return the record of the step."""
    index, storage = manifest["index"], manifest.get("storage", {})
    metrics = {
        "index_recall_at_10": index.get("recall_at_10"),
        "export_explained_variance": manifest.get("projection", {}).get("explained_variance"),
    }
    return {
        "release": manifest["release"],
        "export_dir": str(export_dir),
        "num_users": manifest["num_users"],
        "num_items": manifest["num_items"],
        "vector_size": manifest["vector_size"],
        "dtype": storage.get("dtype", "float32"),
        "bytes": sum(about["bytes"] for about in list_files(manifest).values()),
        "index_kind": index["kind"],
        "index_seconds": round(index_seconds, 3),
        "activity": describe_activity(manifest["activity"]) if "activity" in manifest else {},
        "metrics": {name: value for name, value in metrics.items() if value is not None},
    }
