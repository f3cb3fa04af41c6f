"""The real logs that quality is measured on: a log's corpus by our own ingest, and the question of its held-out users.

Every user that has a held-out item is asked: the newest event whose item was new to the user, unseen by training.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surf2vec.tasks.config import ColumnsConfig, EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.evaluation.evaluate import Question
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import open_root
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.tokens import VOCABULARY, Corpus, open_corpus

TIMED_LOGS = ("wikispeedia_unfinished", "yoochoose_100k", "entree", "nasa_19950801")
"""Those whose times are real, but for seconds inside a session of the first and the third."""
UNORDERED_LOGS = ("gowalla_train",)
LOGS = (*TIMED_LOGS, "msweb", "diginetica", "retailrocket", "toys", *UNORDERED_LOGS)
RAW_LOGS = {"nasa_19950801": ("tsv.gz", IngestConfig(columns=ColumnsConfig(user="host", time="time")))}
"""Those that are no Parquet file with our own columns: the end of the file's name, and how it is read, as in .ci/run."""
ORDER_SEED = 1
THREADS = 2
MEMORY_BYTES = 4 * 10**9
ALL_USERS = 10**9


def make_corpus(
    log: Path,
    folder: Path,
    settings: IngestConfig | None = None,
    max_users: int = ALL_USERS,
    partitions: int | None = None,
) -> Corpus:
    """The corpus of one log by our own ingest, in `folder`; at most `max_users` have one held out, 0: none.

    `settings` say how events are cleaned; by default as shipped.
    """
    root, settings, evaluation = open_root(folder), settings or IngestConfig(), EvaluateConfig(max_users=max_users)
    ingest(root, [str(log)], settings, partitions, MEMORY_BYTES, THREADS, ignore_event)
    built = build_corpus(root, CorpusRequest(settings, evaluation), MEMORY_BYTES, THREADS, ignore_event)
    return open_corpus(root.corpus(built["window_id"]))


def make_corpus_of(log: str, data: Path, folder: Path) -> Corpus:
    """The corpus of one of LOGS in `data`, read as the log asks for and otherwise as shipped, in `folder`."""
    settings = RAW_LOGS[log][1] if log in RAW_LOGS else None
    return make_corpus(find_log(data, log, folder), folder / "root", settings)


def find_log(data: Path, log: str, folder: Path) -> Path:
    """The file of a log; where its order carries no meaning, a copy in `folder` in an order drawn at random.

    Gowalla's check-ins stand by item number, so the newest would always be one of the user's rarest items.
    """
    path = data / f"{log}.{RAW_LOGS[log][0] if log in RAW_LOGS else 'parquet'}"
    if log not in UNORDERED_LOGS:
        return path
    events = pq.read_table(path)
    order = np.random.default_rng(ORDER_SEED).permutation(events.num_rows)
    events = events.take(order).set_column(events.column_names.index("ts"), "ts", pa.array(np.arange(events.num_rows)))
    pq.write_table(events, folder / path.name)
    return folder / path.name


def held_out_question(corpus: Corpus, vectors: NDArray[np.float32]) -> Question:
    """The question for all held-out users, whose vectors stand in `vectors`, micro-partition after micro-partition."""
    items, seen_rows, seen_items = [], [], []
    row = 0
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        for user in np.flatnonzero(histories.is_evaluated):
            seen = np.unique(histories.tokens[histories.starts[user] : histories.ends[user]])
            items.append(int(histories.tokens[histories.ends[user]]))
            seen_rows.append(np.full(len(seen), row))
            seen_items.append(seen.astype(np.int64))
            row += 1
    return Question(vectors, np.array(items), np.concatenate(seen_rows), np.concatenate(seen_items))


def held_out_rows(corpus: Corpus) -> NDArray[np.int64]:
    """Rows of the held-out users when all micro-partitions stand one after the other."""
    return np.flatnonzero(np.concatenate([corpus.read(p).is_evaluated for p in range(corpus.num_partitions)]))


def read_times(corpus: Corpus) -> NDArray[np.float64]:
    """The seconds of each event that training sees, float64[T], one user after the other, from the events beside a corpus.

    Tokens are events of the user in their order, without some: each is looked for from the newest on, so that of repeats that
    cleaning dropped the newest counts.
    """
    vocabulary = pl.read_parquet(corpus.folder / VOCABULARY).select("url", "item_ix")
    events = pl.read_parquet(corpus.folder.parents[1] / "events", hive_partitioning=False).join(vocabulary, on="url")
    order = events.sort("user_id", "ts", "source", "line").group_by("user_id")
    known = {user: (items, us) for user, items, us in order.agg("item_ix", pl.col("ts").dt.epoch("us")).iter_rows()}
    times: list[int] = []
    for partition in range(corpus.num_partitions):
        histories, users = corpus.read(partition), corpus.read_ids(partition).to_pylist()
        for user, start, stop, end in zip(users, histories.starts, histories.offsets[1:], histories.ends, strict=True):
            items, us = known[user]
            left = zip(reversed(items), reversed(us), strict=True)
            found = [next(us for item, us in left if item == token) for token in histories.tokens[start:stop][::-1]]
            times += found[::-1][: end - start]
    return np.array(times) / 1e6
