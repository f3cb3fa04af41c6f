"""Turns log files into events: cleans, sorts and merges the new files of a delivery, all or none of them.

All sources of a call are staged before the first is committed. A commit moves the files to events/, then replaces sources.json,
which alone lists the valid files, then deletes files that are no longer listed. The next call removes what a killed call left.
A file that a replaced source shares with others is written again without its events.
"""

import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.events.events_files import filter_events
from surf2vec.tasks.ingest.batches import Log, make_batches
from surf2vec.tasks.ingest.delimited import NOT_UTF8
from surf2vec.tasks.ingest.deliveries import Delivery, describe_table, find_sources, plan_delivery, rules_of
from surf2vec.tasks.ingest.formats import EmptyLogError
from surf2vec.tasks.ingest.rejects import FAILED, LISTED
from surf2vec.tasks.ingest.remote_logs import RemoteLogs
from surf2vec.tasks.ingest.sources import (
    Catalog,
    day_of,
    events_files,
    find_orphans,
    number_source,
    read_catalog,
    sum_counts,
)
from surf2vec.tasks.ingest.sql_logs import Days
from surf2vec.tasks.ingest.stage_logs import stage_logs
from surf2vec.tasks.ingest.staging import MOST_FREQUENT, MOST_HINTS, BytesDone, Staged, Staging
from surf2vec.tasks.ingest.times import explain_bad_times
from surf2vec.tasks.ingest.user_key import read_user_key
from surf2vec.tasks.root.failures import explain_failures
from surf2vec.tasks.root.run import Root, open_scratch_folder
from surf2vec.tasks.root.wording import format_counted
from surf2vec.tasks.users.pseudonyms import fingerprint
from surf2vec.tasks.users.tombstones import FORGOTTEN, read_tombstones
from surf2vec.trainer.errors import ConfigError, InputError, RejectedError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.system.fan_out import HERE, FanOut
from surf2vec.trainer.system.files import TEMPORARY_SUFFIX, describe_file, make_folder, sync_paths, verify_once

PARTITION_USERS = 50_000
MIN_PARTITIONS, MAX_PARTITIONS = 8, 65_536
BYTES_PER_USER = {"csv": 2500, "tsv": 2500, "jsonl": 3500, "access": 6000, "pattern": 6000, "w3c": 6000, "parquet": 500}
"""Of a log without compression (inside Parquet it is counted): 25 events, each about as long as in the sample logs."""
COMPRESSION_FACTOR = 5  # of gzip and zstd, on such logs


def ingest(
    root: Root,
    patterns: Sequence[str],
    config: IngestConfig,
    partitions: int | None,
    memory_bytes: int,
    threads: int,
    on_event: OnEvent,
    fan_out: FanOut = HERE,
    before_commit: Callable[[], None] = lambda: None,
    days: Days | None = None,
    refused: Path | None = None,
) -> dict[str, Any]:
    """Merge the files of the globs into the root's events; returns the record of step "ingest". The caller holds the writer lock.

    The returned numbers cover all delivered sources, or all sources without globs: repeating the call returns the same.
    `threads` 0 uses all cores. `before_commit` is called once all is checked. `days` are those of queries. `refused`: where the
    lines of refused logs are listed, if the logs are not to be taken in. Raises a SurfError, and then changes nothing.
    """
    with explain_failures(root, "logs are ingested", memory_bytes):
        catalog, key = read_catalog(root), read_user_key(root, config)
        if partitions and catalog.partitions and partitions != catalog.partitions:
            raise ConfigError(
                f"store.partitions is {partitions}, but {root.path} has {catalog.partitions} micro-partitions: leave the "
                "setting out, or change the root with `surf2vec repartition`"
            )
        read_tombstones(root)  # raises DamageError before any log is read
        remove_leftovers(root, catalog)
        with open_scratch_folder(root, "ingest") as folder:
            remote = RemoteLogs(folder / "downloads", config, days, memory_bytes, threads)
            delivery, logs = _find_logs(root, catalog, patterns, remote, on_event)
            staged: list[Staged] = []
            if logs:
                catalog.user_key_fingerprint = fingerprint(key) if key else None
                catalog.rules = rules_of(config)
                wanted = catalog.partitions = catalog.partitions or partitions or _choose_partitions(logs, on_event)
                staging = Staging(
                    root, folder, remote.folder, config, catalog.user_key_fingerprint, memory_bytes, threads,
                    make_batches(logs), wanted,
                )  # fmt: skip
                progress = BytesDone(staging.num_bytes, on_event)
                staged = [_log_staged(batch, on_event) for batch in stage_logs(staging, fan_out, progress)]
                _check_staged(root, staged, config, refused, on_event)
            elif not (delivery.stamps or catalog.entries):
                raise InputError(f"nothing was ingested into {root.path}: give logs with --logs")
            before_commit()
            _commit(root, folder, catalog, delivery, staged)
    return _summarise(catalog, delivery)


def _find_logs(
    root: Root, catalog: Catalog, patterns: Sequence[str], remote: RemoteLogs, on_event: OnEvent
) -> tuple[Delivery, list[Log]]:
    """Return the delivery, and its logs to read. Logs without lines, which are usual in complete deliveries, are left out.

    Raises InputError when all logs are empty, or one had lines before.
    """
    sources = find_sources(patterns, catalog.stamps, remote, on_event)
    delivery = plan_delivery(root, catalog, sources, remote.config)
    if delivery.changes:
        log(on_event, f"all logs are read again: {'; '.join(delivery.changes)}")
    logs, empty = [], {}
    for source in delivery.to_ingest:
        try:
            logs.append((remote.log_of(source), source))
        except EmptyLogError as error:
            if any(name in catalog.names for name in delivery.stamps if delivery.names[name] == source.sha256):
                raise InputError(f"{error}; when delivered before, it had lines, which stay as they are") from None
            empty[source.sha256] = error
            log(on_event, f"{error}; it is left out until it has lines")
    if empty:
        sources = [source for source in sources if source.sha256 not in empty]
        if not sources:
            raise InputError(str(next(iter(empty.values()))))
        delivery = plan_delivery(root, catalog, sources, remote.config)
    if warning := describe_table(logs, remote):
        log(on_event, warning)
    return delivery, logs


def estimate_users(logs: Iterable[Log]) -> int:
    """Return about how many users these logs have, by their bytes alone: right within a factor of two on usual logs."""
    users = (
        source.bytes * (1 if log.compression == "none" else COMPRESSION_FACTOR) / BYTES_PER_USER[log.format]
        for log, source in logs
    )
    return round(sum(users))


def _choose_partitions(logs: list[Log], on_event: OnEvent) -> int:
    chosen = choose_partitions(estimate_users(logs))
    log(on_event, f"{chosen} micro-partitions, judging by the size of the logs")
    return chosen


def choose_partitions(num_users: int) -> int:
    """Return the number of micro-partitions: a power of two, with about PARTITION_USERS users in each."""
    wanted = 2 ** round(math.log2(max(1.0, num_users / PARTITION_USERS)))
    return min(max(wanted, MIN_PARTITIONS), MAX_PARTITIONS)


def remove_leftovers(root: Root, catalog: Catalog) -> None:
    """Remove temporary files of sources.json from killed calls, and files in events/ and rejects/ that it does not list."""
    rejects = {entry["sha256"][:16] for entry in catalog.entries.values() if entry["rejected"]}
    orphans = [path for path in root.rejects.glob("*.parquet") if path.stem not in rejects]
    orphans += root.path.glob(f".{root.sources.name}.*{TEMPORARY_SUFFIX}")
    for path in find_orphans(root, catalog) + orphans:
        path.unlink()
    for folder in root.events.glob("day=*"):
        if not any(folder.iterdir()):
            folder.rmdir()


def _log_staged(staged: Staged, on_event: OnEvent) -> Staged:
    """Log what became of the lines of logs that were staged together; returns them."""
    entry, num_others = staged.entries[0], len(staged.entries) - 1
    name = os.path.basename(min(source.name for source in staged.sources))
    name += f" and {num_others:,} more like it" if num_others else ""
    left_out = _list_counts(*(entry["left_out"] for entry in staged.entries))
    lines, events = (sum(entry[number] for entry in staged.entries) for number in ("lines", "events"))
    taken = f"{entry['format']}, {entry['fields']}, time: {entry['time']}; {lines:,} lines, {events:,} events"
    log(on_event, f"{name}: {taken}{f'; left out: {left_out}' if left_out else ''}")
    return staged


def _log_frequent_users(staged: list[Staged], on_event: OnEvent) -> None:
    """Name the users with more than a tenth of the events of logs, once for all logs."""
    counts, names = Counter[str](), list[str]()
    for batch in staged:
        counts.update(dict(batch.frequent_users))
        names += [source.name for source in batch.sources if batch.frequent_users]
    if counts:
        name = os.path.basename(min(names))
        name += f" and {format_counted(len(names) - 1, 'other log')}" if len(names) > 1 else ""
        users = ", ".join(f"{user} ({number:,})" for user, number in counts.most_common(MOST_FREQUENT))
        message = f"{name}: more than a tenth of the events each are of {users}: is a user one person there?"
        on_event("private", {"message": message})


def _list_counts(*counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {reason}" for reason, number in sum_counts(counts).items())


def _check_staged(
    root: Root, staged: list[Staged], config: IngestConfig, refused: Path | None, on_event: OnEvent
) -> None:
    """Log the frequent users, and how many lines were rejected. Raises RejectedError when a source is unusable, or too many lines
    are; then keeps their rejects in `refused`, by default in rejects/failed/.
    """
    _log_frequent_users(staged, on_event)
    sources = [one for batch in staged for one in zip(batch.sources, batch.entries, strict=True)]
    num_lines = sum(entry["lines"] for _, entry in sources)
    num_rejected = sum(sum(entry["rejected"].values()) for _, entry in sources)
    reasons = _list_counts(*(entry["rejected"] for _, entry in sources))
    bad_times = next((batch.bad_times for batch in staged if batch.bad_times), ())
    times = f"; {explain_bad_times(bad_times, config.time_format)}" if bad_times else ""
    if NOT_UTF8 in reasons:
        times += "; a log in another encoding is converted with, for instance, iconv -f WINDOWS-1252 -t UTF-8"
    if num_rejected:
        counts = f"{num_rejected:,} of {num_lines:,} lines rejected ({reasons})"
        once = "once they are taken in, " if refused is None else ""
        log(on_event, f"{counts}; {once}`surf2vec rejects` prints them{times}")
    unusable = [(source, entry) for source, entry in sources if not entry["events"] and entry["rejected"]]
    if unusable:
        source, entry = unusable[0]
        message = (
            f"{source.name} has {entry['lines']:,} lines and none is usable "
            f"({_list_counts(entry['left_out'] | entry['rejected'])})"
        )
    elif not any(entry["events"] or FORGOTTEN in entry["left_out"] for _, entry in sources):
        reasons = _list_counts(*(entry["left_out"] for _, entry in sources)) or "no lines"
        raise RejectedError(
            f"nothing is usable in {len(sources):,} new logs with {num_lines:,} lines ({reasons}): give other logs; "
            "what was there before is untouched"
        )
    elif num_rejected > config.max_reject_ratio * num_lines:
        worst, _ = max(sources, key=lambda one: sum(one[1]["rejected"].values()))
        message = (
            f"{num_rejected:,} of {num_lines:,} new lines ({num_rejected / num_lines:.2%}) are unusable, more than "
            f"ingest.max_reject_ratio allows ({config.max_reject_ratio:.2%}): {reasons}; most in {worst.name}"
        )
    else:
        return
    folder = refused or root.rejects / FAILED
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for batch in staged:
        for path in batch.rejects.values():
            os.replace(path, folder / path.name)
    raise RejectedError(
        f"{message}{times}.{LISTED.format(folder)} Fix the logs or the settings, or raise ingest.max_reject_ratio; what was "
        "there before is untouched"
    )


def _commit(root: Root, folder: Path, catalog: Catalog, delivery: Delivery, staged: list[Staged]) -> None:
    """Add the staged sources to the root: move the files, then replace sources.json, then remove the old files.

    All files are synced together before the first is moved, as a log of many days has many files.
    """
    in_use, targets = set(catalog.files), dict[Path, Path]()
    for batch in staged:
        names = {name: free_name(name, in_use) for name in batch.files}
        targets |= {path: root.path / names[name] for name, path in batch.files.items()}
        targets |= {path: root.rejects / path.name for path in batch.rejects.values()}
        catalog.files |= {names[name]: about for name, about in batch.about.items()}
        for source, entry in zip(batch.sources, batch.entries, strict=True):
            before = catalog.entries.get(source.sha256, {"name": source.name, "copies": []})
            catalog.entries[source.sha256] = before | entry | {"files": [names[name] for name in entry["files"]]}
    catalog.rename(delivery.names, delivery.stamps)
    targets |= _drop_events(root, folder, catalog)
    sync_paths(targets)
    make_folder(root.events)
    if any(batch.rejects for batch in staged):
        make_folder(root.rejects)
    folders = {root.events, *(target.parent for target in targets.values())}
    for path, target in targets.items():
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)
    sync_paths(folders)
    catalog.write(root)
    if staged:
        remove_leftovers(root, catalog)
        shutil.rmtree(root.rejects / FAILED, ignore_errors=True)


def _drop_events(root: Root, folder: Path, catalog: Catalog) -> dict[Path, Path]:
    """Write the files that have events of sources which no longer name them again, without these events, and let the catalog
    name the new files. Returns new file → its place. Raises DamageError if an old one was altered.
    """
    targets = {}
    sharers = catalog.sharers
    for path, about, way_out in list(events_files(root, catalog)):
        name = str(path.relative_to(root.path))
        num_rows = sum(entry["days"][day_of(name)] for entry in sharers[name])
        if num_rows == about["rows"]:
            continue
        staying = pa.array([number_source(entry["sha256"]) for entry in sharers[name]], pa.uint64())
        new_name = free_name(name, catalog.files)
        new = folder / "kept" / new_name
        new.parent.mkdir(parents=True, exist_ok=True)
        filter_events(verify_once(path, about, way_out), new, "source", partial(pc.is_in, value_set=staying))
        catalog.files[new_name] = {"rows": num_rows} | describe_file(new)
        for entry in sharers[name]:
            entry["files"][entry["files"].index(name)] = new_name
        targets[new] = root.path / new_name
    return targets


def free_name(name: str, in_use: Collection[str]) -> str:
    """Return `name`, numbered if sources.json still lists it: the old file must stay until the commit."""
    path = Path(name)
    number = 1
    while name in in_use:
        number += 1
        name = str(path.with_name(f"{path.stem}.{number}{path.suffix}"))
    return name


def _summarise(catalog: Catalog, delivery: Delivery) -> dict[str, Any]:
    """Return the record of step "ingest": the counts of the delivered sources."""
    names = catalog.names
    digests = {names[name] for name in delivery.stamps} or set(catalog.entries)
    entries = [catalog.entries[digest] for digest in sorted(digests)]
    rejected = sum_counts(entry["rejected"] for entry in entries)
    hints = [hint for entry in entries for hint in entry["many_queries"]]
    hints.sort(key=lambda hint: (-hint["num_queries"], hint["page"]))
    first = {hint["page"]: hint for hint in reversed(hints)}  # of each page, the hint with the most queries
    return {
        "sources_new": delivery.num_new,
        "sources_replaced": delivery.num_replaced,
        "sources_known": delivery.num_known,
        "lines": sum(entry["lines"] for entry in entries),
        "events": sum(entry["events"] for entry in entries),
        "left_out": sum_counts(entry["left_out"] for entry in entries),
        "rejected": rejected,
        "num_rejected": sum(rejected.values()),
        "many_queries": [hint for hint in hints if hint is first[hint["page"]]][:MOST_HINTS],
        "formats": dict(sorted(Counter(entry["format"] for entry in entries).items())),
        "times": dict(sorted(Counter(entry["time"] for entry in entries).items())),
    }
