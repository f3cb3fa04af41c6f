"""What was left out of a log, and why, as a person reads it."""

from typing import Any

from surf2vec.tasks.report.tables import describe_choice, list_losses, list_notes
from surf2vec.tasks.root.records import ChooseStep, CorpusStep, IngestStep, RunRecord, Steps

RECORD: dict[str, Any] = {
    "run_id": "r",
    "config": {
        "ingest": {
            "max_day_events": 2000, "min_item_events": 5, "min_item_users": 3, "min_user_events": 2, "max_user_events": 1000,
        },
        "train": {"recency": 3.0},
    },
    "steps": {
        "ingest": {
            "lines": 40_000, "events": 30_000, "left_out": {"static asset": 9_000, "crawler": 900}, "rejected": {"no page": 100},
            "many_queries": [{"page": "/index.php", "num_queries": 1600, "keys": ["id", "lang"]}],
        },
        "corpus": {
            "undated": False, "since": "2026-01-01",
            "funnel": [
                ["events in the window", 30_000], ["events without bots", 29_000], ["events without repeats", 29_000],
                ["events of items in the vocabulary", 8_000], ["events of users kept", 7_900],
                ["tokens (the newest events of each user)", 7_900], ["items in the window", 26_492],
                ["items in the vocabulary", 246], ["users in the window", 500], ["users kept", 400],
            ],
        },
    },
}  # fmt: skip


def test_each_loss_names_its_reason_and_the_setting() -> None:
    losses = list_losses(RunRecord.model_validate(RECORD))
    assert [(loss["what"], loss["before"], loss["after"], loss["because"]) for loss in losses] == [
        ("lines", 40_000, 30_000, "9,000 static asset, 900 crawler, 100 no page"),
        ("events", 30_000, 29_000, "bots: more events on a day than 2,000 (ingest.max_day_events)"),
        (
            "items", 26_492, 246,
            "fewer events than 5 (ingest.min_item_events), or fewer users than 3 (ingest.min_item_users)",
        ),
        ("events", 29_000, 8_000, "events of the items left out"),
        ("users", 500, 400, "bots, and fewer events of items kept than 2 (ingest.min_user_events)"),
        ("events", 8_000, 7_900, "events of the users left out"),
    ]  # fmt: skip


def test_a_record_that_did_not_come_so_far() -> None:
    assert list_losses(RunRecord(run_id="r", steps=Steps())) == []
    assert list_losses(RunRecord(run_id="r", steps=Steps(ingest=IngestStep(lines=3, events=3)))) == []
    assert list_notes(RunRecord(run_id="r", steps=Steps())) == []


def test_the_hint_at_queries() -> None:
    [note] = list_notes(RunRecord.model_validate(RECORD))
    assert note.startswith("/index.php has about 1,600 different queries (keys: id, lang), and all count as one page.")
    assert note.endswith("in ingest.keep_query.")


def test_an_order_that_says_nothing_is_noted() -> None:
    def note(has_order: bool | None) -> list[str]:
        steps = Steps(corpus=CorpusStep(undated=True, has_order=has_order))
        return list_notes(RunRecord(run_id="r", steps=steps, config={"train": {"recency": 3.0}}))

    [hint] = note(False)
    assert hint.startswith("The order of a user's events says nothing")
    assert "recency is off" in hint
    assert note(True) == note(None) == []


def test_a_chosen_weight_says_by_how_much_ranks_are_lower() -> None:
    hits = {"0": 0.148, "0.2": 0.157, "0.6": 0.128, "1": 0.099}
    chosen = ChooseStep(
        trail_weight=0.2, popularity=0.0, num_users=109, hit_at_20=hits, gain=0.223, standard_error=0.05
    )
    assert describe_choice(chosen) == [
        "weight of the trail 0.2, popularity +0, chosen by the log: ranks 20.0 % ± 4.0 % lower in the geometric mean "
        "than with the usual values",
        "hit@20 by the interest alone 0.148",
        "hit@20 by the trail alone 0.099",
    ]
    assert (
        describe_choice(ChooseStep(trail_weight=0.6, popularity=0.0))[0]
        == "weight of the trail 0.6, popularity +0, as usual"
    )
    assert describe_choice(ChooseStep(popularity=0.2)) == ["popularity +0.2, as usual"]
