"""The plan against what was measured: fair sides, and no figure where there is none."""

from tasks.report.measured import list_caveats, list_measured, list_train_metrics
from tasks.root.story import TrainStep

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
        "Disk": ("20.0 MB/s / 31.0 MB/s", "19.0 MB/s / 32.0 MB/s"),
        "Waiting": ("–", "2.0 %"),
    }


def test_the_notes_say_what_the_figures_mean() -> None:
    notes = {row["what"]: row["note"] for row in list_measured(TRAIN)}
    assert "budget 400.0 MB" in notes["Memory"]
    assert "come back" in notes["Read"]
    assert notes["Written"].endswith("3 commits (2 planned)")
    assert "for commits another 25.0 %" in notes["Waiting"]
    resident = TRAIN.model_copy(update={"plan": TRAIN.plan | {"num_chunks": 1}})
    assert "all vectors stay in memory" in next(row["note"] for row in list_measured(resident) if row["what"] == "Read")


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


def test_a_story_of_an_earlier_version_has_gaps() -> None:
    assert list_measured(TrainStep()) == []
    assert set(list_train_metrics(TrainStep()).values()) == {None}
    old = TrainStep(plan={"peak_bytes": 1}, train_seconds=2.0)
    assert {row["what"]: row["measured"] for row in list_measured(old)}["Read"] == "–"
    assert list_caveats(old, None) == []
