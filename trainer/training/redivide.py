"""A training that goes on in another division than it began with: its number of workers changed, or several train a night that
begins from one table.

Which micro-partitions had their turn in an epoch hangs on the number of workers, so the epoch under way begins anew: some of its
users learn twice, and nobody is left out. Item blocks are divided anew on disk, one after the other.
"""

from typing import Any

from trainer.plan.alone import Plan
from trainer.plan.sharing import Sharing
from trainer.store.generation import Generation
from trainer.store.manifests import next_generation
from trainer.store.writer import Writer
from trainer.training.course import Course
from trainer.training.item_blocks import ItemBlocks
from trainer.training.record import begin_epoch_anew


def sharing_of(manifest: dict[str, Any]) -> Sharing:
    """How many workers committed a generation, and how they shared the items."""
    return Sharing(**manifest["plan"].get("sharing", {}))  # a night's beginning: nobody yet


def is_divided_otherwise(manifest: dict[str, Any], plan: Plan) -> bool:
    """Whether a generation has to be divided anew to go on by this plan."""
    is_same_number = plan.sharing.num_workers == sharing_of(manifest).num_workers or not manifest["position"]
    return not is_same_number or plan.num_blocks != manifest["num_blocks"]


def tell_change(manifest: dict[str, Any], num_workers: int, epochs: int) -> str:
    """What a person reads when another number of workers goes on with a training of so many epochs."""
    ended, share = epochs_done(manifest, epochs)
    told = f", of which {share:.0%} was done, begins anew" if share else " begins"
    return f"workers were {sharing_of(manifest).num_workers} and are {num_workers} now: epoch {ended + 1}{told}"


def epochs_done(manifest: dict[str, Any], epochs: int) -> tuple[int, float]:
    """How many of a training's epochs have ended, and the share of the next one that was trained."""
    if not manifest["position"]:
        return 0, 0.0
    in_epoch = manifest["num_positions"] // epochs
    ended, rest = divmod(manifest["position"], in_epoch)
    return ended, rest / in_epoch


def redivide(generation: Generation, course: Course) -> None:
    """Commit the same vectors for this course, at the beginning of the epoch that was under way.

    Raises DamageError when a file was altered, ResourceError when the disk is full; the last generation is whole then.
    """
    manifest, epochs = generation.manifest, course.config.epochs
    ended, _ = epochs_done(manifest, epochs)
    values = begin_epoch_anew(manifest, ended) | {
        "position": ended * course.num_positions // epochs, "num_positions": course.num_positions,
        "recency": course.recency, "plan": course.plan.to_json(),
    }  # fmt: skip
    commit_in_blocks(generation, course.blocks, values)


def commit_in_blocks(generation: Generation, blocks: ItemBlocks, values: dict[str, Any]) -> None:
    """Commit the same vectors with the item table in these blocks; values: what the manifest says beside.

    Raises DamageError when a file was altered, ResourceError when the disk is full; the last generation is whole then.
    """
    folder, manifest = generation.folder, generation.manifest
    writer = Writer(folder, next_generation(folder), manifest["users"], generation.item_entries())
    if blocks.num_blocks == manifest["num_blocks"]:
        writer.commit(values)
        return
    for block in range(blocks.num_blocks):
        writer.write_items(block, generation.gather_items(blocks.rows(block), blocks.num_outputs(block)))
    writer.commit(values | {"num_blocks": blocks.num_blocks, "resident_block": 0})
