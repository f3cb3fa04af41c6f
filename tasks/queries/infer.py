"""Infers vectors of users whom the model has not seen, or of new histories of known users, with a release's items frozen.

The logs are ingested and cleaned like those of a night, in a folder under .tmp/ of the root, but with the vocabulary of the
release. The root is only read and not locked: that folder gets hard links to the files of the release, so that a run which
publishes meanwhile does not remove them. Users are fitted in parts of micro-partitions. Any process can fit a part; each part
writes a file.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.sql.runner import connect
from surf2vec.tasks.activity.count import read_activity
from surf2vec.tasks.activity.scale import scale_activity
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.corpus.clean_pass import CorpusPart, clean_part, count_partitions, duckdb_bytes, write_item_ix
from surf2vec.tasks.corpus.token_pass import write_part
from surf2vec.tasks.corpus.window import explain_unreadable, select_window
from surf2vec.tasks.export.reduction import PROJECTION_FILE, project, read_projection
from surf2vec.tasks.export.vector_files import encode_vectors, open_writer
from surf2vec.tasks.ingest.deliveries import list_changes, rules_of
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.ingest.sources import read_catalog
from surf2vec.tasks.ingest.user_key import read_user_key
from surf2vec.tasks.registry.release_state import find_generation
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import token_of
from surf2vec.tasks.root.failures import check_out, explain_failures
from surf2vec.tasks.root.run import Root, note_partial, open_scratch_folder
from surf2vec.tasks.users.tombstones import FORGOTTEN, copy_tombstones
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, DamageError, InputError, ResourceError
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import COUNTS, VOCABULARY, Corpus, Histories, open_corpus
from surf2vec.trainer.system.fan_out import HERE, FanOut, cut
from surf2vec.trainer.system.files import link_file, replace_file
from surf2vec.trainer.system.units import size
from surf2vec.trainer.training.infer import FrozenItems, infer_whole, take_histories

ROW_GROUP_ROWS = 8192
_RULES = ("timezone", "granularity", "keep_query", "mask_secrets")


@dataclass(frozen=True)
class Inference:
    """A call of `infer`: the globs of the logs, the file to write, the settings and the memory budget."""

    logs: Sequence[str]
    out: Path
    ingest: IngestConfig
    train: TrainConfig
    memory_bytes: int

    @property
    def threads(self) -> int:
        return self.train.threads or os.cpu_count() or 1


@dataclass(frozen=True)
class FrozenRelease:
    """What inference needs of a release. The generation's folder also has the vocabulary, and the training tokens of each item.

    projection: float32[D, k] if the release's vectors were reduced.
    """

    manifest: dict[str, Any]
    generation: Generation
    threads: int
    projection: NDArray[np.float32] | None

    @cached_property
    def items(self) -> FrozenItems:
        """The item table; read at the first use."""
        return FrozenItems(self.generation, np.load(self.generation.folder / COUNTS), self.threads)

    @property
    def quantiles(self) -> list[list[float]]:
        """Those of activity; none if the release has none."""
        return self.manifest.get("activity", {}).get("quantiles", [])

    @property
    def schema(self) -> pa.Schema:
        """That of the file: `user_id` and `vector`, with the pairing token of the release."""
        vectors = pa.list_(pa.float32(), self.manifest["vector_size"])
        return pa.schema([("user_id", pa.string()), ("vector", vectors)], metadata=token_of(self.manifest))


@dataclass(frozen=True)
class InferPart:
    """The users of some micro-partitions of a corpus, to be fitted to a release's items in batches of `rows`, into `path`."""

    release: FrozenRelease
    corpus: Corpus
    rows: int
    partitions: range
    path: Path


def infer(
    root: Root, release: str, query: Inference, on_event: OnEvent = ignore_event, fan_out: FanOut = HERE
) -> dict[str, Any]:
    """Write `query.out`: `user_id, vector`, sorted by micro-partition (of the root) and user_id. Returns a summary.

    1. Ingest the logs into a temporary root, with the user key and the rules of `root`.
    2. Clean them like a corpus: collapse repeats and keep the newest events. No user is excluded as a bot, because frozen
       items cannot be distorted.
    3. Infer every user with a known item, with the release's training settings. The same history gives the same bytes.

    The caller needs no lock. Raises a SurfError; `query.out` is then unchanged.
    """
    started = time.monotonic()
    check_out(query.out, "Parquet", "vectors.parquet")
    config = _follow_rules(root, read_catalog(root).rules or {}, query.ingest)
    read_user_key(root, config)
    with (
        explain_failures(root, "vectors are inferred", query.memory_bytes),
        open_scratch_folder(root, "infer") as folder,
    ):
        frozen = open_release(root, release, folder, query.train, on_event)
        rows = _plan_rows(frozen, query.memory_bytes)
        frozen.items.admit(0)  # a damaged table is found before the logs are read
        own = Root(folder / "root")
        own.path.mkdir()
        copy_tombstones(root, own)
        ingested = _ingest(root, own, query, config, on_event, fan_out)
        corpus, num_cleaned, num_unknown = _clean(own, query, config, frozen, on_event, fan_out)
        _write(InferPart(frozen, corpus, rows, range(corpus.num_partitions), folder), query, on_event, fan_out)
    num_users = int(corpus.users.sum())
    return {
        "users": num_users,
        "users_without_known_items": num_cleaned - num_users,
        "events": ingested["events"],
        "events_forgotten": ingested["left_out"].get(FORGOTTEN, 0),
        "events_unknown_items": num_unknown,
        "rejected": ingested["num_rejected"],
        "items": frozen.generation.num_items,
        "vector_size": frozen.manifest["vector_size"],
        "release": release,
        "out": str(query.out),
        "bytes": query.out.stat().st_size,
        "seconds": round(time.monotonic() - started, 3),
    }


def open_release(root: Root, release: str, folder: Path, settings: TrainConfig, on_event: OnEvent) -> FrozenRelease:
    """Link the files of the release into `folder`. Logs which settings of the call differ from the training's and are ignored.

    Raises InputError without an export, DamageError if it is incomplete.
    """
    exported = open_folder(root.export(release))
    export = exported.manifest
    if (stored := find_generation(root, export)) is None:
        raise DamageError(
            f"{root.store} has not the generation of release {release}: if a run has just published another, run the same "
            "command again; if not, train again with `surf2vec run`"
        )
    entries = stored.manifest["users"].values()
    users = {part["file"] for entry in entries for part in (entry, entry.get("delta", entry))}
    for name in stored.files():
        if name not in users:
            _link(root.store / name, folder)
    corpus = open_corpus(root.corpus(export["created_from"]["window_id"]))
    _link(corpus.vocabulary, folder)
    projection = read_projection(exported.path(PROJECTION_FILE)) if "projection" in export else None
    np.save(folder / COUNTS, corpus.count_training_tokens(), allow_pickle=False)
    generation = Generation(folder, stored.manifest)
    for field in fields(TrainConfig):
        wanted, used = getattr(settings, field.name), getattr(generation.config, field.name)
        if wanted not in (used, field.default) and field.name not in ("commit_seconds", "threads"):
            log(on_event, f"train.{field.name} is {used}, as in release {release}, not {wanted}")
    return FrozenRelease(export, generation, settings.threads, projection)


def _link(path: Path, folder: Path) -> None:
    """Make a hard link to a file in `folder`, or a copy if the file system has no links."""
    try:
        link_file(path, folder / path.name)
    except FileNotFoundError:
        raise DamageError(f"{path} is missing: run `surf2vec doctor`") from None


def _follow_rules(root: Root, rules: dict[str, Any], config: IngestConfig) -> IngestConfig:
    """Return the settings with the root's rules for making items. Raises ConfigError if the call sets other rules."""
    known = {name: rules[name] for name in _RULES if rules.get(name) is not None}
    if rules.get("prefix_depth"):
        known["granularity"] = f"prefix:{rules['prefix_depth']}"
    taken = {name: value for name, value in known.items() if name not in config.model_fields_set}
    followed = IngestConfig.model_validate(config.model_dump() | taken)
    new_rules = rules_of(followed)
    if changes := list_changes(rules, new_rules):
        way_out = "leave it out, or name another --root"
        if rules["version"] != new_rules["version"]:
            way_out = "its items are others; run `surf2vec run` with all its logs"
        raise ConfigError(f"{'; '.join(changes)} when {root.path} was made: {way_out}")
    return followed


def _plan_rows(release: FrozenRelease, memory_bytes: int) -> int:
    """Return the users in a batch: a multiple of the row group size. Raises ResourceError if memory is too small for one."""
    generation, item_bytes = release.generation, release.items.num_bytes
    vector_bytes = 4 * generation.vector_size
    group_bytes = ROW_GROUP_ROWS * (3 * vector_bytes + 100)  # vectors, as Arrow and as Parquet; ids
    room = (memory_bytes - item_bytes) // 2
    if room < group_bytes:
        raise ResourceError(
            f"the {generation.num_items:,} items of release {release.manifest['release']} need {size(item_bytes)} and a batch of "
            f"users {size(2 * group_bytes)}, but there are {size(memory_bytes)}: raise --host-memory"
        )
    return room // group_bytes * ROW_GROUP_ROWS


def _ingest(
    root: Root, own: Root, query: Inference, config: IngestConfig, on_event: OnEvent, fan_out: FanOut
) -> dict[str, Any]:
    """Ingest the logs as events of `own`. The list of rejects is kept in `root`, also if the logs are unusable."""
    partitions, kept = read_catalog(root).partitions, root.rejects / "infer"
    shutil.rmtree(kept, ignore_errors=True)
    work = (partitions, query.memory_bytes, query.threads, on_event, fan_out)
    ingested = ingest(own, query.logs, config, *work, refused=kept)
    if own.rejects.exists():
        kept.parent.mkdir(exist_ok=True)
        os.replace(own.rejects, kept)
    if num_forgotten := ingested["left_out"].get(FORGOTTEN, 0):
        log(on_event, f"{num_forgotten:,} events of users who were forgotten are left out: they get no vector")
    if not ingested["events"]:
        raise InputError("these logs have no event but those of users who were forgotten: nobody gets a vector")
    if str(query.out.resolve()) in {os.path.realpath(name) for name in read_catalog(own).names}:
        raise InputError(f"--out {query.out} is one of the logs: name another file")
    return ingested


def _clean(
    own: Root, query: Inference, config: IngestConfig, release: FrozenRelease, on_event: OnEvent, fan_out: FanOut
) -> tuple[Corpus, int, int]:
    """Write the tokens of the users of `own`, as for the corpus of a night, with the release's vocabulary.

    Returns the corpus, the number of users (including those without a known item), and the number of events of unknown items.
    """
    window = select_window(own, None, None, None)
    config = config.model_copy(update={"max_day_events": 2**62, "min_user_events": 1})
    folder, scratch = own.path / "corpus", own.temporary
    folder.mkdir()
    scratch.mkdir(exist_ok=True)
    params = window.params
    with explain_unreadable(own), connect(duckdb_bytes(query.memory_bytes), scratch / "spill", query.threads) as con:
        vocabulary = con.read_parquet(escape(str(release.generation.folder / VOCABULARY)))
        vocabulary.select("url, item_ix").create("vocabulary")
        events = con.read_parquet(params["files"], hive_partitioning=False)
        num_unknown = events.join(con.table("vocabulary"), "url", "anti").count("*").fetchall()[0][0]
        everything = CorpusPart(
            (), params, config, scratch, folder, query.memory_bytes, query.threads, window.num_events, step="infer"
        )
        parts = everything.divide(count_partitions(con, params, window), fan_out)
        num_users = sum(stages["users"] for stages in fan_out.run(clean_part, parts, on_event))
        for group in (group for part in parts for group in part.groups):
            write_item_ix(con, scratch, group)
        written = [one for part in fan_out.run(write_part, parts, on_event) for one in part]
    manifest = {
        "partitions": window.partitions,
        "users": [one.users for one in written],
        "tokens": [one.tokens for one in written],
        "held_out_key_max": -1,
        "files": {name: about for one in written for name, about in one.files.items()},
    }
    return Corpus(folder, manifest), num_users, num_unknown


def _write(all_users: InferPart, query: Inference, on_event: OnEvent, fan_out: FanOut) -> None:
    """Infer all users into `query.out`. Raises ResourceError if it cannot be written."""
    folder, release = all_users.path, all_users.release
    places = cut(all_users.corpus.users.tolist(), fan_out.num_parts)
    threads = fan_out.choose_threads(query.threads)
    template = replace(all_users, release=replace(release, threads=threads))  # without the item table of this process
    parts = [replace(template, partitions=place, path=folder / f"v{place.start:05d}.parquet") for place in places]
    try:
        with replace_file(query.out) as temporary:
            note_partial(folder, temporary)
            if len(parts) == 1:
                parts = [replace(all_users, path=temporary)]
            pieces = list(fan_out.run(infer_part, parts, on_event))
            if len(parts) > 1:  # by row groups: gives the same bytes as a single part
                with open_writer(temporary, release.schema) as writer:
                    for piece in map(pq.ParquetFile, pieces):
                        for group in range(piece.num_row_groups):
                            rows = piece.read_row_group(group).cast(writer.schema)
                            writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
    except OSError as error:
        raise ResourceError(
            f"cannot write {query.out}: {error.strerror or error}; free or widen that disk, or use another --out"
        ) from None


def infer_part(part: InferPart, on_event: OnEvent) -> Path:
    """Infer a part's micro-partitions in order, into its file, which is returned. Its bytes do not depend on the batches."""
    release = part.release
    group_bytes = part.rows // 2 * 4 * release.generation.vector_size
    num_done, total = 0, int(part.corpus.users.sum())
    with open_writer(part.path, release.schema) as writer:
        batches = _batches(part.corpus, part.partitions, part.rows)
        for (users, activity), both in infer_whole(release.items, batches, group_bytes, on_event):
            scaled = scale_activity(activity[:, : len(release.quantiles)], release.quantiles)
            vectors = encode_vectors(np.hstack([project(both, release.projection), scaled]), "float32")["vector"]
            writer.write_table(pa.table([users, vectors], schema=writer.schema), row_group_size=ROW_GROUP_ROWS)
            num_done += len(vectors)
            log_progress(on_event, "infer", num_done, total, "users")
    return part.path


def _batches(
    corpus: Corpus, partitions: range, rows: int
) -> Iterator[tuple[tuple[pa.ChunkedArray, NDArray[np.float32]], Histories]]:
    """Yield ((users, their activity), their histories), at most `rows` at once and of one micro-partition."""
    for partition in (partition for partition in partitions if corpus.users[partition]):
        user_ids, histories = corpus.read_ids(partition), corpus.read(partition)
        activity = read_activity(corpus, partition)
        for start in range(0, histories.num_users, rows):
            users = np.arange(start, min(start + rows, histories.num_users))
            own = take_histories(histories, users, histories.ends[users])
            yield (user_ids.slice(start, rows), activity[start : start + rows]), own
