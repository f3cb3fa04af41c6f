"""What a manifest carries from one process to the next."""

from typing import Any

import pytest

from surf2vec.trainer.training.record import Record, read_record


@pytest.mark.parametrize(
    ("manifest", "num_processes"),
    [
        ({}, 1),
        ({"stage": "training", "num_processes": 2}, 3),
        ({"stage": "trained", "num_processes": 3}, 3),
        ({"stage": "refitted", "num_processes": 3}, 3),
    ],
)
def test_a_process_counts_if_it_goes_on(manifest: dict[str, Any], num_processes: int) -> None:
    assert read_record(manifest).num_processes == num_processes


def test_what_is_written_is_read() -> None:
    record = Record(position=3, train_seconds=1.5, bytes_read=7)
    record.curve.begin_epoch()
    assert read_record(record.to_json() | {"stage": "trained"}) == record
