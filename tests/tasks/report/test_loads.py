"""Each worker's load as a table, and none where one worker trained alone."""

from tasks.report.loads import COLUMNS, list_loads, of_first, tell_sharing
from tasks.report.measured import list_caveats, list_measured, list_train_metrics
from tasks.report.report import render_report
from tasks.root.story import Steps, Story, TrainStep

LOAD: dict[str, float] = {
    "tokens": 600.0, "train_seconds": 8.0, "exchange_seconds": 2.0, "pass_seconds": 0.5, "meet_seconds": 0.25,
    "stall_seconds": 0.125, "bytes_read": 10.0, "bytes_written": 20.0, "passed_bytes": 3e6, "summed_bytes": 1e6,
    "num_exchanges": 100.0, "peak_bytes": 4e8, "staleness_most": 0.0, "staleness_sum": 0.0,
}  # fmt: skip
LATE = LOAD | {"tokens": 200.0, "staleness_most": 4.0, "staleness_sum": 150.0}
REASON = "sharded: 4 item blocks of 442.0 kB go round the workers, 2 at each"
TRAIN = TrainStep.model_validate({
    "workers": [LOAD, LATE],
    "plan": {"sharing": {"mode": "sharded"}, "reasons": ["all fit", REASON], "sent_bytes": 5e6},
    "train_seconds": 8.0, "bytes_read": 20, "bytes_written": 40, "peak_bytes": 5e8,
})  # fmt: skip


def test_a_row_a_worker() -> None:
    first, second = list_loads(TRAIN)
    assert first == {
        "worker": "0", "tokens": "75.0 %", "time": "8.00 s", "sums": "2.00 s", "blocks": "0.50 s", "word": "0.25 s",
        "disk": "0.12 s", "sent": "4.0 MB", "memory": "400.0 MB", "late": "–",
    }  # fmt: skip
    assert (second["worker"], second["tokens"], second["late"]) == ("1", "25.0 %", "1.50, at most 4")
    assert set(first) == set(COLUMNS)
    assert tell_sharing(TRAIN) == f"2 workers, {REASON}"


def test_one_worker_has_no_table() -> None:
    alone = TrainStep(plan={"sharing": {"mode": "alone"}, "reasons": ["all fit"]}, train_seconds=1.0)
    for train in (alone, TrainStep()):
        assert list_loads(train) == []
        assert tell_sharing(train) == ""
        assert of_first(train) == train
        assert not any(row["what"] == "Sent" for row in list_measured(train))


def test_the_plan_stands_beside_what_its_worker_did() -> None:
    rows = {row["what"]: (row["planned"], row["measured"]) for row in list_measured(TRAIN)}
    assert rows["Sent"] == ("5.0 MB", "4.0 MB")
    assert rows["Read"][1] == "10 B"
    assert list_train_metrics(TRAIN)["train_peak_bytes"] == 4e8
    assert "first of 2 workers" in list_caveats(TRAIN, 5)[0]


def test_the_report_shows_it_only_for_several() -> None:
    page = render_report(Story(run_id="r", steps=Steps(train=TRAIN)), None)
    assert "<h3>Workers</h3>" in page
    assert "1.50, at most 4" in page
    assert REASON in page
    assert "<h3>Workers</h3>" not in render_report(Story(run_id="r", steps=Steps(train=TrainStep())), None)
