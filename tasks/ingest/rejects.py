"""Lists rejected lines with their place and reason, but without their content."""

from typing import Any

import polars as pl

from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError, InputError

FAILED = "failed"
LISTED = " The lines are listed in {}, which `surf2vec rejects` prints."
_DELIVERIES = {"": "taken in", FAILED: "refused", "infer": "the last infer"}


def list_rejects(root: Root, most: int) -> dict[str, Any]:
    """Return the rejected lines of the ingested sources, of the newest refused delivery and of the last `infer`.

    `counts` (delivery, source, reason, lines), the largest first; `rejects` (delivery, source, line, reason), the first `most` of
    each source. Raises InputError when `root` is not a surf2vec root, DamageError when a list cannot be read.
    """
    if not root.sources.exists() and not root.rejects.exists():
        raise InputError(f"{root.path} is not a surf2vec root: name one with --root, or make one with `surf2vec run`")
    frames = []
    for name, delivery in _DELIVERIES.items():
        for path in sorted((root.rejects / name).glob("*.parquet")):
            try:
                frame = pl.read_parquet(path, columns=["source", "line", "reason"])
            except (pl.exceptions.PolarsError, OSError) as error:
                reason = str(error).splitlines()[0]
                raise DamageError(f"{path} cannot be read ({reason}): remove it; the logs are as they were") from None
            frames.append(frame.select(pl.lit(delivery).alias("delivery"), "source", "line", "reason"))
    if not frames:
        return {"num_rejected": 0, "counts": [], "rejects": []}
    counts = [frame.group_by("delivery", "source", "reason").len("lines") for frame in frames]
    shown = pl.concat(frame.head(most) for frame in frames)
    return {
        "num_rejected": sum(len(frame) for frame in frames),
        "counts": pl.concat(counts).sort("lines", "source", "reason", descending=[True, False, False]).to_dicts(),
        "rejects": shown.to_dicts(),
    }
