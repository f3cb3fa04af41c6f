"""Builds the corpus of a window: cleaned events as tokens, in compressed sparse rows per micro-partition.

Rare items are known only after a first pass: `tasks/corpus/clean_pass.py` cleans and counts, `tasks/corpus/token_pass.py` writes
tokens. Between them an event takes four bytes in a scratch file, so events are sorted once. Both passes process
groups of micro-partitions, also in other processes. This module makes the vocabulary between the passes.
"""

import os
from collections import Counter
from dataclasses import dataclass
from datetime import date
from glob import escape
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from surf2vec.sql.runner import connect, create_table
from surf2vec.tasks.corpus.clean_pass import (
    CorpusPart,
    clean_part,
    count_partitions,
    duckdb_bytes,
    group_file,
    write_item_ix,
)
from surf2vec.tasks.corpus.cleaning import CHOOSING_SHARE, MAX_CHOOSING, MAX_CHOOSING_SCORES, UNDATED, find_key_max
from surf2vec.tasks.corpus.folder import (
    CORPUS_MANIFEST,
    BaseCorpus,
    open_building_folders,
    publish,
    write_changed,
    write_vocabulary,
)
from surf2vec.tasks.corpus.order import has_order
from surf2vec.tasks.corpus.token_pass import Written, write_part
from surf2vec.tasks.corpus.window import FORMAT_VERSION, CorpusRequest, Window, explain_unreadable, name_corpus
from surf2vec.tasks.root.failures import explain_failures
from surf2vec.tasks.root.records import CorpusStep
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.root.wording import format_counted
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import OnEvent, ignore_event, log
from surf2vec.trainer.store.tokens import CHANGED, VOCABULARY, Corpus, held_out_keys, open_corpus, partition_name
from surf2vec.trainer.system.fan_out import HERE, FanOut
from surf2vec.trainer.system.files import read_json, verify_all

_EPOCH = date(1970, 1, 1)


def build_corpus(
    root: Root,
    request: CorpusRequest,
    memory_bytes: int,
    threads: int,
    on_event: OnEvent = ignore_event,
    fan_out: FanOut = HERE,
) -> dict[str, Any]:
    """Build the corpus of the window unless it exists; returns the record of step "corpus". The caller holds the writer lock.

    With a base, its items and users keep their places, and `changed/` in the corpus's folder is the corpus of the rows to train.
    In a full night, users who stay without events come after all others of their micro-partition.
    `threads` 0 uses all cores. Threads, memory and the processes that do the parts do not change a byte of the result.
    Raises InputError when nothing is left, DamageError when a file was altered, ResourceError when memory or disk do not suffice.
    """
    window = request.select_window(root)
    inputs = request.inputs(window)
    identity = name_corpus(inputs)
    folder = root.corpus(identity)
    if not (folder / CORPUS_MANIFEST).exists():
        verify_all(window.files)
        base = None
        if earlier := request.base:
            last_day = (date.fromisoformat(window.until) - _EPOCH).days if window.until else None
            oldest_day = UNDATED if last_day is None else last_day - earlier.retain_days
            base = BaseCorpus(open_corpus(root.corpus(earlier.window_id)), oldest_day, earlier.is_full)
        threads = threads or os.cpu_count() or 1
        with (
            explain_failures(root, "the corpus is built", memory_bytes),
            explain_unreadable(root),
            open_building_folders(root, identity) as (building, scratch),
        ):
            params = request.ingest.model_dump() | window.params
            shared = CorpusPart(
                (), params, request.ingest, scratch, building, memory_bytes, threads, window.num_events, base
            )
            with connect(duckdb_bytes(memory_bytes), scratch / "spill", threads) as con:
                build = Build(con, window, shared, request.evaluate.max_users, Counter())
                written, manifest = build.run(on_event, fan_out)
            manifest |= {"window_id": identity, "made_from": inputs}
            if shared.is_continued:
                write_changed(building, manifest, _describe_rows([one.changed for one in written if one.changed]))
            publish(building, folder, manifest)
    manifest = read_json(folder / CORPUS_MANIFEST)
    record = {key: manifest[key] for key in CorpusStep.model_fields if key in manifest}
    return record | {"bytes": sum(file["bytes"] for file in manifest["files"].values())}


@dataclass(frozen=True)
class Build:
    """One build. shared: what all parts need, without groups; stages: events left after each stage so far."""

    con: duckdb.DuckDBPyConnection
    window: Window
    shared: CorpusPart
    max_users: int
    stages: Counter[str]

    def run(self, on_event: OnEvent, fan_out: FanOut) -> tuple[list[Written], dict[str, Any]]:
        """Do both passes; returns what was written for each micro-partition, and the manifest without its name."""
        config, scratch = self.shared.config, self.shared.scratch
        num_events = count_partitions(self.con, self.shared.params, self.window)
        parts = self.shared.divide(num_events, fan_out)
        groups = [group for part in parts for group in part.groups]
        where = f"{len(num_events)} micro-partitions, in {format_counted(len(groups), 'group')}"
        log(on_event, f"{self.window.num_events:,} events of {where}")
        for cleaned in fan_out.run(clean_part, parts, on_event):
            self.stages.update(cleaned)
        if not self.stages["after_bots"]:
            raise self._nothing_left(
                f"all users are taken for bots: raise ingest.max_day_events ({config.max_day_events:,})"
            )
        vocabulary = self._make_vocabulary([group_file(scratch, group, "item_counts.parquet") for group in groups])
        if self.shared.is_continued:
            (self.shared.building / CHANGED).mkdir()
        for group in groups:
            write_item_ix(self.con, scratch, group)
        written = [one for part in fan_out.run(write_part, parts, on_event) for one in part]
        for one in written:
            self.stages.update(one.stages)
        if not any(one.tokens for one in written):
            fewest = config.min_user_events
            raise self._nothing_left(f"no user has that many events: lower ingest.min_user_events ({fewest})")
        return written, self._describe(written, vocabulary)

    def _make_vocabulary(self, item_counts: list[Path]) -> dict[str, Any]:
        """Make the table `vocabulary` and its file; returns the manifest entry. Raises InputError when no item is kept."""
        config, base, con = self.shared.config, self.shared.base, self.con
        create_table(con, "intermediate/int_item_totals", {"item_counts": [escape(str(path)) for path in item_counts]})
        summary = "count(*), coalesce(max(events), 0), coalesce(max(users), 0)"
        [(self.stages["items"], max_events, max_users)] = con.table("int_item_totals").aggregate(summary).fetchall()
        if base and not base.is_full:
            with base.explain_damage():
                vocabulary = con.read_parquet(escape(str(base.corpus.path(VOCABULARY))))
            vocabulary.select("url, item_ix").create("stg_vocabulary")
        else:
            con.execute("create temporary table stg_vocabulary (url varchar, item_ix integer)")
        create_table(con, "marts/vocabulary", self.shared.params)
        con.execute("drop table int_item_totals")
        if not con.table("vocabulary").count("*").fetchall()[0][0]:
            raise self._nothing_left(
                f"no item has {config.min_item_events:,} events and {config.min_item_users:,} users (the most events of one are "
                f"{max_events:,}, the most users {max_users:,}): "
                f"lower ingest.min_item_events or ingest.min_item_users"
            )
        return write_vocabulary(self.shared.building, con.table("vocabulary").order("item_ix").to_arrow_reader())

    def _describe(self, written: list[Written], vocabulary: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest (layout: `trainer/store/tokens.py`). users counts rows with holes, num_users without."""
        base, stages = self.shared.base, self.stages
        num_items = self.con.table("vocabulary").count("*").fetchall()[0][0]
        rows, holes = _describe_rows(written), [one.holes for one in written]
        has_order = self._has_order(rows, num_items)
        funnel = [
            ("events in the window", stages["events"]),
            ("events without bots", stages["after_bots"]),
            ("events without repeats", stages["after_repeats"]),
            ("events of items in the vocabulary", stages["in_vocabulary"]),
            ("events of users kept", stages["of_kept_users"]),
            ("tokens (the newest events of each user)", rows["num_tokens"]),
            ("items in the window", stages["items"]),
            ("items in the vocabulary", num_items),
            ("users in the window", stages["users"]),
            ("users kept", stages["kept_users"]),
        ]
        manifest = (
            rows
            | {
                "format_version": FORMAT_VERSION,
                "partitions": self.window.partitions,
                "num_users": rows["num_users"] - sum(holes),
                "num_items": num_items,
                "holes": holes,
                "since": self.window.since,
                "until": self.window.until,
                "undated": any(file.day is None for file in self.window.files),
                "has_order": has_order,
                "funnel": funnel,
                "files": rows["files"] | vocabulary,
                "base": None,
            }
            | self._hold_out(num_items)
        )
        if base and base.is_full:
            manifest |= {"without_tokens": True}
        elif base:
            manifest |= {
                "base": base.corpus.manifest["window_id"],
                "num_changed": sum(one.changed.users for one in written if one.changed),
                "num_new_users": stages["new_users"],
                "num_left": stages["left"],
                "num_new_items": num_items - base.corpus.num_items,
            }
        return manifest

    def _has_order(self, rows: dict[str, Any], num_items: int) -> bool:
        """Return whether the order of events means something. A continued corpus keeps what its base says; a full night, which
        begins with the champion's vectors, may find an order but loses none: vectors change their parts once at most.
        """
        base = self.shared.base
        if base and (self.shared.is_continued or base.corpus.has_order):
            return base.corpus.has_order
        manifest = rows | {"partitions": self.window.partitions, "num_items": num_items, "held_out_key_max": -1}
        return self.stages["in_order"] > 0 and has_order(Corpus(self.shared.building, manifest))

    def _hold_out(self, num_items: int) -> dict[str, int]:
        """Return the manifest entries of who is held out: the users with the smallest keys."""
        keys, num_keys = np.empty(0, dtype=np.uint64), 0
        for partition in range(self.window.partitions):
            path = self.shared.building / partition_name(partition)
            hashes = pq.read_table(f"{path}.users.parquet", columns=["hash"])["hash"].to_numpy()
            found = held_out_keys(hashes[np.load(f"{path}.held_out.npy") >= 0])
            num_keys += len(found)
            keys = np.sort(np.concatenate([keys, found]))[: self.max_users + MAX_CHOOSING + 1]
        most = min(MAX_CHOOSING, MAX_CHOOSING_SCORES // max(1, num_items))
        num_choosing = 0 if self.shared.is_continued else min(most, num_keys // CHOOSING_SHARE)
        max_evaluated = min(self.max_users, num_keys - num_choosing)
        evaluated_max, num_evaluated = find_key_max(keys, max_evaluated)
        key_max, num_held_out = find_key_max(keys, max_evaluated + num_choosing)
        return {
            "held_out_key_max": key_max,
            "evaluated_key_max": evaluated_max,
            "num_held_out": num_held_out,
            "num_choosing": num_held_out - num_evaluated,
        }

    def _nothing_left(self, way_out: str) -> InputError:
        left = self.stages
        return InputError(
            f"nothing is left after cleaning: {left['events']:,} events of {left['users']:,} users in the window, "
            f"{left['after_bots']:,} without bots, {left['after_repeats']:,} without repeats, {left['in_vocabulary']:,} of items "
            f"in the vocabulary, 0 of users kept; {way_out}, or give more logs"
        )


def _describe_rows(written: list[Written]) -> dict[str, Any]:
    """Return the manifest entries that sum up all micro-partitions, or all changed rows."""
    users, tokens = [one.users for one in written], [one.tokens for one in written]
    files = {name: about for one in written for name, about in one.files.items()}
    return {"num_users": sum(users), "num_tokens": sum(tokens), "users": users, "tokens": tokens, "files": files}
