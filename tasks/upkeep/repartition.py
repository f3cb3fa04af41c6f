"""`surf2vec repartition`: splits or joins the micro-partitions of a root that grew (or shrank).

Everything that depends on their number is written anew beside the old files: events, the corpus of the store's generation, its
user vectors. Renaming sources.json is the only commit point. If it is killed before, the root is unchanged; if after, the next
writer of any kind finishes (`surf2vec.tasks.root.run.lock_root`). Releases keep their pinned generations and
corpora, so readers of the champion notice nothing; `surf2vec gc` removes what is left over of them.
"""

import os
import shutil
import time
from contextlib import nullcontext
from glob import escape
from pathlib import Path
from typing import Any

from surf2vec.sql.runner import connect, fetch_rows, stream_rows
from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST, open_building_folders, publish
from surf2vec.tasks.corpus.regroup import Regrouper, Regrouping
from surf2vec.tasks.corpus.window import FORMAT_VERSION, name_corpus
from surf2vec.tasks.events.events_files import write_events
from surf2vec.tasks.ingest.ingest import choose_partitions
from surf2vec.tasks.ingest.sources import Catalog, events_files, find_orphans, read_catalog
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.root.failures import explain_failures
from surf2vec.tasks.root.run import Root, current_generation, open_scratch_folder, settle_store
from surf2vec.trainer.errors import ConfigError, DamageError, ResourceError, SurfError
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.gensim.warm_start import read_warm_start
from surf2vec.trainer.plan.sizes import BYTES
from surf2vec.trainer.store.generation import Generation, has_generation
from surf2vec.trainer.store.manifests import next_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus, whole_window
from surf2vec.trainer.store.upkeep import hold_manifest
from surf2vec.trainer.store.writer import Writer, lock_store, pin_generation, remove_unreferenced
from surf2vec.trainer.system.files import (
    TEMPORARY_SUFFIX,
    describe_file,
    digest_json,
    read_json,
    sync_file,
    sync_folder,
    verify_all,
    verify_once,
)
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.system.units import size
from surf2vec.trainer.training.job import identity

SAMPLE_FACTOR = 256  # users are counted in one in so many micro-partitions
SPILL_FACTOR = 8  # bytes that a sort spills per byte of a compressed file


def repartition(
    root: Root, partitions: int | None, memory_bytes: int, threads: int, on_event: OnEvent = ignore_event
) -> dict[str, Any]:
    """Give the root `partitions` micro-partitions, by default the number that ingest would choose now. Returns a summary.

    Every user keeps vector and optimizer state, bit for bit. The caller holds the lock of writers. Raises ConfigError while a
    training is under way, ResourceError if disk or memory are too small, DamageError if a file does not match its manifest;
    the root is then unchanged.
    """
    started = time.monotonic()
    catalog = read_catalog(root)
    result: dict[str, Any] = {"partitions_before": catalog.partitions}
    with (
        explain_failures(root, "micro-partitions are split or joined", memory_bytes),
        lock_store(root.store) if root.store.exists() else nullcontext(),
    ):
        _tidy(root)
        try:
            with open_scratch_folder(root, "repartition") as folder:
                if partitions is None:
                    result["users"] = _estimate_users(root, catalog, folder, memory_bytes, threads)
                    partitions = choose_partitions(result["users"])
                moving = _find_moving(root, partitions, on_event)
                is_needed = catalog.partitions != partitions or moving is not None
                result |= {"partitions": partitions, "changed": is_needed}
                result["bytes_written"] = _check_room(root, catalog, partitions, memory_bytes, moving)
                num_users = moving[1].num_users if moving else 0
                message = f"{len(catalog.files):,} events files and {num_users:,} vectors go to {partitions:,} micro-partitions"
                if not is_needed:
                    message = f"{root.path} has {partitions:,} micro-partitions already: nothing to do"
                on_event("log", {"message": message})
                if catalog.partitions != partitions:
                    _move_events(root, catalog, partitions, memory_bytes, folder, threads)
                if moving:
                    result |= _move_store(root, *moving, partitions)
                catalog.partitions = partitions
                catalog.write(root)  # the commit point
        finally:
            _tidy(root)
    return result | {"seconds": round(time.monotonic() - started, 3)}


def _estimate_users(root: Root, catalog: Catalog, folder: Path, memory_bytes: int, threads: int) -> int:
    """Returns the estimated number of users in the events, extrapolated from some micro-partitions."""
    assert catalog.partitions is not None
    verify_all(file for entry in catalog.entries.values() for file in events_files(root, entry))
    num_partitions = max(1, catalog.partitions // SAMPLE_FACTOR)
    files = [escape(str(root.path / name)) for name in sorted(catalog.files)]
    with connect(memory_bytes // 2, folder / "spill", threads) as con:
        params = {"files": files, "num_partitions": num_partitions}
        num_users = fetch_rows(con, "intermediate/int_partition_users", params)[0]["num_users"]
    return num_users * catalog.partitions // num_partitions


def _find_moving(root: Root, after: int, on_event: OnEvent) -> tuple[Generation, Corpus] | None:
    """Returns the generation whose vectors move, and its corpus, or None. Raises ConfigError while a training is under way."""
    generation = current_generation(root)
    if has_generation(root.store) and not generation:
        on_event("log", {"message": "the store is of an earlier version and stays as it is: training begins anew"})
    if not generation or generation.num_partitions == after:
        return None
    if generation.manifest["stage"] == "training":
        done = generation.position / (generation.config.epochs * generation.num_partitions)
        raise ConfigError(
            f"{root.store} holds a training at {done:.0%}, whose position counts micro-partitions: finish it by the same "
            "`surf2vec run`, then repartition"
        )
    return generation, open_corpus(root.corpus(whole_window(generation.manifest["window_id"])))


def _check_room(
    root: Root, catalog: Catalog, after: int, memory_bytes: int, moving: tuple[Generation, Corpus] | None
) -> int:
    """Returns the bytes to be written. Raises ResourceError, with the numbers, if disk or memory are too small."""
    num_bytes = spill_bytes = 0
    if catalog.partitions != after:
        sizes = [about["bytes"] for entry in catalog.entries.values() for about in entry["files"].values()]
        num_bytes, spill_bytes = sum(sizes), SPILL_FACTOR * max(sizes)
    if moving:
        generation, corpus = moving
        row_bytes = generation.config.interest_size * BYTES[generation.config.dtype] + 4
        num_bytes += sum(about["bytes"] for about in corpus.manifest["files"].values())
        num_bytes += sum(entry["bytes"] for entry in generation.manifest["users"].values())
        regrouping = Regrouping(generation.num_partitions, after)
        peak_bytes = private_bytes() + regrouping.peak_bytes(corpus, row_bytes)
        if peak_bytes > memory_bytes:
            raise ResourceError(
                f"{after:,} micro-partitions need {size(peak_bytes)} of memory, to hold the largest as it is written, "
                f"but there are {size(memory_bytes)}: raise --host-memory, or choose more micro-partitions"
            )
    free_bytes = shutil.disk_usage(root.path).free
    if num_bytes + spill_bytes > free_bytes:
        raise ResourceError(
            f"events, corpus and vectors written anew need {size(num_bytes)} of disk, and sorting {size(spill_bytes)} more "
            f"meanwhile, but {size(free_bytes)} are free at {root.path}: free space, or run `surf2vec gc`"
        )
    return num_bytes


def _move_events(root: Root, catalog: Catalog, after: int, memory_bytes: int, folder: Path, threads: int) -> None:
    """Rewrite each events file, sorted by the new micro-partitions, and enter the new files into the catalog."""
    with connect(memory_bytes // 2, folder / "spill", threads) as con:
        for entry in catalog.entries.values():
            moved: dict[str, Any] = {}
            for path, about, way_out in events_files(root, entry):
                verify_once(path, about, way_out)
                target = path.with_name(f"{path.name.split('.')[0]}.p{after:05d}.parquet")
                staged = folder / target.name
                params = {"files": [escape(str(path))], "partitions": after}
                write_events(staged, stream_rows(con, "intermediate/int_sorted_events", params))
                sync_file(staged)
                os.replace(staged, target)
                moved[str(target.relative_to(root.path))] = {"rows": about["rows"]} | describe_file(target)
            entry["files"] = moved
    for day in {(root.path / name).parent for name in catalog.files}:
        sync_folder(day)


def _move_store(root: Root, generation: Generation, corpus: Corpus, after: int) -> dict[str, Any]:
    """Rewrite the corpus and the user vectors, and write their manifest as pending. Returns their names."""
    made_from = corpus.manifest.get("made_from", {})
    # A run of the same logs and settings finds the corpus by this name. It must not find one of an earlier version, or one that
    # continued another corpus: its items have other numbers than in a night without a base, or it has users of that corpus.
    if made_from.get("format_version") != FORMAT_VERSION or corpus.manifest["base"] or "retained" in made_from:
        name = digest_json({"repartitioned": corpus.manifest["window_id"], "partitions": after})
        window_id, made_from = name[:16], {}
    else:
        made_from = made_from | {"partitions": after}
        window_id = name_corpus(made_from)
    writer = Writer(root.store, next_generation(root.store), {})
    regrouper = Regrouper(Regrouping(generation.num_partitions, after), corpus, generation, writer)
    if (root.corpus(window_id) / CORPUS_MANIFEST).exists():
        regrouper.move_all(None)
    else:
        with open_building_folders(root, window_id) as (building, _):
            regrouper.move_all(building)
            manifest = regrouper.corpus_manifest() | {"made_from": made_from, "window_id": window_id}
            publish(building, root.corpus(window_id), manifest)
    moved = open_corpus(root.corpus(window_id))
    if moved.manifest["users"] != regrouper.num_users.tolist():
        raise DamageError(f"{moved.folder} does not have the users of {corpus.folder}: remove it and run this again")
    _pin_exported(root, generation)
    writer.sync()
    hold_manifest(root.store, _describe(generation, corpus, moved, writer))
    return {"window_id_before": corpus.manifest["window_id"], "window_id": window_id, "users": corpus.num_users}


def _describe(generation: Generation, before: Corpus, after: Corpus, writer: Writer) -> dict[str, Any]:
    """Returns the manifest of the generation in its new micro-partitions. The training that made it recognises it."""
    config, old = generation.config, generation.manifest
    try:
        start = read_warm_start(Path(config.items_from)).digest if config.items_from else ""
    except SurfError:
        start = ""  # the file is missing or changed: its training cannot be repeated
    if identity(before, config, start) == old["identity"]:
        known_as = identity(after, config, start)
    else:
        known_as = digest_json({"repartitioned": old["identity"], "partitions": after.num_partitions})
    return old | {
        "generation": writer.generation,
        "users": writer.users,
        "partitions": after.num_partitions,
        "position": generation.position * after.num_partitions // generation.num_partitions,  # whole epochs: exact
        "window_id": after.manifest["window_id"],
        "identity": known_as,
    }


def _pin_exported(root: Root, generation: Generation) -> None:
    """Pin the release of this generation if its run was killed before pinning it; otherwise `infer` would not find it."""
    current = (generation.generation, whole_window(generation.manifest["window_id"]))
    for path in sorted(root.path.glob(f"export/[!.]*/{EXPORT_MANIFEST}")):
        export = read_json(path)
        is_pinned = (root.store / "pinned" / f"{path.parent.name}.json").exists()
        if (export["generation"], export["created_from"]["window_id"]) == current and not is_pinned:
            pin_generation(root.store, path.parent.name)


def _tidy(root: Root) -> None:
    """Remove the files that a commit replaced, and those that a killed call wrote without a commit."""
    if current_generation(root):
        settle_store(root)
        remove_unreferenced(root.store)
    for path in (*find_orphans(root, read_catalog(root)), *root.path.glob(f".{root.sources.name}.*{TEMPORARY_SUFFIX}")):
        path.unlink()
