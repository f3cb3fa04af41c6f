"""What commands print for a person."""

import pytest

from surf2vec.flows.cli.show import show_funnel


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
