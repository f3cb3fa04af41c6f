"""Lists rejected lines with their place and reason, but without their content."""

from typing import Any

import polars as pl

from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError, InputError

FAILED = "failed"
LISTED = " The lines are listed in {}, which `surf2vec rejects` prints."
_DELIVERIES = {"": "taken in", FAILED: "refused", "infer": "the last infer"}
_SCHEMA = {"delivery": pl.String, "source": pl.String, "line": pl.Int64, "reason": pl.String}


def list_rejects(root: Root, most: int) -> dict[str, Any]:
    """Return the rejected lines of the ingested sources, of the newest refused delivery and of the last `infer`.

    `counts` (delivery, source, reason, lines), the largest first; `rejects` (delivery, source, line, reason), the first `most` of
    each source. Raises InputError when `root` is not a surf2vec root, DamageError when a list cannot be read.
    """
    if not root.sources.exists() and not root.rejects.exists():
        raise InputError(f"{root.path} is not a surf2vec root: name one with --root, or make one with `surf2vec run`")
    frames = [pl.DataFrame(schema=_SCHEMA)]
    for name, delivery in _DELIVERIES.items():
        for path in sorted((root.rejects / name).glob("*.parquet")):
            try:
                frame = pl.read_parquet(path, columns=["source", "line", "reason"])
                frames.append(frame.select(pl.lit(delivery).alias("delivery"), pl.all()))
            except (pl.exceptions.PolarsError, OSError) as error:
                reason = str(error).splitlines()[0]
                raise DamageError(f"{path} cannot be read ({reason}): remove it; the logs are as they were") from None
    rejects = pl.concat(frames)
    counts = rejects.group_by("delivery", "source", "reason", maintain_order=True).len("lines")
    return {
        "num_rejected": len(rejects),
        "counts": counts.sort("lines", "source", "reason", descending=[True, False, False]).to_dicts(),
        "rejects": rejects.group_by("delivery", "source", maintain_order=True).head(most).to_dicts(),
    }
