"""The questions beyond the next page: what is asked of whom, and what planted vectors tell of the days to come."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.evaluation.probes import ask, auc_of, probe_release
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from tests.ingested import MEMORY_BYTES, events_files, take_in, write_log

PAGES = pl.Series(["/a", "/b"])
FIRST = date(2026, 11, 1)


def write_day(folder: Path, number: int, visits: dict[str, list[str]]) -> None:
    """The log of a day: user → pages."""
    at = datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC) + timedelta(days=number)
    lines = [
        f"{user},https://a.org/{page},{at + timedelta(minutes=place):%Y-%m-%dT%H:%M:%SZ}"
        for user, pages in visits.items()
        for place, page in enumerate(pages)
    ]
    write_log(folder / f"{number}.csv", *lines)


def make_corpus(root: Root, days: int, partitions: int = 4) -> Corpus:
    """The corpus of the first days."""
    request = CorpusRequest(IngestConfig(min_item_users=1), EvaluateConfig(), until=FIRST + timedelta(days=days - 1))
    build_corpus(root, request, MEMORY_BYTES, 1)
    return open_corpus(root.corpus(request.name(root)))


class Knowing:
    """Vectors that say of each user, by the number in the id, all that can be asked; and noise."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def read_users(self, partition: int, /) -> NDArray[np.float32]:
        numbers = np.array([int(user) for user in self.corpus.read_ids(partition).to_pylist()])
        noise = np.random.default_rng(partition).normal(size=(len(numbers), 4))
        return np.column_stack((numbers % 2, numbers // 2 % 2, numbers // 4 % 2, noise)).astype(np.float32)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """Two days that tell nothing of a user; on the third every second one returns, to one of two pages, half of them often."""
    folder = tmp_path_factory.mktemp("probes")
    for number in range(2):
        write_day(folder, number, {str(user): ["a", "b"] for user in range(400)})
    back = {str(user): ["ab"[user // 2 % 2]] * (1 + 3 * (user // 4 % 2)) for user in range(1, 400, 2)}
    write_day(folder, 2, {user: [p for page in pages for p in (page, "rare")] for user, pages in back.items()})
    take_in(folder / "root", folder / "*.csv", partitions=4)
    return Root(folder / "root")


def test_vectors_that_know_the_future_are_told_from_counts_that_do_not(root: Root) -> None:
    before = make_corpus(root, 2)
    found = {one["question"]: one for one in probe_release(root, make_corpus(root, 3), before, Knowing(before))}
    assert {name: one["users"] for name, one in found.items()} == {"returns": 400, "page": 200, "heavy": 200}
    for one in found.values():
        assert one["vectors"][0] > 0.99
        assert one["counts"][1] < 0.55
        for auc, low, high in (one["vectors"], one["counts"]):
            assert 0 <= low <= auc <= high <= 1


def test_without_a_day_since_nothing_is_asked(root: Root) -> None:
    corpus = make_corpus(root, 3)
    assert probe_release(root, corpus, corpus, Knowing(corpus)) == []


def test_what_is_seen_by_too_few_is_not_asked(tmp_path: Path) -> None:
    write_day(tmp_path, 0, {str(user): ["a", "b"] for user in range(100)})
    write_day(tmp_path, 1, {str(user): ["a", "b"] for user in range(19)})
    take_in(tmp_path / "root", tmp_path / "*.csv", partitions=4)
    root = Root(tmp_path / "root")
    before = make_corpus(root, 1)
    assert probe_release(root, make_corpus(root, 2), before, Knowing(before)) == []


def test_of_users_none_of_whom_come_back_nothing_is_asked(tmp_path: Path) -> None:
    write_day(tmp_path, 0, {str(user): ["a", "b"] for user in range(100)})
    write_day(tmp_path, 1, {"newcomer": ["a", "b"]})
    take_in(tmp_path / "root", tmp_path / "*.csv", partitions=4)
    root = Root(tmp_path / "root")
    before = make_corpus(root, 1)
    assert probe_release(root, make_corpus(root, 2), before, Knowing(before)) == []


def test_altered_events_are_refused(root: Root) -> None:
    before, now = make_corpus(root, 2), make_corpus(root, 3)
    [path] = [Path(name) for name in events_files(root.path) if "2026-11-03" in name]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        with pytest.raises(DamageError, match="2026-11-03"):
            probe_release(root, now, before, Knowing(before))
    finally:
        path.write_bytes(content)


def test_what_is_asked_of_whom() -> None:
    after = pl.DataFrame(
        {
            "user_id": ["x"] * 3 + ["y"] + ["z"] * 30 + ["gone"],
            "url": ["/a", "/b", "/b", "/a", *["/a"] * 30, "/a"],
            "is_new_session": [False, False, True, False, *[True] * 30, True],
        }
    )
    ids = pl.Series(["w", "x", "y", "z"])
    assert ask("returns", after, ids, PAGES).answers.tolist() == [0, 1, 0, 1]
    heavy = ask("heavy", after, ids, PAGES)
    assert (heavy.rows.tolist(), heavy.answers.tolist()) == ([1, 2, 3], [0, 0, 1])


def test_pages_that_few_visit_most_are_not_asked_about() -> None:
    visits = [(f"u{n}", "/b" if n < 20 else "/a") for n in range(50)] + [("v", "/c"), ("u0", "/b")]
    after = pl.DataFrame(visits, schema=["user_id", "url"], orient="row")
    task = ask("page", after, pl.Series(sorted(set(after["user_id"]))), pl.Series(["/a", "/b", "/c"]))
    assert np.bincount(task.answers).tolist() == [30, 20]


def test_an_auc_of_several_answers_is_the_mean() -> None:
    answers = np.array([0, 1, 2, 0, 1, 2])
    assert auc_of(answers, np.eye(3)[answers]) == 1
    assert auc_of(np.array([0, 1]), np.array([[0.2, 0.8], [0.7, 0.3]])) == 0
