"""The distinct URLs of a source as items, all at once: those that are simple, which most are, in one compiled pass over their
bytes (`tasks/compiled_pages.py`); `tasks/urls.py` does the others one by one, and would make the same of all.
"""

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.compiled_pages import ALL_PARTS, BLOCK, find_extensions, write_items
from tasks.numbering import lay_open, read_only
from tasks.urls import ASSET_PATTERN, UrlRules, canonical_item


def canonical_items(page_keys: pa.Array, rules: UrlRules) -> tuple[pa.Array, NDArray[np.bool_]]:
    """What `canonical_item` makes of each of n strings or large strings, as n large strings, null of null; and which of them the
    compiled pass made, bool[n].
    """
    depth = {"page": ALL_PARTS, "prefix": rules.prefix_depth, "host": 0}[rules.granularity]
    data, bounds = _find_bytes(page_keys)
    items = np.empty(bounds[-1] - bounds[0] + len(page_keys), dtype=np.uint8)
    ends = np.empty(len(bounds), dtype=np.int64)
    write_items(data, bounds, depth, items, ends)
    is_there = page_keys.is_valid().to_numpy(zero_copy_only=False)
    is_simple = is_there & (np.diff(ends) > 0)
    buffers = [pa.array(is_simple).buffers()[1], pa.py_buffer(ends), pa.py_buffer(items)]
    simple = pa.Array.from_buffers(pa.large_string(), len(page_keys), buffers)
    is_other = is_there & ~is_simple
    if not is_other.any():
        return simple, is_simple
    made = [canonical_item(key, rules) for key in page_keys.filter(pa.array(is_other)).to_pylist()]
    return pc.replace_with_mask(simple, pa.array(is_other), pa.array(made, pa.large_string())), is_simple


def find_pages(page_keys: pa.Array, rules: UrlRules, drops_assets: bool) -> tuple[pa.Array, pa.Array]:
    """The items and the verdicts of n distinct page keys, n large strings each; the verdict says why a key is no page, and is
    null where it is one.
    """
    items, is_simple = canonical_items(page_keys, rules)
    is_doubtful = ~is_simple  # what is simple is a page, if it is no asset
    is_asset = pl.lit(False)
    if drops_assets:
        is_doubtful |= _may_be_assets(page_keys)
        is_asset = pl.col("key").str.extract("^([^?#]*)").str.contains(ASSET_PATTERN)
    verdict = (
        pl.when(pl.col("key").is_null() | (pl.col("key").str.strip_chars(" ") == ""))
        .then(pl.lit("no URL"))
        .when(is_asset)
        .then(pl.lit("static asset"))
        .when(pl.col("item").is_null())
        .then(pl.lit("not a page"))
    )
    places = pa.array(np.flatnonzero(is_doubtful))
    doubtful = pl.DataFrame({"key": page_keys.take(places), "item": items.take(places)})
    verdicts = pl.repeat(None, len(items), dtype=pl.String, eager=True)
    verdicts = verdicts.scatter(places.to_numpy(), doubtful.select(verdict).to_series())
    return items, verdicts.to_arrow(compat_level=pl.CompatLevel.oldest())


def _may_be_assets(page_keys: pa.Array) -> NDArray[np.bool_]:
    """Which of them the pattern is to look at: it takes longer than all the rest."""
    has_extension = np.empty(len(page_keys), dtype=np.bool_)
    find_extensions(*_find_bytes(page_keys), has_extension)
    return has_extension


def _find_bytes(strings: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`lay_open`, but of BLOCK bytes or more."""
    data, bounds = lay_open(strings)
    return (read_only(np.pad(data, (0, BLOCK))) if len(data) < BLOCK else data), bounds
