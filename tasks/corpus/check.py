"""Finds contradictions inside a corpus whose files are all unaltered, for `surf2vec doctor`."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from surf2vec.trainer.store.tokens import Corpus, gather_spans


def find_misfits(corpus: Corpus, changed: Corpus | None = None) -> Iterator[str]:
    """Yield a line for each contradiction in a corpus, in that of its changed rows, or between both."""
    for partition in range(corpus.num_partitions):
        place = f"micro-partition {partition}"
        yield from (f"{place}: {text}" for text in _examine(corpus, partition))
        if changed:
            yield from (f"{place} of the changed rows: {text}" for text in _examine(changed, partition))
            if not _is_part_of(corpus, changed, partition):
                yield f"{place}: the changed rows are not those of the corpus"


def _examine(corpus: Corpus, partition: int) -> Iterator[str]:
    histories, ids = corpus.read(partition), corpus.read_ids(partition)
    tokens, lengths = np.asarray(histories.tokens), np.diff(histories.offsets)
    is_hole = ids.is_null().to_numpy()
    # A corpus that continues another, keeps users of it, or was restored has users without tokens, in another order.
    is_continued = bool(corpus.manifest.get("base")) or corpus.manifest.get("without_tokens", False)
    if (lengths < 0).any():
        yield "offsets that fall"
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < corpus.num_items:
        yield "tokens outside of the vocabulary"
    if (histories.hashes[is_hole] != 0).any() or (lengths[is_hole] != 0).any():
        yield "a hole, where a user was who left, with a hash or tokens"
    known = ids.drop_null()  # Arrow compares bytes
    is_sorted = pc.all(pc.less(known[:-1], known[1:]), min_count=0).as_py()
    if not (is_sorted or (is_continued and pc.count_distinct(known).as_py() == len(known))):
        yield "users out of order, or twice"
    if (histories.hashes[~is_hole] % np.uint64(corpus.num_partitions) != partition).any():
        yield "users of another"
    found = len(ids), int(is_hole.sum()), len(tokens)
    if found != (corpus.users[partition], corpus.holes[partition], corpus.tokens[partition]):
        yield "not as many users and tokens as the manifest says"


def _is_part_of(corpus: Corpus, changed: Corpus, partition: int) -> bool:
    """Return whether the changed rows of a micro-partition are ordered rows of the corpus with equal users and tokens."""
    rows = changed.rows(partition)
    histories, part = corpus.read(partition), changed.read(partition)
    if rows is None or len(rows) != part.num_users or (np.diff(rows.astype(np.int64)) <= 0).any():
        return False
    if len(rows) and rows[-1] >= histories.num_users:
        return False
    ids = corpus.read_ids(partition).take(pa.array(rows))
    lengths = np.diff(histories.offsets)[rows]
    if not ids.equals(changed.read_ids(partition)) or (lengths != np.diff(part.offsets)).any():
        return False
    return bool((gather_spans(histories.tokens, histories.starts[rows], lengths)[1] == part.tokens).all())
