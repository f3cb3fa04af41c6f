"""Changes the division of a resumed training, and joins the blocks of a sharded training that has ended.

The order of micro-partitions in an epoch depends on the number of workers. If it changed, the interrupted epoch restarts: some
users are trained twice in it, and none is skipped. Item blocks are rewritten on disk, one after the other.
"""

import gc
from dataclasses import asdict
from typing import Any

from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.plan.sharing import Sharing
from surf2vec.trainer.plan.sizes import training_sizes
from surf2vec.trainer.store.generation import Generation, next_generation, open_generation
from surf2vec.trainer.store.tokens import Corpus
from surf2vec.trainer.store.writer import Writer
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.system.units import size
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.job import Job, effective_recency
from surf2vec.trainer.training.record import restart_epoch
from surf2vec.trainer.training.schedule import Schedule

KEPT_BYTES = 64 * 10**6
"""The part of the budget kept free when blocks are joined, for buffers and the manifest."""


def sharing_of(manifest: dict[str, Any]) -> Sharing:
    """Return how the workers of a generation shared the items."""
    return Sharing(**manifest["plan"].get("sharing", {}))  # a night's first generation has no workers


def epochs_done(manifest: dict[str, Any], epochs: int) -> tuple[int, float]:
    """Return how many of a training's epochs have ended, and the trained share of the next one."""
    if not manifest["position"]:
        return 0, 0.0
    in_epoch = manifest["num_positions"] // epochs
    ended, rest = divmod(manifest["position"], in_epoch)
    return ended, rest / in_epoch


def redivide(generation: Generation, schedule: Schedule) -> None:
    """Commit the same vectors for this schedule, at the start of the interrupted epoch.

    Raises DamageError when a file was altered, ResourceError when the disk is full; the last generation is then intact.
    """
    manifest, epochs = generation.manifest, schedule.config.epochs
    ended, _ = epochs_done(manifest, epochs)
    values = restart_epoch(manifest, ended) | {
        "position": ended * schedule.num_positions // epochs,
        "num_positions": schedule.num_positions,
        "recency": schedule.recency,
        "plan": asdict(schedule.plan),
    }
    _commit_in_blocks(generation, schedule.blocks, values)


def join_item_blocks(job: Job, corpus: Corpus, on_event: OnEvent) -> None:
    """After a sharded training has ended, commit the items as one table, from which a night continues, or log why not.

    Otherwise do nothing. Raises DamageError when a file was altered, ResourceError when the disk is full.
    """
    generation = open_generation(job.store_dir)
    manifest = generation.manifest
    if not sharing_of(manifest).is_sharded or generation.num_blocks == 1 or manifest["stage"] != "trained":
        return
    gc.collect()  # blocks and their readers refer to each other
    table = ItemBlocks(generation.config, corpus.count_training_tokens(), 1)
    table_bytes = training_sizes(generation.config, corpus.num_items, table.tree).item_table_bytes
    needed = private_bytes() + table_bytes + KEPT_BYTES
    if needed > job.host_memory_bytes:
        message = (
            f"the items stay in {generation.num_blocks} blocks: in one they need {size(needed)}, and the budget is "
            f"{size(job.host_memory_bytes)}; the next night trains everything"
        )
    else:
        _commit_in_blocks(generation, table, manifest | {"recency": effective_recency(generation.config, corpus)})
        message = f"the {generation.num_blocks} item blocks are one table again, {size(table_bytes)}"
    log(on_event, message)


def _commit_in_blocks(generation: Generation, blocks: ItemBlocks, values: dict[str, Any]) -> None:
    """Commit the same vectors with the item table in these blocks; values: for the manifest."""
    folder, manifest = generation.folder, generation.manifest
    writer = Writer(folder, next_generation(folder), manifest)
    if blocks.num_blocks != manifest["num_blocks"]:
        for block in range(blocks.num_blocks):
            writer.write("interest", block, generation.gather_items(blocks.rows(block), blocks.num_outputs(block)))
        values |= {"num_blocks": blocks.num_blocks, "resident_block": 0}
    writer.commit(values)
