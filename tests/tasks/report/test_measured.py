"""The plan against what was measured, fair sides and no figure where there is none; each worker's load as a table."""

from surf2vec.tasks.report.measured import describe_sharing, list_caveats, list_loads, list_measured, list_train_metrics
from surf2vec.tasks.report.report import render_report
from surf2vec.tasks.root.records import RunRecord, Steps, TrainStep

TRAIN = TrainStep.model_validate({
    "plan": {
        "num_chunks": 4, "num_blocks": 1, "seconds": 10.0, "peak_bytes": 390_000_000, "budget_bytes": 400_000_000,
        "read_bytes": 200_000_000, "written_bytes": 310_000_000, "num_commits": 2,
    },
    "train_seconds": 8.0, "stall": 0.02, "commit_stall": 0.25, "bytes_read": 190_000_000, "bytes_written": 320_000_000,
    "peak_bytes": 350_000_000, "num_commits": 3, "num_processes": 1, "stopped_after_epoch": None,
})  # fmt: skip


def test_both_sides_have_the_waiting_for_commits_in_them() -> None:
    rows = {row["what"]: (row["planned"], row["measured"]) for row in list_measured(TRAIN)}
    assert rows == {
        "Time": ("10.0 s", "10.0 s"),
        "Memory": ("390.0 MB", "350.0 MB"),
        "Read": ("200.0 MB", "190.0 MB"),
        "Written": ("310.0 MB", "320.0 MB"),
        "Waiting": ("–", "2.0 %"),
    }


def test_the_notes_say_what_the_figures_mean() -> None:
    notes = {row["what"]: row["note"] for row in list_measured(TRAIN)}
    assert "budget 400.0 MB" in notes["Memory"]
    assert notes["Read"] == "vectors that come back, 19.0 MB/s"
    assert notes["Written"].endswith("3 commits (2 planned), 32.0 MB/s")
    assert "for commits another 25.0 %" in notes["Waiting"]
    resident = TRAIN.model_copy(update={"plan": TRAIN.plan | {"num_chunks": 1}})
    assert "all vectors stay in memory" in list_measured(resident)[2]["note"]


def test_what_must_be_known_to_compare_is_said_only_where_it_is_so() -> None:
    assert list_caveats(TRAIN, 5) == []
    [resumed] = list_caveats(TRAIN.model_copy(update={"num_processes": 3}), 5)
    assert "sums over 3 processes" in resumed
    [stopped] = list_caveats(TRAIN.model_copy(update={"stopped_after_epoch": 2}), 5)
    assert "after epoch 2 of 5" in stopped


def test_metrics_have_the_same_figures() -> None:
    metrics = list_train_metrics(TRAIN)
    assert (metrics["train_seconds"], metrics["train_predicted_seconds"]) == (10.0, 10.0)
    assert (metrics["train_bytes_read"], metrics["train_predicted_bytes_read"]) == (190_000_000, 200_000_000)
    assert (metrics["train_bytes_read_per_second"], metrics["train_bytes_written_per_second"]) == (19e6, 32e6)
    assert (metrics["train_stall"], metrics["train_commit_stall"]) == (0.02, 0.25)
    assert None not in metrics.values()


def test_without_a_training_there_are_no_figures() -> None:
    assert list_measured(TrainStep()) == []
    assert set(list_train_metrics(TrainStep()).values()) == {None}


LOAD: dict[str, float] = {
    "tokens": 600.0, "train_seconds": 8.0, "exchange_seconds": 2.0, "pass_seconds": 0.5, "meet_seconds": 0.25,
    "stall_seconds": 0.125, "bytes_read": 10.0, "bytes_written": 20.0, "passed_bytes": 3e6, "summed_bytes": 1e6,
    "num_exchanges": 100.0, "peak_bytes": 4e8, "staleness_most": 0.0, "staleness_sum": 0.0,
}  # fmt: skip
LATE = LOAD | {"tokens": 200.0, "staleness_most": 4.0, "staleness_sum": 150.0}
REASON = "sharded: 4 item blocks of 442.0 kB go round the workers, 2 at each"
SHARED = TrainStep.model_validate({
    "workers": [LOAD, LATE],
    "plan": {"sharing": {"mode": "sharded"}, "reasons": ["all fit", REASON], "sent_bytes": 5e6},
    "train_seconds": 8.0, "bytes_read": 20, "bytes_written": 40, "peak_bytes": 5e8,
})  # fmt: skip


def test_a_row_a_worker() -> None:
    first, second = list_loads(SHARED)
    assert first == {
        "worker": "0", "tokens": "75.0 %", "time": "8.00 s", "sums": "2.00 s", "blocks": "0.50 s", "messages": "0.25 s",
        "disk": "0.12 s", "sent": "4.0 MB", "memory": "400.0 MB", "late": "–",
    }  # fmt: skip
    assert (second["worker"], second["tokens"], second["late"]) == ("1", "25.0 %", "1.50, at most 4")
    assert describe_sharing(SHARED) == f"2 workers, {REASON}"


def test_one_worker_has_no_table() -> None:
    alone = TrainStep(plan={"sharing": {"mode": "alone"}, "reasons": ["all fit"]}, train_seconds=1.0)
    for train in (alone, TrainStep()):
        assert list_loads(train) == []
        assert describe_sharing(train) == ""
        assert not any(row["what"] == "Sent" for row in list_measured(train))


def test_the_plan_stands_beside_what_its_worker_did() -> None:
    rows = {row["what"]: (row["planned"], row["measured"]) for row in list_measured(SHARED)}
    assert rows["Sent"] == ("5.0 MB", "4.0 MB")
    assert rows["Read"][1] == "10 B"
    assert list_train_metrics(SHARED)["train_peak_bytes"] == 4e8
    assert "first of 2 workers" in list_caveats(SHARED, 5)[0]


def test_the_report_shows_it_only_for_several() -> None:
    page = render_report(RunRecord(run_id="r", steps=Steps(train=SHARED)), None)
    assert "<h3>Workers</h3>" in page
    assert "1.50, at most 4" in page
    assert REASON in page
    assert "<h3>Workers</h3>" not in render_report(RunRecord(run_id="r", steps=Steps(train=TrainStep())), None)
