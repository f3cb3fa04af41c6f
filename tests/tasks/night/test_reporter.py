"""What a night prints while it trains."""

from typing import Any

import pytest

from surf2vec.tasks.night import reporter
from surf2vec.tasks.night.reporter import Reporter
from surf2vec.trainer.__main__ import ProgressLines


@pytest.mark.parametrize(("loss", "said"), [(0.5, "loss 0.5"), (None, "tokens/s")])
def test_a_point_of_the_curve_may_have_no_loss(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], loss: float | None, said: str
) -> None:
    """A worker whose users are few has none to measure at some points."""
    monkeypatch.setattr(reporter, "LINE_SECONDS", 0.0)
    point: dict[str, Any] = {"epoch": 1.0, "loss": loss, "heldout_loss": None, "tokens_per_second": 1000.0}
    with Reporter().step("train") as on_event:
        on_event("train", point)
        on_event("progress", {"step": "train", "done": 1, "total": 2, "unit": "places"})
    ProgressLines()("train", point)
    lines = capsys.readouterr().err
    assert said in lines
    assert "1,000 tokens/s" in lines
