"""What is left of a sharded training: its item blocks, which become one table again where one worker has room for it.

A night goes on from a table in one piece, and who infers or ranks reads it once instead of block after block. Users are then
inferred in the order of time again, so their recency is that of one block.
"""

import gc

from trainer.events import OnEvent, tell
from trainer.plan.sizes import training_sizes
from trainer.store.generation import open_generation
from trainer.store.tokens import Corpus
from trainer.system.memory import private_bytes
from trainer.system.units import size
from trainer.training.item_blocks import ItemBlocks
from trainer.training.job import Job, effective_recency
from trainer.training.redivide import commit_in_blocks, sharing_of

KEPT_BYTES = 64 * 10**6
"""What stays free of the budget: for buffers, and the manifest."""


def join_item_blocks(job: Job, corpus: Corpus, on_event: OnEvent) -> None:
    """After a sharded training that ended make a generation with the items in one block, or say why not; else do nothing.

    Raises DamageError when a file was altered, ResourceError when the disk is full; the last generation is whole then.
    """
    generation = open_generation(job.store_dir)
    manifest = generation.manifest
    if not sharing_of(manifest).is_sharded or generation.num_blocks == 1 or manifest["stage"] != "trained":
        return
    gc.collect()  # blocks and those who read them refer to each other
    table = ItemBlocks(generation.config, corpus.count_training_tokens(), 1)
    table_bytes = training_sizes(generation.config, corpus.num_items, table.tree).item_table_bytes
    needed = private_bytes() + table_bytes + KEPT_BYTES
    if needed > job.host_memory_bytes:
        told = (
            f"the items stay in {generation.num_blocks} blocks: in one they need {size(needed)}, and the budget is "
            f"{size(job.host_memory_bytes)}; the next night trains everything anew"
        )
        tell(on_event, told)
        return
    commit_in_blocks(generation, table, manifest | {"recency": effective_recency(generation.config, corpus)})
    message = f"the {generation.num_blocks} item blocks are one table again, {size(table_bytes)}"
    tell(on_event, message)
