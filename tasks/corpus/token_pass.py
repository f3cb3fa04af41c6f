"""The second pass: makes the corpus files from the scratch files of `tasks/corpus/clean_pass.py` and the vocabulary.

Each micro-partition is written separately, on any thread. With a base (the corpus of an earlier night), users keep their rows. A
user without events in the window keeps the row until the newest event is too old; then the row becomes a hole. New users come
after all rows of the base. The rows to train are also written as a separate corpus, into `changed/`. A full night drops the holes
and orders the users: first those with tokens, then those without.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from surf2vec.tasks.corpus.clean_pass import CorpusPart, group_file
from surf2vec.tasks.corpus.cleaning import UNDATED, find_held_out, keep_in_vocabulary, keep_newest
from surf2vec.tasks.corpus.folder import ROWS_SCHEMA, USERS_SCHEMA, write_partition
from surf2vec.trainer.events import OnEvent
from surf2vec.trainer.store.tokens import CHANGED, Tokens, to_offsets
from surf2vec.trainer.system.fan_out import deliver_files


@dataclass(frozen=True)
class Written:
    """What the second pass wrote of one micro-partition.

    users, holes, tokens: counts, users including holes; changed: the same for `changed/`; stages: events in the vocabulary and of
    kept users, users who are kept, who are new, and who left: users of the base who became holes.
    """

    users: int
    holes: int
    tokens: int
    files: dict[str, Any]
    stages: dict[str, int] = field(default_factory=dict)
    changed: "Written | None" = None


@dataclass(frozen=True)
class Visitors:
    """The window's users of a micro-partition or a group, as ROWS_SCHEMA, and their tokens.

    has_events bool[N]: False for bots; num_known int64[N]: events of items in the vocabulary; is_kept bool[N]: whether these
    are enough. Only kept users have tokens. activity float32[N, A]: of users whose events are not those of the base.
    """

    users: pa.Table
    has_events: NDArray[np.bool_]
    num_known: NDArray[np.int64]
    is_kept: NDArray[np.bool_]
    tokens: Tokens
    activity: NDArray[np.float32]

    def cut(self, start: int, stop: int) -> "Visitors":
        """Return the users from `start` to `stop`."""
        users, place = self.users.slice(start, stop - start), slice(start, stop)
        tokens = self.tokens.take(np.arange(start, stop))
        has_events, num_known, is_kept = self.has_events[place], self.num_known[place], self.is_kept[place]
        return Visitors(users, has_events, num_known, is_kept, tokens, self.activity[place])


def write_part(part: CorpusPart, on_event: OnEvent) -> list[Written]:
    """Do the second pass over the groups of a part. Raises DamageError when files of the base differ from its manifest."""
    written: list[Written] = []
    num_partitions = sum(map(len, part.groups))
    with deliver_files(part.scratch, part.building) as folder, ThreadPoolExecutor(part.threads) as pool:
        (folder / CHANGED).mkdir()
        for group in part.groups:
            visitors, partitions = _read_visitors(part, group)
            edges = np.searchsorted(partitions, [*group, group.stop]).tolist()
            parts = (visitors.cut(*edge) for edge in pairwise(edges))
            written += pool.map(partial(_write_tokens, part, folder), group, parts)
            part.report(on_event, part.total_events + round(part.total_events * len(written) / num_partitions))
    return written


def _read_visitors(part: CorpusPart, group: range) -> tuple[Visitors, NDArray[np.int32]]:
    """Return the users of a group, and the micro-partition of each."""
    item_ix, lengths, codes = (
        np.load(group_file(part.scratch, group, f"{kind}.npy")) for kind in ("item_ix", "lengths", "items")
    )
    activity = np.load(group_file(part.scratch, group, "activity.npy"), mmap_mode="r")
    with pa.OSFile(str(group_file(part.scratch, group, "users.arrow"))) as file, pa.ipc.open_file(file) as reader:
        users = reader.read_all()
    known = keep_in_vocabulary(lengths, item_ix[codes])
    num_known = np.diff(known.offsets)
    is_kept = num_known >= part.config.min_user_events
    tokens = keep_newest(known, is_kept, part.config.max_user_events)
    rows = users.select(ROWS_SCHEMA.names).cast(ROWS_SCHEMA)
    return Visitors(rows, lengths > 0, num_known, is_kept, tokens, activity), users["micro_partition"].to_numpy()


def _write_tokens(part: CorpusPart, folder: Path, partition: int, visitors: Visitors) -> Written:
    """Write the files of a micro-partition and, if the corpus continues another, of its changed rows.

    Only items that are new to their row since the base are held out: the base's vectors were trained on the others.
    """
    base_users, before, activity = ROWS_SCHEMA.empty_table(), _NO_TOKENS, visitors.activity[:0]
    if part.base:
        base_users, before, activity = part.base.read(partition)
    placed, now, activity = _place_users(part, base_users, visitors, activity)
    users = placed.select(USERS_SCHEMA.names)
    rows = np.flatnonzero(find_changed(before if part.is_continued else _NO_TOKENS, now))
    tonight = now.take(rows)
    held_out = find_held_out(tonight)
    if part.is_continued:
        held = np.flatnonzero(held_out >= 0)
        items = tonight.tokens[tonight.offsets[held] + held_out[held]]
        held_out[held[find_known(before, rows[held], items)]] = -1
    held_out_of_all = np.full(users.num_rows, -1, dtype=np.int32)
    held_out_of_all[rows] = held_out
    changed = None
    if part.is_continued:
        files = write_partition(
            folder / CHANGED, partition, users.take(pa.array(rows)), offsets=tonight.offsets, tokens=tonight.tokens,
            held_out=held_out, rows=rows.astype(np.uint32),
        )  # fmt: skip
        changed = Written(len(rows), 0, len(tonight.tokens), files)
    holes = users["user_id"].null_count
    return Written(
        users.num_rows,
        holes,
        len(now.tokens),
        write_partition(
            folder,
            partition,
            users,
            offsets=now.offsets,
            tokens=now.tokens,
            held_out=held_out_of_all,
            activity=activity,
            digests=placed["digest"].to_numpy(),
        ),
        {
            "in_vocabulary": int(visitors.num_known.sum()),
            "of_kept_users": int(visitors.num_known[visitors.is_kept].sum()),
            "kept_users": int(visitors.is_kept.sum()),
            "new_users": users.num_rows - base_users.num_rows,
            "left": holes - base_users["user_id"].null_count,
        },
        changed,
    )


def _place_users(
    part: CorpusPart, base_users: pa.Table, visitors: Visitors, base_activity: NDArray[np.float32]
) -> tuple[pa.Table, Tokens, NDArray[np.float32]]:
    """Return a micro-partition's users by row, their tokens and their activity: with the same events or none, the base's.

    Users who are not kept have a row only if the base has one.
    """
    is_known = pc.is_in(visitors.users["user_id"], base_users["user_id"].combine_chunks()).to_numpy()
    places = np.flatnonzero(visitors.is_kept | (visitors.has_events & is_known))
    oldest_day = part.base.oldest_day if part.base else UNDATED
    users, source = continue_rows(base_users, visitors.users.take(pa.array(places)), oldest_day)
    source = np.append(places, -1)[source]
    is_hole = users["user_id"].is_null().to_numpy()
    activity = np.zeros((len(source), base_activity.shape[1]), np.float32)
    activity[: len(base_activity)] = base_activity
    is_same = np.isin(users["digest"], base_users["digest"]) & part.is_continued
    activity[(source >= 0) & ~is_same] = visitors.activity[source[(source >= 0) & ~is_same]]
    activity[is_hole] = 0
    if part.base and part.base.is_full:
        has_tokens = (source >= 0) & np.append(visitors.is_kept, False)[source]
        idle = np.flatnonzero(~has_tokens & ~is_hole)
        order = np.concatenate([np.flatnonzero(has_tokens)[np.argsort(source[has_tokens])], idle])
        users, source, activity = users.take(pa.array(order)), source[order], activity[order]
    return users, visitors.tokens.take(source), activity


def continue_rows(base: pa.Table, window: pa.Table, oldest_day: int) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return the rows of a micro-partition, as ROWS_SCHEMA, and the index of each in `window`, int64[n], or -1.

    `base` and `window` are its users then and now, as ROWS_SCHEMA. Those without events since `oldest_day` become holes.
    """
    before, now = pl.DataFrame(base), pl.DataFrame(window).with_row_index("source")
    rows = before.join(now, on="user_id", how="left", maintain_order="left", suffix="_now")
    in_window = pl.col("source").is_not_null()
    stays = in_window | (pl.col("last_day") >= oldest_day) | (pl.col("last_day") == UNDATED)
    stays &= pl.col("user_id").is_not_null()
    rows = rows.select(
        user_id=pl.when(stays).then("user_id"),
        hash=pl.when(stays).then("hash").otherwise(0),
        last_day=pl.when(in_window)
        .then(pl.max_horizontal("last_day", "last_day_now"))
        .when(stays)
        .then("last_day")
        .otherwise(0),
        digest=pl.when(in_window).then("digest_now").when(stays).then("digest").otherwise(0),
        source=pl.col("source").cast(pl.Int64).fill_null(-1),
    )
    new = now.join(before, on="user_id", how="anti", maintain_order="left")
    rows = pl.concat([rows, new.select(*ROWS_SCHEMA.names, pl.col("source").cast(pl.Int64))])
    users = rows.drop("source").to_arrow(compat_level=pl.CompatLevel.oldest()).cast(ROWS_SCHEMA)
    return users, rows["source"].to_numpy()


def find_changed(base: Tokens, now: Tokens) -> NDArray[np.bool_]:
    """Return which rows to train, bool[n]: those that have tokens, and not the base's, whose rows are the first of `now`."""
    num_before, lengths = len(base.offsets) - 1, np.diff(now.offsets)
    is_changed = lengths > 0
    same = np.flatnonzero(lengths[:num_before] == np.diff(base.offsets))
    before, after = base.take(same), now.take(same)
    unequal = to_offsets(before.tokens != after.tokens)
    is_changed[same] &= unequal[before.offsets[1:]] > unequal[before.offsets[:-1]]
    return is_changed


def find_known(base: Tokens, rows: NDArray[np.int64], items: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which items, int32[k], the base has among the tokens of their row, bool[k]. The base may have fewer rows."""
    before = base.take(np.where(rows < len(base.offsets) - 1, rows, -1))
    known_before = to_offsets(before.tokens == np.repeat(items, np.diff(before.offsets)))
    return known_before[before.offsets[1:]] > known_before[before.offsets[:-1]]


_NO_TOKENS = Tokens(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32))
