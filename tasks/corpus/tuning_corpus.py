"""Writes a corpus of what training sees of a corpus, to choose settings by."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from surf2vec.tasks.corpus.cleaning import find_held_out, find_key_max
from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST, write_partition
from surf2vec.trainer.store.tokens import (
    VOCABULARY,
    Corpus,
    Tokens,
    gather_spans,
    held_out_keys,
    open_corpus,
    to_offsets,
)
from surf2vec.trainer.system.files import write_json

PARTITION_USERS = 50_000


def write_tuning_corpus(corpus: Corpus, max_asked: int, folder: Path) -> Corpus:
    """Write a corpus of all users without what `corpus` holds out. Fewer users per item would choose other settings.

    The newest new item of at most `max_asked` users is held out again, to choose by it (`Histories.is_choosing`); nobody is
    evaluated. `folder` is new. Its vocabulary is a link. Raises DamageError when a file of the corpus was altered.
    """
    folder.mkdir()
    (folder / VOCABULARY).symlink_to(corpus.path(VOCABULARY).absolute())
    num_users, num_tokens, keys = [], [], []
    files = {VOCABULARY: corpus.manifest["files"][VOCABULARY]}
    num_partitions = -(-corpus.num_users // PARTITION_USERS)
    for partition, group in enumerate(np.array_split(np.arange(corpus.num_partitions), num_partitions)):
        users, tokens = _read_seen(corpus, group.tolist())
        held_out = find_held_out(tokens)
        files |= write_partition(
            folder, partition, users, offsets=tokens.offsets, tokens=tokens.tokens, held_out=held_out
        )
        num_users.append(len(users))
        num_tokens.append(len(tokens.tokens))
        keys.append(held_out_keys(users["hash"].to_numpy()[held_out >= 0]))
    key_max, num_choosing = find_key_max(np.sort(np.concatenate(keys)), max_asked)
    manifest = corpus.manifest | {
        "window_id": f"{corpus.manifest['window_id']}/tune", "partitions": num_partitions, "users": num_users,
        "holes": [0] * num_partitions, "tokens": num_tokens,
        "num_users": sum(num_users), "num_tokens": sum(num_tokens), "num_held_out": num_choosing,
        "num_choosing": num_choosing, "held_out_key_max": key_max, "evaluated_key_max": -1, "files": files,
    }  # fmt: skip
    write_json(folder / CORPUS_MANIFEST, manifest)
    return open_corpus(folder)


def _read_seen(corpus: Corpus, partitions: list[int]) -> tuple[pa.Table, Tokens]:
    """Return the users of these micro-partitions who have tokens that training sees, and these tokens."""
    users, lengths, tokens = [], [], []
    for partition in partitions:
        histories = corpus.read(partition)
        length = histories.ends - histories.starts  # 0 in a hole
        rows = np.flatnonzero(length > 0)
        users.append(corpus.read_users(partition).take(pa.array(rows)))
        lengths.append(length[rows])
        tokens.append(gather_spans(histories.tokens, histories.starts[rows], length[rows])[1])
    return pa.concat_tables(users), Tokens(to_offsets(np.concatenate(lengths)), np.concatenate(tokens))
