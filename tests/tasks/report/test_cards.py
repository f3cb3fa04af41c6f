"""The cards of a model and of a version say what is true, in Markdown that shows foreign text as it is."""

from typing import Any

from surf2vec.tasks.report.cards import list_night, model_card, name_night, version_card
from surf2vec.tasks.root.records import RunRecord

RECORD: dict[str, Any] = {
    "run_id": "3af29a720ada",
    "created_at": "2026-11-07T04:00:00+00:00",
    "config": {"ingest": {"min_item_users": 3, "mask_secrets": True, "user_key_env": "KEY"}},
    "full_because": "--full was given",
    "steps": {
        "corpus": {"since": "2026-11-01", "until": "2026-11-06", "num_tokens": 29_691, "seconds": 2.0},
        "train": {"seconds": 10.0},
        "evaluate": {"metrics": {"hit_at_10": 0.32134, "popularity_hit_at_10": 0.0242}},
        "export": {"num_users": 1379, "num_items": 2083},
        "gate": {"passes": False, "held_by": ["users"], "table": [
            {"rule": "users, in % of all", "tonight": "68.9 %", "limit": "≥ 80.0 %", "verdict": "held",
             "reason": "11.1 % past | the limit"},
            {"rule": "items", "tonight": "100.0 %", "limit": "≥ 80.0 %", "verdict": "passed"},
        ]},
    },
}  # fmt: skip
MANIFEST: dict[str, Any] = {
    "release": "3af29a720ada", "vector_size": 128, "num_users": 1379, "num_items": 2083, "space_id": "s1", "generation": 4,
    "created_from": {"window_id": "w1"},
}  # fmt: skip


def record(**values: Any) -> RunRecord:
    return RunRecord.model_validate(RECORD | values)


def test_a_run_is_named_by_its_day_its_kind_and_its_id() -> None:
    assert name_night(record()) == "2026-11-06 · full · 3af29a"
    base = {"release": "r0", "window_id": "w0", "space_id": "s1"}
    assert name_night(record(base=base)) == "2026-11-06 · incremental · 3af29a"
    assert (
        name_night(RunRecord(run_id="abcdefgh", created_at="2026-11-07T04", steps={})) == "2026-11-07 · full · abcdef"
    )  # type: ignore[arg-type]


def test_a_night_is_a_list_of_facts() -> None:
    registered = {"model_name": "shop_users", "model_version": 7, "alias": "challenger"}
    assert list_night(record(steps=RECORD["steps"] | {"register": registered}), "Time") == [
        "* **Users** 1,379, with a vector",
        "* **hit@10** 0.321, popularity 0.024",
        "* **Gate** Held by users: the champion keeps serving.",
        r"* **Version** 7 of shop\_users, registered as challenger",
        "* **Time** 12.0 s, 6 of 9 steps",
    ]


def test_a_version_has_its_figures_window_origin_privacy_and_gate() -> None:
    card = version_card(record(), MANIFEST, 2_700_000)
    for words in (
        "128 dimensions for each of 1,379 users and for 2,083 items, 2.7 MB. They are in the registry.",
        "* **Window** 6 days, 2026-11-01 to 2026-11-06",
        "* **Tokens** 29,691, ",
        "* **Origin** run 3af29a720ada, corpus w1, generation 4, everything trained: --full was given",
        "pages of fewer than 3 people are left out; e-mail addresses and session ids are masked; user ids are pseudonyms",
        "| users, in\N{NO-BREAK SPACE}% of all | 68.9\N{NO-BREAK SPACE}% | ≥ 80.0\N{NO-BREAK SPACE}% | "
        r"**held: 11.1"
        "\N{NO-BREAK SPACE}% past \\| the limit** |",
        "| passed |",
    ):
        assert words in card
    referenced = version_card(record(forgotten_from="r0"), MANIFEST, 1, "file:///exports/r1")
    assert "not in the registry but in file:///exports/r1" in referenced.replace("\\", "")
    assert "without the users forgotten since release r0" in referenced


def test_a_held_version_begins_with_the_rule_and_what_can_follow() -> None:
    lines = version_card(record(), MANIFEST, 1).splitlines()
    assert lines[0] == "**Held by the gate: the champion keeps serving.**"
    assert lines[2].startswith("* users, in % of all: 68.9 %, limit ≥ 80.0 %, 11.1 % past ")
    assert 'surf2vec promote --override "WHY" --root ROOT' in lines[3]
    assert "surf2vec run --logs" in lines[4]
    passed = RECORD["steps"] | {"gate": {"passes": True, "verdict": "passed"}}
    assert version_card(record(steps=passed), MANIFEST, 1).startswith("Release 3af29a720ada")


def test_a_version_names_the_level_of_its_privacy() -> None:
    for made, words in (
        ({}, "noise 0, trails left out, activity left out; pages of"),
        ({"trail": {}, "activity": {}}, "noise 0, trails exact, activity exact; pages of"),
        ({"trail": {}, "storage": {"noise": 0.5}}, "noise 0.5, trails noisy, activity left out; pages of"),
    ):
        assert f"* **Privacy** {words}" in version_card(record(), MANIFEST | made, 1)


def test_a_model_has_a_card_that_is_true_for_every_version() -> None:
    card = model_card("shop")
    for words in ("models:/shop@champion", "`champion` is the one that serves", "space_id", "Not in it"):
        assert words in card
    before, code, after = card.split("```")
    assert all("\n" not in text.strip("\n") for text in (before + after).split("\n\n"))  # MLflow breaks lines there
    assert max(map(len, code.splitlines())) <= 66  # no longer than its page on a tablet
