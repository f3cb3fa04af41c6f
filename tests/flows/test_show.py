"""What commands print for a person."""

import pytest

from surf2vec.flows.cli.show import show_funnel, show_nights


def test_what_was_left_out_is_printed_with_the_settings_names(capsys: pytest.CaptureFixture[str]) -> None:
    because = "fewer events than 5 (ingest.min_item_events), or fewer users than 3 (ingest.min_item_users)"
    show_funnel([{"what": "pages", "before": 26_492, "after": 246, "because": because}], ["A note [with] brackets."])
    printed = capsys.readouterr().out
    assert "pages  26,492  to  246" in printed
    assert "ingest.min_item_events" in printed
    assert "ingest.min_item_users" in printed
    assert "A note [with] brackets.\n" in printed


def test_nothing_left_out_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show_funnel([], [])
    assert capsys.readouterr().out == ""


def test_a_day_with_a_release_is_no_day_without_a_night(capsys: pytest.CaptureFixture[str]) -> None:
    made = {
        "day": "2026-01-06", "release": "r1", "events": 9, "users": 3, "metrics": {}, "seconds": {}, "model_version": 5,
        "alias": "champion", "gate": {"verdict": "passed", "held_by": []},
    }  # fmt: skip
    later = [{"day": day, "skipped": "nothing to do: no user's pages changed"} for day in ("2026-01-06", "2026-01-07")]
    show_nights({"nights": [made, *later], "report": "index.html"})
    printed = capsys.readouterr().out
    assert "2026-01-06  nothing to do: " in printed
    assert "2026-01-07  no night: nothing to do: " in printed
