"""Writes a corpus of some users of a corpus and of what training sees of them, to choose settings by."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from surf2vec.tasks.corpus.cleaning import Tokens, find_held_out, find_key_max
from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST, UserHistories, join_histories, write_partition
from surf2vec.trainer.store.tokens import VOCABULARY, Corpus, gather_spans, held_out_keys, open_corpus
from surf2vec.trainer.system.files import write_json

PARTITION_USERS = 50_000


def write_user_sample(corpus: Corpus, one_in: int, max_asked: int, folder: Path) -> Corpus:
    """Write a corpus of one user in `one_in`, drawn by the hash, without what `corpus` holds out.

    The newest new item of at most `max_asked` users is held out again, to choose by it (`Histories.is_choosing`); nobody is
    evaluated. `folder` is new. Its vocabulary is a link. Raises DamageError when a file of the corpus was altered.
    """
    folder.mkdir()
    (folder / VOCABULARY).symlink_to(corpus.path(VOCABULARY).absolute())
    users, tokens, keys = [], [], []
    files = {VOCABULARY: corpus.manifest["files"][VOCABULARY]}
    num_partitions = -(-corpus.num_users // (one_in * PARTITION_USERS))
    for partition, group in enumerate(np.array_split(np.arange(corpus.num_partitions), num_partitions)):
        part = join_histories([sample_part(corpus, one, one_in) for one in group.tolist()])
        files |= write_partition(
            folder, partition, part.users, offsets=part.offsets, tokens=part.tokens, held_out=part.held_out
        )
        users.append(len(part.users))
        tokens.append(len(part.tokens))
        keys.append(held_out_keys(part.users["hash"].to_numpy()[part.held_out >= 0]))
    key_max, num_choosing = find_key_max(np.sort(np.concatenate(keys)), max_asked)
    manifest = corpus.manifest | {
        "window_id": f"{corpus.manifest['window_id']}/sample", "partitions": num_partitions, "users": users,
        "holes": [0] * len(users), "tokens": tokens,
        "num_users": sum(users), "num_tokens": sum(tokens), "num_held_out": num_choosing, "num_choosing": num_choosing,
        "held_out_key_max": key_max, "evaluated_key_max": -1, "files": files,
    }  # fmt: skip
    write_json(folder / CORPUS_MANIFEST, manifest)
    return open_corpus(folder)


def sample_part(corpus: Corpus, partition: int, one_in: int) -> UserHistories:
    """Return one user in `one_in` of a micro-partition, with what training sees of them and the newest new item as held out."""
    histories = corpus.read(partition)
    lengths = histories.ends - histories.starts  # 0 in a hole
    rows = np.flatnonzero((histories.hashes <= np.uint64((2**64 - 1) // one_in)) & (lengths > 0))
    offsets, tokens = gather_spans(histories.tokens, histories.starts[rows], lengths[rows])
    users = corpus.read_users(partition).take(pa.array(rows))
    return UserHistories(users, offsets, tokens, find_held_out(Tokens(offsets, tokens)))
