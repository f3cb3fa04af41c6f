"""The times of a corpus's events, which it does not keep."""

from pathlib import Path

from surf2vec.tasks.config import IngestConfig
from tests.benchmarks.logs import make_corpus, read_times
from tests.benchmarks.peers import training_histories

JANUARY = 1704067200
EVENTS = [
    ("u", "/a", 10), ("u", "/b", 20), ("u", "/b", 21), ("u", "/rare", 30), ("u", "/a", 4000), ("u", "/c", 5000),
    ("v", "/c", 7), ("v", "/a", 7), ("w", "/b", 3), ("w", "/c", 9), ("w", "/b", 11),
]  # fmt: skip


def test_each_event_that_training_sees_has_its_time(tmp_path: Path) -> None:
    lines = [f"{user},{page},2024-01-01T{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}Z" for user, page, s in EVENTS]
    (tmp_path / "log.csv").write_text("\n".join(["user_id,url,ts", *lines]) + "\n")
    settings = IngestConfig(min_item_events=2, min_item_users=2)
    corpus = make_corpus(tmp_path / "log.csv", tmp_path / "root", settings, partitions=1)
    assert [history.tolist() for history in training_histories(corpus)] == [[0, 1, 0], [2], [1]]
    assert (read_times(corpus) - JANUARY).tolist() == [10, 21, 4000, 7, 3]  # of events that cleaning joined, the newest
