"""A generation without some rows: the users' files that have some are written anew, without gaps, the others stay."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.errors import DamageError
from trainer.model.rows import Rows
from trainer.store.generation import Generation
from trainer.store.layout import image_of_rows, read_rows
from trainer.store.manifests import write_manifest
from trainer.store.writer import Writer


def erase_rows(
    generation: Generation, going: dict[int, NDArray[np.int64]], num_users: list[int], number: int
) -> dict[str, Any]:
    """The entries of users' files for a generation `number` that has not these rows; files are written, nothing counts yet.

    going: micro-partition → rows, ascending; num_users: rows of each micro-partition as they are. What a delta changed is in
    the new file. All other rows stay the same bits. One micro-partition is in memory at a time. Raises DamageError when a
    file has another number of rows, or was altered.
    """
    writer = Writer(generation.folder, number, generation.manifest["users"])
    for partition, gone in going.items():
        rows = read_rows(generation.folder, generation.manifest["users"][str(partition)])
        if len(rows.squares) != num_users[partition]:
            raise DamageError(
                f"micro-partition {partition} of generation {generation.generation} has {len(rows.squares):,} rows where its "
                f"corpus has {num_users[partition]:,} users: they do not belong together; nothing was changed"
            )
        kept = np.setdiff1d(np.arange(len(rows.squares)), gone)
        if len(kept):
            writer.write_users(partition, image_of_rows(Rows(rows.vectors[kept], rows.squares[kept])))
        else:  # a training writes no file for a micro-partition without users
            del writer.users[str(partition)]
    writer.sync()
    return writer.users


def write_generation(generation: Generation, name: str, values: dict[str, Any]) -> None:
    """Write the manifest of a generation with other values as the file `name` of its store; the caller removes what is not
    named any more.
    """
    write_manifest(generation.folder, name, generation.manifest | values)
