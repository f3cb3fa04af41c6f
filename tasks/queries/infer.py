"""Vectors for users that the model has not seen, or for new histories of known ones, with a release's items frozen.

The logs go the way of a night's, ingest and cleaning, into a folder under .tmp/ of the root, but with the release's
vocabulary in place of one of their own. The root is only read and its lock not taken: the files of the release get
second names in that folder, so that a run which publishes meanwhile takes nothing away.
"""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any

from sql.runner import connect, create_table, fetch_rows
from tasks.config import IngestConfig
from tasks.corpus.clean_pass import CorpusPart, clean_part, count_partitions, duckdb_bytes, write_item_ix
from tasks.corpus.token_pass import write_part
from tasks.corpus.window import explain_unreadable, select_window
from tasks.export.reduction import PROJECTION_FILE
from tasks.ingest.deliveries import list_changes, rules_of
from tasks.ingest.ingest import ingest
from tasks.ingest.rejects import FAILED
from tasks.ingest.sources import read_catalog
from tasks.ingest.user_key import read_user_key
from tasks.queries.held_release import Release, open_release
from tasks.queries.infer_parts import ROW_GROUP_ROWS, InferPart, infer_part, join_pieces
from tasks.root.failures import explain_failures
from tasks.root.run import Root, note_partial, open_scratch_folder
from tasks.users.tombstones import FORGOTTEN, copy_tombstones
from trainer.config import TrainConfig
from trainer.errors import ConfigError, InputError, RejectedError, ResourceError
from trainer.events import OnEvent, ignore_event
from trainer.store.tokens import Corpus
from trainer.system.fan_out import HERE, FanOut, cut
from trainer.system.files import replace_file
from trainer.system.units import size

_RULES = ("timezone", "granularity", "keep_query", "mask_secrets")


@dataclass(frozen=True)
class Inference:
    """What is asked: the logs' globs, the file to write, and the settings and the budget of the call."""

    logs: Sequence[str]
    out: Path
    ingest: IngestConfig
    train: TrainConfig
    memory_bytes: int

    @property
    def threads(self) -> int:
        return self.train.threads or os.cpu_count() or 1


@dataclass(frozen=True)
class Cleaned:
    """The logs as a corpus in the release's vocabulary; num_users: also those that have no known item."""

    corpus: Corpus
    num_users: int
    num_unknown_events: int


def infer(
    root: Root, release: str, asked: Inference, on_event: OnEvent = ignore_event, fan_out: FanOut = HERE
) -> dict[str, Any]:
    """Write `asked.out`: `user_id, vector`, sorted by micro-partition (the root's) and user_id; returns what came of it.

    1. ingest the logs into a root of their own, with the user key and by the rules of `root`;
    2. clean them as a corpus is cleaned: repeats collapse and the newest events count. No user is taken for a bot, as
       frozen items cannot be led astray;
    3. infer every user with a known item, as the release was trained; the same history gives the same bytes.

    The caller needs no lock. Raises a SurfError; `asked.out` is then as it was before.
    """
    started = time.monotonic()
    _check_out(asked.out)
    config = _follow_rules(root, read_catalog(root).rules or {}, asked.ingest)
    read_user_key(root, config)
    with (
        explain_failures(root, "vectors are inferred", asked.memory_bytes),
        open_scratch_folder(root, "infer") as folder,
    ):
        frozen = open_release(root, release, folder, asked.train, on_event)
        rows = _plan_rows(frozen, asked.memory_bytes)
        frozen.items.admit(0)  # a damaged table is found before the logs are read
        own = Root(folder / "root")
        own.path.mkdir()
        copy_tombstones(root, own)
        ingested = _ingest(root, own, asked, config, on_event, fan_out)
        cleaned = _clean(own, asked, config, frozen, on_event, fan_out)
        config_of_items = replace(frozen.items.config, threads=fan_out.choose_threads(asked.threads))
        whole = InferPart(
            cleaned.corpus, frozen.generation, config_of_items, frozen.counts,
            None if frozen.projection is None else folder / PROJECTION_FILE,
            rows, range(cleaned.corpus.num_partitions), folder,
        )  # fmt: skip
        num_bytes = _write(whole, frozen, asked.out, on_event, fan_out)
    num_users = int(cleaned.corpus.users.sum())
    return {
        "users": num_users,
        "users_without_known_items": cleaned.num_users - num_users,
        "events": ingested["events"],
        "events_forgotten": ingested["left_out"].get(FORGOTTEN, 0),
        "events_unknown_items": cleaned.num_unknown_events,
        "rejected": ingested["num_rejected"],
        "items": frozen.generation.num_items,
        "vector_size": frozen.vector_size,
        "release": release,
        "out": str(asked.out),
        "bytes": num_bytes,
        "seconds": round(time.monotonic() - started, 3),
    }


def _check_out(out: Path) -> None:
    """Raise ConfigError unless `out` can be a Parquet file, ResourceError when its folder cannot be written to."""
    try:
        is_folder = out.is_dir()
        parent = next(path for path in out.resolve().parents if path.exists())
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be a file: {error.strerror}; name another") from None
    if out.suffix != ".parquet" or is_folder:
        what = "is a folder" if is_folder else "does not end in .parquet"
        raise ConfigError(f"--out {out} {what}: name a Parquet file, for instance --out vectors.parquet")
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ResourceError(f"cannot write {out}: {parent} is no folder that may be written to; give another --out")


def _follow_rules(root: Root, rules: dict[str, Any], config: IngestConfig) -> IngestConfig:
    """The settings with the root's rules of what an item is. Raises ConfigError when the call asks for other ones."""
    known = {name: rules[name] for name in _RULES if rules.get(name) is not None}
    if rules.get("prefix_depth"):
        known["granularity"] = f"prefix:{rules['prefix_depth']}"
    taken = {name: value for name, value in known.items() if name not in config.model_fields_set}
    followed = IngestConfig.model_validate(config.model_dump() | taken)
    own = rules_of(followed)
    if rules and rules["version"] != own["version"]:
        raise ConfigError(
            f"{'; '.join(list_changes(rules, own))} when {root.path} was made: its items are others; give all its logs "
            "again to `surf2vec run`"
        )
    if changes := list_changes(rules, own):
        raise ConfigError(f"{'; '.join(changes)} when {root.path} was made: leave it out, or name another --root")
    return followed


def _plan_rows(release: Release, memory_bytes: int) -> int:
    """Users to infer at once, whole row groups. Raises ResourceError when the memory does not suffice for one."""
    generation, item_bytes = release.generation, release.items.num_bytes
    vector_bytes = 4 * generation.vector_size
    group_bytes = ROW_GROUP_ROWS * (3 * vector_bytes + 100)  # vectors, as Arrow and as Parquet; ids
    room = (memory_bytes - item_bytes) // 2
    if room < group_bytes:
        raise ResourceError(
            f"the {generation.num_items:,} items of release {release.name} need {size(item_bytes)} and a batch of users "
            f"{size(2 * group_bytes)}, but there are {size(memory_bytes)}: raise --host-memory"
        )
    return room // group_bytes * ROW_GROUP_ROWS


def _ingest(
    root: Root, own: Root, asked: Inference, config: IngestConfig, on_event: OnEvent, fan_out: FanOut
) -> dict[str, Any]:
    """The logs as events of `own`; the list of rejects of unusable ones is kept in `root`."""
    partitions = read_catalog(root).partitions
    try:
        ingested = ingest(own, asked.logs, config, partitions, asked.memory_bytes, asked.threads, on_event, fan_out)
    except RejectedError as error:
        listed, kept = own.rejects / FAILED, root.rejects / "infer"
        if not listed.exists():
            raise
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        os.replace(listed, kept)
        raise RejectedError(str(error).replace(str(listed), str(kept))) from None
    if num_forgotten := ingested["left_out"].get(FORGOTTEN, 0):
        on_event(
            "log", {"message": f"{num_forgotten:,} events of users who were forgotten are left out: they get no vector"}
        )
    if not ingested["events"]:
        raise InputError("these logs have no event but those of users who were forgotten: nobody gets a vector")
    if str(asked.out.resolve()) in {os.path.realpath(name) for name in read_catalog(own).names}:
        raise InputError(f"--out {asked.out} is one of the logs: name another file")
    return ingested


def _clean(
    own: Root, asked: Inference, config: IngestConfig, release: Release, on_event: OnEvent, fan_out: FanOut
) -> Cleaned:
    """Tokens of the users of `own`, as the corpus of a night would have them, in the release's vocabulary."""
    window = select_window(own, None, None, None)
    config = config.model_copy(update={"max_day_events": 2**62, "min_user_events": 1})
    folder, scratch = own.path / "corpus", own.temporary
    folder.mkdir()
    scratch.mkdir(exist_ok=True)
    params = window.params | {"vocabulary": escape(str(release.vocabulary))}
    num_users = 0
    with explain_unreadable(own), connect(duckdb_bytes(asked.memory_bytes), scratch / "spill", asked.threads) as con:
        create_table(con, "staging/stg_vocabulary", params)
        con.execute("create temporary view vocabulary as from stg_vocabulary")
        num_unknown = fetch_rows(con, "intermediate/int_unknown_events", params)[0]["num_events"]
        whole = CorpusPart(
            (), params, config, scratch, folder, asked.memory_bytes, asked.threads, window.num_events, step="infer"
        )
        parts = whole.divide(count_partitions(con, params, window), fan_out)
        for stages in fan_out.run(clean_part, parts, on_event):
            num_users += stages["users"]
        for part in parts:
            for group in part.groups:
                write_item_ix(con, scratch, group)
        written = [one for part in fan_out.run(write_part, parts, on_event) for one in part]
    manifest = {
        "partitions": window.partitions, "users": [one.users for one in written],
        "tokens": [one.tokens for one in written], "held_out_key_max": -1,
        "files": {name: about for one in written for name, about in one.files.items()},
    }  # fmt: skip
    return Cleaned(Corpus(folder, manifest), num_users, num_unknown)


def _write(whole: InferPart, release: Release, out: Path, on_event: OnEvent, fan_out: FanOut) -> int:
    """Infer all users into `out`; returns its bytes. Raises ResourceError when `out` cannot be written."""
    folder = whole.path
    places = cut(whole.corpus.users.tolist(), fan_out.num_parts)
    parts = [replace(whole, partitions=place, path=folder / f"v{place.start:05d}.parquet") for place in places]
    try:
        with replace_file(out) as temporary:
            note_partial(folder, temporary)
            if len(parts) == 1:
                parts = [replace(whole, path=temporary, items=release.items)]
            pieces = list(fan_out.run(infer_part, parts, on_event))
            if len(parts) > 1:
                join_pieces(pieces, temporary, release.vector_size)
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"cannot write {out}: {reason}; free or widen that disk, or give another --out") from None
    return out.stat().st_size
