"""The two passes of a corpus in parts: a part is some groups of micro-partitions, and any process can do it.

Files of the first pass and of the corpus are made in a folder of the part's own and move when the part is done. What goes to
a part and back are ranges, settings, paths and counts.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sql.runner import connect
from tasks.config import IngestConfig
from tasks.corpus.clean_pass import Group, Stages, clean_group, plan_groups
from tasks.corpus.token_pass import BaseCorpus, Written, write_tokens
from tasks.root.memory import spare_bytes
from trainer.events import OnEvent
from trainer.store.tokens import CHANGED
from trainer.system.fan_out import FanOut, cut, deliver_files

DUCKDB_SHARE = 40  # per cent of what is spare
# What an event of a group takes of what is spare: its numbers some 70 bytes, its text, until that is numbered, some 80 in
# sample logs; the rest is for longer urls and for DuckDB.
BYTES_PER_EVENT = 350


@dataclass(frozen=True)
class CorpusPart:
    """Groups that one part does, one after the other, and what both passes need.

    params: of the SQL steps; scratch: what lies between the passes; building: the corpus's folder; memory_bytes: the budget of
    the process; max_keys: as many keys of who can be held out are kept; total_events: of the window, for the progress of `step`.
    """

    groups: tuple[Group, ...]
    params: dict[str, Any]
    config: IngestConfig
    scratch: Path
    building: Path
    memory_bytes: int
    threads: int
    max_keys: int
    total_events: int
    base: BaseCorpus | None = None
    step: str = "corpus"

    @property
    def keys(self) -> Path:
        """Where the keys of who can be held out are, uint64, ascending: they are made of users' hashes."""
        return self.scratch / f"k{self.groups[0].first:05d}.npy"

    def plan_groups(self, num_events: NDArray[np.int64], fan_out: FanOut) -> "CorpusPart":
        """With groups as large as memory allows, but enough for all parts; num_events int64[P]: of each micro-partition."""
        fit_in_memory = spare_bytes(self.memory_bytes) // BYTES_PER_EVENT
        of_each_part = -(-self.total_events // fan_out.num_parts)
        return replace(self, groups=tuple(plan_groups(num_events, max(1, min(fit_in_memory, of_each_part)))))

    def divide(self, fan_out: FanOut) -> list["CorpusPart"]:
        """Its groups divided among the processes or machines there are."""
        places = cut([len(group.partitions) for group in self.groups], fan_out.num_parts)
        threads = fan_out.choose_threads(self.threads)
        return [replace(self, groups=tuple(self.groups[place] for place in part), threads=threads) for part in places]

    def report(self, on_event: OnEvent, done: int) -> None:
        """Tell how far both passes are, in events."""
        on_event("progress", {"step": self.step, "done": done, "total": 2 * self.total_events, "unit": "events"})


def clean_part(part: CorpusPart, on_event: OnEvent) -> Stages:
    """The first pass over some groups; returns what each stage left."""
    stages = Stages()
    duckdb_bytes = spare_bytes(part.memory_bytes) * DUCKDB_SHARE // 100
    with (
        deliver_files(part.scratch, part.scratch) as folder,
        connect(duckdb_bytes, part.scratch / "spill" / folder.name, part.threads) as con,
        ThreadPoolExecutor(part.threads) as pool,
    ):
        for group in part.groups:
            stages.add(clean_group(con, pool, group, part.params, part.config, folder))
            part.report(on_event, stages.events)
    return stages


def write_part(part: CorpusPart, on_event: OnEvent) -> Written:
    """The second pass over some groups; returns what was written, but for the keys. A thread holds one micro-partition."""
    written = Written()
    num_partitions = sum(len(group.partitions) for group in part.groups)
    with deliver_files(part.scratch, part.building) as folder, ThreadPoolExecutor(part.threads) as pool:
        if part.base and not part.base.is_full:
            (folder / CHANGED).mkdir()
        for group in part.groups:
            item_ix = np.load(group.item_ix(part.scratch), allow_pickle=False)
            write = partial(write_tokens, part.scratch, folder, part.config, item_ix, base=part.base)
            for one in pool.map(write, group.partitions):
                written.add(one, part.max_keys)
            share = len(written.users) / num_partitions
            part.report(on_event, part.total_events + round(part.total_events * share))
    np.save(part.keys, written.keys, allow_pickle=False)
    return replace(written, keys=np.empty(0, dtype=np.uint64))
