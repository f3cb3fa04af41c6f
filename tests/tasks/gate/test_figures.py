"""Each rule of the gate on literal nights: what passes it, what breaks it, and where it is not checked."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.tasks.config import GateConfig
from surf2vec.tasks.corpus.window import Window
from surf2vec.tasks.gate.figures import Case, foresee, judge_release, open_case
from surf2vec.tasks.ingest.sources import EventsFile
from surf2vec.tasks.root.records import CorpusStep, EvaluateStep, GateStep, SettleStep, Steps
from surf2vec.tasks.root.run import Root, Run
from surf2vec.tasks.root.wording import describe_rule
from surf2vec.trainer.system.files import read_json, write_json
from tests.data.corpora import write_corpus
from tests.roots.releases import FakeGeneration, draw_generation, export_release

NUM_USERS, NUM_ITEMS = 400, 20
STEADY = {date(2026, 6, 1) + timedelta(n): 1000 for n in range(10)}
NEWEST = max(STEADY)


def make_release(root: Root, release: str, change: Any = None, **steps: Any) -> Run:
    """An exported release with its record: user i has seen items i and i + 1; vectors are the same in each, but for `change`."""
    histories = {f"user-{i}": [i % NUM_ITEMS, (i + 1) % NUM_ITEMS] for i in range(NUM_USERS)}
    corpus = write_corpus(root.corpus(f"window-{release}"), histories, 2, NUM_ITEMS)
    generation = draw_generation(corpus.folder, seed=1)
    if change:
        change(generation)
    export_release(root, release, corpus.folder, generation)  # type: ignore[arg-type]
    funnel = [["users in the window", 500], ["users kept", NUM_USERS]]
    run = Run(root, release)
    told = {
        "corpus": {"funnel": funnel, "until": (NEWEST - timedelta(1)).isoformat()},
        "evaluate": {"metrics": {"hit_at_10": 0.2}, "num_users": 200},
        "export": {"num_users": NUM_USERS, "num_items": NUM_ITEMS},
    }
    run.update(steps={name: step | steps.get(name, {}) for name, step in told.items()})
    return run


def judge(run: Run, champion: str | None = "before", **values: Any) -> dict[str, Any]:
    """The verdict with settings and days as given."""
    days, then = values.pop("days", STEADY), values.pop("then", {})
    has_changed = values.pop("has_changed", False)
    return judge_release(Case(run, GateConfig(**values), champion, has_changed, days, then))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path)
    make_release(root, "before")
    return root


def compare_with(root: Root, ours: list[float], theirs: list[float], **told: Any) -> dict[str, Any]:
    """An evaluation with these ranks."""
    np.save(root.path / "ranks.npy", np.array([ours, theirs], np.float32))
    comparison = {"champion": "before", "ranks": "ranks.npy", "num_users": len(ours)}
    return {"comparison": comparison | {"coverage": 0.5, "champion_coverage": 0.5} | told}


def verdicts(judged: dict[str, Any], *words: str) -> list[str]:
    """The verdicts of the rules whose description begins with each of these words."""
    rows = (next(row for row in judged["table"] if row["rule"].startswith(word)) for word in words)
    return list(map(describe_rule, rows))


def test_a_night_like_the_one_before_passes_every_rule(root: Root) -> None:
    run = make_release(root, "tonight", evaluate=compare_with(root, [1.0, 30.0] * 200, [1.0, 30.0] * 200))
    judged = judge(run)
    assert (judged["passes"], judged["verdict"]) == (True, "passed")
    assert (judged["held_by"], judged["champion"]) == ([], "before")
    assert {row["verdict"] for row in judged["table"]} == {"passed"}
    assert judged["metrics"] == {
        "gate_champion": 1.0, "gate_hit_at_10": 0.0, "gate_mrr_at_20": 0.0, "gate_coverage": 1.0,
        "gate_own_hit_at_10": 1.0, "gate_with_vector": 1.0, "gate_users": 1.0, "gate_items": 1.0,
        "gate_norm_outliers": 0.0, "gate_space": 1.0,
        "gate_cosine_p1": pytest.approx(1.0), "gate_cosine_median": pytest.approx(1.0), "gate_newest_day_events": 1.0,
        "gate_missing_days": 0.0, "gate_passes": 1.0,
    }  # fmt: skip
    assert judged["days"] == {day.isoformat(): 1000 for day in STEADY}


def test_the_first_release_serves_whatever_it_breaks(tmp_path: Path) -> None:
    run = make_release(Root(tmp_path), "tonight")
    judged = judge(run, champion=None, days={})
    assert (judged["passes"], judged["verdict"], judged["held_by"]) == (True, "first", [])
    unchecked = [row["reason"] for row in judged["table"] if row["verdict"] == "not checked"]
    assert len(unchecked) == len(judged["table"]) - 1  # but the lengths of the vectors
    assert unchecked == ["events bear no dates", "there is no champion"]
    assert judged["table"][-1]["rule"] == "the other 12 rules"
    judged = judge(run, champion=None, days=STEADY | {NEWEST: 500})
    assert (judged["passes"], verdicts(judged, "events of the")) == (True, ["would hold: 10.0 % past the limit"])
    assert foresee(Case(run, GateConfig(), None, False, STEADY | {NEWEST: 500}, {}))["at_risk"] == ["newest_day_events"]


@pytest.mark.parametrize(("found", "held_by"), [(0.5, ["hit_at_10", "mrr_at_20"]), (0.99, []), (1.5, [])])
def test_ranks_that_got_worse(root: Root, found: float, held_by: list[str]) -> None:
    """Of 1,000 users the champion finds the item of 400 at rank 1, the challenger that of `found` times as many."""
    theirs, ours = ([1.0] * count + [50.0] * (1000 - count) for count in (400, int(400 * found)))
    run = make_release(root, "tonight", evaluate=compare_with(root, ours, theirs))
    judged = judge(run)
    assert judged["held_by"] == held_by
    assert judged["metrics"]["gate_hit_at_10"] == pytest.approx(found - 1)
    assert judge(run, hit_at_10_drop=0.6)["passes"]


def test_hit_and_mrr_are_judged_apart(root: Root) -> None:
    run = make_release(root, "tonight", evaluate=compare_with(root, [9.0] * 300, [1.0] * 300))
    judged = judge(run)
    assert judged["held_by"] == ["mrr_at_20"]  # still among the first ten, but no more the first
    assert verdicts(judged, "MRR@20") == ["held: 83.9 % past the limit"]


@pytest.mark.parametrize(
    ("num_users", "other", "reason"),
    [
        (99, {}, "99 users were compared, fewer than 100"),
        (200, {"champion": "older"}, "it was compared with release older, which does not serve"),
        (200, {"ranks": None, "reason": "the corpus is gone"}, "the corpus is gone"),
    ],
)
def test_a_comparison_that_does_not_count(root: Root, num_users: int, other: dict[str, Any], reason: str) -> None:
    evaluation = compare_with(root, [50.0] * num_users, [1.0] * num_users, **other)
    judged = judge(make_release(root, "tonight", evaluate=evaluation))
    assert judged["passes"]
    assert verdicts(judged, "hit@10", "MRR@20", "items in anyone's") == [f"not checked: {reason}"] * 3


@pytest.mark.parametrize(("coverage", "held_by"), [(0.4, []), (0.39, ["coverage"])])
def test_fewer_items_are_recommended(root: Root, coverage: float, held_by: list[str]) -> None:
    same = [1.0] * 200
    run = make_release(root, "tonight", evaluate=compare_with(root, same, same, coverage=coverage))
    assert judge(run)["held_by"] == held_by


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("own_hit_at_10", {"evaluate": {"metrics": {"hit_at_10": 0.08}}}),
        ("with_vector", {"corpus": {"funnel": [["users in the window", 1000], ["users kept", 320]]}}),
        ("users", {"export": {"num_users": 160}}),
        ("items", {"export": {"num_items": 8}}),
    ],
)
def test_numbers_that_fell(root: Root, name: str, steps: dict[str, Any]) -> None:
    run = make_release(root, "tonight", **steps)
    judged = judge(run)
    assert judged["held_by"] == [name]
    assert judged["metrics"][f"gate_{name}"] == pytest.approx(0.4)
    assert judge(run, kept=0.39, hit_at_10_drop=0.061)["passes"]
    (root.run("before") / "run.json").unlink()
    judged = judge(run)
    assert judged["passes"]
    assert "not checked: the record of release before does not have it" in verdicts(judged, "users, in", "items, in")


@pytest.mark.parametrize(
    ("num_users", "kind", "reason"),
    [
        (99, "full", "99 users were evaluated, fewer than 100"),
        (200, "incremental", "the night is incremental, the champion's was full: they evaluate other users"),
    ],
)
def test_hits_of_few_users_or_of_others_say_nothing(root: Root, num_users: int, kind: str, reason: str) -> None:
    run = make_release(root, "tonight")
    evaluated = EvaluateStep(metrics={"hit_at_10": 0.01}, num_users=num_users)
    run.record_steps(evaluated, SettleStep(kind=kind))
    judged = judge(run)
    assert judged["passes"]
    assert verdicts(judged, "hit@10 on all") == [f"not checked: {reason}"]


def turn(share: float) -> Any:
    """Turn that share of the users' vectors to where they were not."""

    def change(generation: FakeGeneration) -> None:
        for users in generation.users:
            users[: round(len(users) * share)] *= -1

    return change


@pytest.mark.parametrize(
    ("share", "held_by"), [(0.0, []), (0.05, ["cosine_p1"]), (0.6, ["cosine_p1", "cosine_median"])]
)
def test_vectors_that_moved_without_a_reason(root: Root, share: float, held_by: list[str]) -> None:
    run = make_release(root, "tonight", turn(share))
    assert judge(run)["held_by"] == held_by
    assert judge(run, cosine_median=-1)["held_by"] == held_by[:1]


def test_another_space_is_held_back(root: Root) -> None:
    run, path = make_release(root, "tonight", turn(1.0)), root.export("tonight") / "manifest.json"
    write_json(path, read_json(path) | {"space_id": "another"})
    judged = judge(run)
    assert verdicts(judged, "cosine", "the median of") == ["not checked: the spaces differ"] * 2
    assert judged["held_by"] == ["space"]


def test_the_registry_alone_knows_that_the_spaces_differ(tmp_path: Path) -> None:
    """The champion is another root's: none of its files is here."""
    root = Root(tmp_path)
    run = make_release(root, "tonight")
    run.update(champion="theirs")
    for space, held_by in (("another", ["space"]), ("", ["space"]), ("space-1", [])):
        case = open_case(run, GateConfig(), "theirs", {"theirs": space}, open_window(100))
        assert judge_release(case)["held_by"] == held_by
    first = judge_release(open_case(run, GateConfig(), None, {}, open_window(100)))
    assert (first["verdict"], first["passes"]) == ("first", True)


def test_only_users_whose_tokens_did_not_change_count(root: Root) -> None:
    """Half of the users opened something else, and their vectors turned around; the others have theirs."""
    histories = {f"user-{i}": [i % NUM_ITEMS, (i + 1 + i % 2) % NUM_ITEMS] for i in range(NUM_USERS)}
    corpus = write_corpus(root.corpus("window-tonight"), histories, 2, NUM_ITEMS)
    generation = draw_generation(corpus.folder, seed=1)
    for partition, users in enumerate(generation.users):
        odd = [int(user.removeprefix("user-")) % 2 == 1 for user in corpus.read_ids(partition).to_pylist()]
        users[odd] *= -1
    export_release(root, "tonight", corpus.folder, generation)  # type: ignore[arg-type]
    run = Run(root, "tonight")
    run.update(steps=Run(root, "before").record().steps)
    judged = judge(run)
    assert judged["passes"]
    assert judged["metrics"]["gate_cosine_p1"] == pytest.approx(1.0)


def test_lengths_far_from_the_others(root: Root) -> None:
    def stretch(generation: FakeGeneration) -> None:
        for users in generation.users:
            users[:4] *= 100

    run = make_release(root, "tonight", stretch)
    judged = judge(run)
    assert judged["held_by"] == ["norm_outliers"]
    assert judged["metrics"]["gate_norm_outliers"] == 8 / NUM_USERS


def test_a_champion_whose_files_are_gone_has_no_vectors_to_compare(root: Root) -> None:
    (root.export("before") / "manifest.json").unlink()
    judged = judge(make_release(root, "tonight"))
    assert verdicts(judged, "cosine") == ["not checked: the export or corpus of release before is gone"]


@pytest.mark.parametrize(("events", "held_by"), [(1000, []), (600, []), (500, ["newest_day_events"])])
def test_a_day_half_delivered(root: Root, events: int, held_by: list[str]) -> None:
    judged = judge(make_release(root, "tonight"), days=STEADY | {NEWEST: events})
    assert judged["held_by"] == held_by


def test_a_day_that_is_missing(root: Root) -> None:
    days = {day: events for day, events in STEADY.items() if day != NEWEST - timedelta(1)}
    run = make_release(root, "tonight")
    assert judge(run, days=days)["passes"]  # the champion's newest day is that one: it lived without it
    Run(root, "before").update(steps=Steps(corpus=CorpusStep(until=(NEWEST - timedelta(2)).isoformat())))
    assert judge(run, days=days)["held_by"] == ["missing_days"]
    assert judge(run, days=days, missing_days=1)["passes"]


def test_a_champion_that_changed_meanwhile(root: Root) -> None:
    run = make_release(root, "tonight")
    run.update(champion=None)
    assert open_case(run, GateConfig(), "before", {}, open_window(1)).has_changed
    assert judge(run, has_changed=True)["held_by"] == ["champion"]


def open_window(*events: int) -> Window:
    files = [EventsFile(Path(f"day=2026-06-{1 + n:02}/x"), {"rows": rows}) for n, rows in enumerate(events)]
    return Window(2, (), None, None, (*files, *files[:1], EventsFile(Path("undated/y"), {"rows": 7})))


def test_a_case_knows_the_days_and_how_the_night_before_saw_them(root: Root) -> None:
    run = make_release(root, "tonight")
    run.update(champion="before")
    case = open_case(run, GateConfig(), "before", {"before": "space-1"}, open_window(100, 200, 300))
    assert case.days == {date(2026, 6, 1): 200, date(2026, 6, 2): 200, date(2026, 6, 3): 300}
    assert (case.days_before, case.has_changed, case.champion_space) == ({}, False, "space-1")
    Run(root, "before").step(GateStep, "", lambda: GateStep(days={"2026-06-01": 100, "2026-06-02": 20}))
    Run(root, "same-day").step(GateStep, "", lambda: GateStep(days={"2026-06-03": 1}))
    case = open_case(run, GateConfig(), "older", {}, open_window(100, 200, 300))
    assert case.days_before == {date(2026, 6, 1): 100, date(2026, 6, 2): 20}
    assert case.has_changed


def test_a_run_that_has_served_is_judged_beside_the_champion_it_met(root: Root) -> None:
    run = make_release(root, "tonight")
    run.update(champion="before")
    run.step(GateStep, "", lambda: GateStep(champion="before"))
    for champion, has_served in (("tonight", True), ("tonight", False), ("later", True)):
        case = open_case(run, GateConfig(), champion, {"tonight": "space-1"}, open_window(1), has_served)
        assert (case.champion, case.has_changed) == ("before", False)
