"""How a log is cut for the probes, what is predicted of whom, and when a log passes."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from tests.benchmarks.probes import Task, ask, auc_of, count_features, cut, judge

START = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
PAGES = pl.Series(["/a", "/b"])


def events(user: str, *told: tuple[float, str]) -> list[tuple[str, str, datetime]]:
    return [(user, url, START + hours * HOUR) for hours, url in told]


def frame(*users: list[tuple[str, str, datetime]]) -> pl.DataFrame:
    return pl.DataFrame([event for user in users for event in user], schema=["user_id", "url", "ts"], orient="row")


def test_a_history_is_cut_and_the_time_after_it_is_asked_about() -> None:
    many = [events(f"u{n}", *((hours, "/a") for hours in range(0, 48, 4))) for n in range(200)]
    before, after = cut(frame(*many, events("last", (60, "/a"))), timedelta(hours=8))
    assert "last" not in set(before["user_id"])  # nobody knows what comes after the log
    assert before["user_id"].n_unique() == 200
    cuts = before.group_by("user_id").agg(cut_at=pl.col("ts").max(), num=pl.len())
    assert set(cuts["num"]) == set(range(1, 13))
    asked = after.join(cuts, on="user_id", suffix="_known")
    assert asked.filter(
        (pl.col("ts") <= pl.col("cut_at_known")) | (pl.col("ts") > pl.col("cut_at_known") + 8 * HOUR)
    ).is_empty()
    assert asked["is_new_session"].all()
    ended = cuts.filter(pl.col("num") == 12)["user_id"]
    assert not asked["user_id"].is_in(ended.implode()).any()


def test_events_of_the_session_that_was_cut_are_no_return() -> None:
    many = [events(f"u{n}", (0, "/a"), (0.1, "/b"), (0.2, "/a")) for n in range(50)]
    _, after = cut(frame(*many, events("last", (60, "/a"))), HOUR)
    assert len(after) > 0
    assert not after["is_new_session"].any()


def test_counts_of_a_user() -> None:
    before, _ = cut(frame(events("u", (0, "/a"))), timedelta(0))
    [counts] = count_features(before, pl.Series(["u"]), PAGES)
    assert counts[:5].tolist() == [1, 1, 0, 1, 0]
    assert counts[-2:].tolist() == [1, 0]


@pytest.mark.long
def test_a_question_passes_unless_another_side_is_above_our_interval() -> None:
    rng = np.random.default_rng(1)
    answers = rng.integers(0, 2, 120)
    known, unknown = answers[:, None] + rng.normal(0, 0.3, (120, 1)), rng.normal(0, 1, (120, 1))
    tasks = {name: Task(np.arange(120), answers) for name in ("returns", "page", "heavy")}
    sides = {"ours": known, "without activity": unknown, "gensim": unknown, "counts": unknown}
    cases = judge("log", tasks, sides)
    assert [case["passed"] for case in cases] == [True] * 3
    assert min(case["ratio"] for case in cases) > 1.2
    cases = judge("log", tasks, sides | {"ours": unknown, "counts": known})
    assert [case["passed"] for case in cases] == [False] * 3
    cases = judge("log", tasks, sides | {"ours": unknown, "without activity": known})
    assert [case["passed"] for case in cases] == [True, False, True]


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
