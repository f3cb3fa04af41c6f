"""Builds the corpus of a window: cleaned events as tokens, compressed sparse rows a micro-partition.

Cleaning, a user at a time inside the window: bots leave whole, consecutive repeats collapse, rare items and then users with
too little left are dropped, and the newest events are kept. Two passes, since what is rare is known only after the first:
`tasks/corpus/clean_pass.py` cleans and counts, `tasks/corpus/token_pass.py` writes tokens. Between them an event is
four bytes in a scratch file, so the events are sorted once; memory is flat, as both passes go by groups of
micro-partitions, which may be done elsewhere (`tasks/corpus/parts.py`). Counting micro-partitions and the vocabulary
between the passes are done here.
"""

import os
from dataclasses import dataclass, replace
from datetime import date
from glob import escape
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from sql.runner import connect, create_table, fetch_rows, stream_rows
from tasks.config import EvaluateConfig, IngestConfig
from tasks.corpus.clean_pass import Group, Stages, count_partitions, plan_groups
from tasks.corpus.cleaning import UNDATED, find_key_max
from tasks.corpus.folder import (
    BASE_KEYS,
    CORPUS_MANIFEST,
    open_building_folders,
    publish,
    write_changed,
    write_vocabulary,
)
from tasks.corpus.parts import DUCKDB_SHARE, CorpusPart, clean_part, write_part
from tasks.corpus.token_pass import BaseCorpus, Written
from tasks.corpus.window import (
    FORMAT_VERSION,
    Base,
    Window,
    explain_unreadable,
    find_obstacle,
    list_inputs,
    name_corpus,
    select_window,
)
from tasks.root.failures import explain_failures
from tasks.root.memory import spare_bytes
from tasks.root.run import Root
from tasks.root.wording import several
from trainer.errors import InputError
from trainer.events import OnEvent, ignore_event
from trainer.store.tokens import CHANGED, VOCABULARY, open_corpus
from trainer.system.fan_out import HERE, FanOut
from trainer.system.files import read_json

# What an event of a group takes of what is spare: its numbers some 70 bytes, its text, until that is numbered, some 80 in
# sample logs; the rest is for longer urls and for DuckDB.
BYTES_PER_EVENT = 350
_EPOCH = date(1970, 1, 1)
_TOLD = (
    "window_id", "num_users", "num_items", "num_tokens", "num_held_out", "partitions", "since", "until", "undated", "funnel",
    "base",
)  # fmt: skip


def window_id(
    root: Root,
    config: IngestConfig,
    evaluate: EvaluateConfig,
    since: date | None,
    until: date | None,
    window_days: int | None,
    base: Base | None = None,
) -> str:
    """The name of the corpus that these settings make of what was ingested, 16 hex digits: same inputs, same name.

    Raises InputError when the window is empty.
    """
    return name_corpus(list_inputs(select_window(root, since, until, window_days), config, evaluate, base))


def build_corpus(
    root: Root,
    config: IngestConfig,
    evaluate: EvaluateConfig,
    since: date | None,
    until: date | None,
    window_days: int | None,
    memory_bytes: int,
    threads: int,
    on_event: OnEvent = ignore_event,
    base: Base | None = None,
    fan_out: FanOut = HERE,
) -> dict[str, Any]:
    """Build the corpus of the window unless it exists; the story's "corpus". The caller holds the lock of writers.

    With a base its items and users keep their places, and `changed/` in the corpus's folder is the corpus of the rows to train.
    With that of a full night, users who stay without events come after all others of their micro-partition.
    `threads` 0 takes all; neither they, nor the memory, nor who does the parts change a byte of what is built.
    Raises InputError when the window is empty, nothing is left after cleaning or the base cannot be continued, DamageError when
    an events file is not as ingest left it or the base's files are altered, ResourceError when memory or disk do not suffice.
    """
    window = select_window(root, since, until, window_days)
    inputs = list_inputs(window, config, evaluate, base)
    identity = name_corpus(inputs)
    folder = root.corpus(identity)
    if not (folder / CORPUS_MANIFEST).exists():
        window.verify()
        opened = _open_base(root, window, inputs, base) if base else None
        threads = threads or os.cpu_count() or 1
        with (
            explain_failures(root, "the corpus is built", memory_bytes),
            explain_unreadable(root),
            open_building_folders(root, identity) as (building, scratch),
        ):
            with connect(spare_bytes(memory_bytes) * DUCKDB_SHARE // 100, scratch / "spill", threads) as con:
                tokens, manifest = Build(
                    con, window, config, evaluate.max_users, building, scratch, memory_bytes, threads, on_event,
                    fan_out, opened,
                ).run()  # fmt: skip
            manifest |= {"window_id": identity, "made_from": inputs}
            if tokens.changed:
                write_changed(building, manifest, _describe_changed(tokens.changed))
            publish(building, folder, manifest)
    manifest = read_json(folder / CORPUS_MANIFEST)
    told = {key: manifest[key] for key in (*_TOLD, *BASE_KEYS) if key in manifest}
    return told | {"bytes": sum(file["bytes"] for file in manifest["files"].values())}


def _open_base(root: Root, window: Window, inputs: dict[str, Any], base: Base) -> BaseCorpus:
    """The corpus to continue. Raises InputError when it cannot be, DamageError when its manifest cannot be read."""
    if obstacle := find_obstacle(root, inputs):
        raise InputError(f"the corpus cannot continue that of an earlier night: {obstacle}; run with --full")
    oldest_day = (date.fromisoformat(window.until) - _EPOCH).days - base.retain_days if window.until else UNDATED
    return BaseCorpus(open_corpus(root.corpus(base.window_id)), oldest_day, base.is_full)


def _describe_changed(changed: Written) -> dict[str, Any]:
    """What the manifest of the changed rows has of its own."""
    return {
        "num_users": sum(changed.users),
        "num_tokens": sum(changed.tokens),
        "users": changed.users,
        "tokens": changed.tokens,
        "files": changed.files,
    }


@dataclass(frozen=True)
class Build:
    """One build: where its rows come from, by which rules, and where its files go."""

    con: duckdb.DuckDBPyConnection
    window: Window
    config: IngestConfig
    max_users: int
    building: Path
    scratch: Path
    memory_bytes: int
    threads: int
    on_event: OnEvent
    fan_out: FanOut
    base: BaseCorpus | None = None

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the SQL steps; DuckDB reads the names of files as patterns, so those are escaped."""
        return self.config.model_dump() | {
            "partitions": self.window.partitions,
            "files": [escape(str(file.path)) for file in self.window.files],
            "undated_files": [str(file.path) for file in self.window.files if file.day is None],
        }

    def run(self) -> tuple[Written, dict[str, Any]]:
        """Both passes, over groups as large as memory allows; returns what was written, and the manifest, but for its name."""
        num_events = count_partitions(self.con, self.params, self.window)
        total = int(num_events.sum())
        max_events = min(spare_bytes(self.memory_bytes) // BYTES_PER_EVENT, -(-total // self.fan_out.num_parts))
        groups = plan_groups(num_events, max(1, max_events))
        message = f"{total:,} events of {len(num_events)} micro-partitions, in {several(len(groups), 'group')}"
        self.on_event("log", {"message": message})
        parts = CorpusPart(
            tuple(groups), self.params, self.config, self.scratch, self.building, self.memory_bytes, self.threads,
            self.max_users + 1, total, self.base,
        ).divide(self.fan_out)  # fmt: skip
        stages = self._clean(parts)
        num_items_seen = self._make_vocabulary(groups, stages)
        tokens = self._write_tokens(parts)
        if not sum(tokens.tokens):
            way_out = f"no user has that many events: lower ingest.min_user_events ({self.config.min_user_events})"
            raise self._nothing_left(stages, tokens.num_in_vocabulary, way_out)
        return tokens, self._describe(stages, num_items_seen, tokens)

    def _clean(self, parts: list[CorpusPart]) -> Stages:
        stages = Stages()
        for cleaned in self.fan_out.run(clean_part, parts, self.on_event):
            stages.add(cleaned)
        if not stages.after_bots:
            way_out = f"all users are taken for bots: raise ingest.max_day_events ({self.config.max_day_events:,})"
            raise self._nothing_left(stages, 0, way_out)
        return stages

    def _make_vocabulary(self, groups: list[Group], stages: Stages) -> int:
        """Make the table `vocabulary`; returns how many items the window has. Raises InputError when none is kept."""
        config = self.config
        params = self.params | {"item_counts": [escape(str(group.item_counts(self.scratch))) for group in groups]}
        is_alone = len(groups) == 1
        create_table(self.con, f"intermediate/{'alone/' if is_alone else ''}int_item_totals", params)
        seen = fetch_rows(self.con, "intermediate/int_item_summary")[0]
        if self.base is None or self.base.is_full:
            create_table(self.con, "marts/vocabulary", params)
        else:
            before = self.base.verify(VOCABULARY)
            create_table(self.con, "staging/stg_vocabulary", {"vocabulary": escape(str(before))})
            create_table(self.con, "marts/continued/vocabulary", params)
        self.con.execute("drop table int_item_totals")
        if not self._num_items():
            raise self._nothing_left(
                stages,
                0,
                f"no item has {config.min_item_events:,} events and {config.min_item_users:,} users (the most events of one are "
                f"{seen['max_events']:,}, the most users {seen['max_users']:,}): "
                f"lower ingest.min_item_events or ingest.min_item_users",
            )
        return seen["num_items"]

    def _write_tokens(self, parts: list[CorpusPart]) -> Written:
        """The second pass, and the vocabulary's file."""
        tokens = Written()
        if self.base and not self.base.is_full:
            (self.building / CHANGED).mkdir()
        for group in (group for part in parts for group in part.groups):
            self._write_item_ix(group)
        for part, written in zip(parts, self.fan_out.run(write_part, parts, self.on_event), strict=True):
            keys = np.load(part.keys, allow_pickle=False)
            tokens.add(replace(written, keys=keys), part.max_keys)
        tokens.files |= write_vocabulary(self.building, self.con.table("vocabulary").order("item_ix").to_arrow_reader())
        return tokens

    def _write_item_ix(self, group: Group) -> None:
        """Write the item_ix of each item code of a group, for the second pass."""
        path = group.item_counts(self.scratch)
        params = {"group_item_counts": escape(str(path))}
        rows = stream_rows(self.con, "intermediate/int_group_item_ix", params).read_all()
        item_ix = np.full(pq.read_metadata(path).num_rows, -1, dtype=np.int32)
        item_ix[rows["item_code"].to_numpy()] = rows["item_ix"].to_numpy()
        np.save(group.item_ix(self.scratch), item_ix, allow_pickle=False)

    def _num_items(self) -> int:
        return self.con.table("vocabulary").count("*").fetchall()[0][0]

    def _describe(self, stages: Stages, num_items_seen: int, tokens: Written) -> dict[str, Any]:
        """The manifest (see the layout in `trainer/store/tokens.py`); users count rows, num_users those that are no holes."""
        num_items = self._num_items()
        key_max, num_held_out = find_key_max(tokens.keys, self.max_users)
        funnel = [
            ("events in the window", stages.events),
            ("events without bots", stages.after_bots),
            ("events without repeats", stages.after_repeats),
            ("events of items in the vocabulary", tokens.num_in_vocabulary),
            ("events of users kept", tokens.num_of_kept_users),
            ("tokens (the newest events of each user)", sum(tokens.tokens)),
            ("items in the window", num_items_seen),
            ("items in the vocabulary", num_items),
            ("users in the window", stages.users),
            ("users kept", tokens.num_kept_users),
        ]
        manifest = {
            "format_version": FORMAT_VERSION,
            "partitions": self.window.partitions,
            "num_users": sum(tokens.users) - sum(tokens.holes),
            "num_items": num_items,
            "num_tokens": sum(tokens.tokens),
            "users": tokens.users,
            "holes": tokens.holes,
            "tokens": tokens.tokens,
            "held_out_key_max": key_max,
            "num_held_out": num_held_out,
            "since": self.window.since,
            "until": self.window.until,
            "undated": self.window.is_undated,
            "funnel": funnel,
            "files": tokens.files,
            "base": None,
        }
        if self.base and self.base.is_full:
            manifest |= {"without_tokens": True}
        elif self.base and tokens.changed:
            manifest |= {
                "base": self.base.corpus.manifest["window_id"],
                "num_changed": sum(tokens.changed.users),
                "num_new_users": tokens.num_new_users,
                "num_left": tokens.num_left,
                "num_new_items": num_items - self.base.corpus.num_items,
            }
        return manifest

    def _nothing_left(self, stages: Stages, num_in_vocabulary: int, way_out: str) -> InputError:
        return InputError(
            f"nothing is left after cleaning: {stages.events:,} events of {stages.users:,} users in the window, "
            f"{stages.after_bots:,} without bots, {stages.after_repeats:,} without repeats, {num_in_vocabulary:,} of items "
            f"in the vocabulary, 0 of users kept; {way_out}, or give more logs"
        )
