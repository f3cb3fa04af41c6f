"""Rejects that a person can open: where, why, how many, and nothing of the lines themselves."""

from pathlib import Path

import pytest

from tasks.ingest.rejects import list_rejects
from tasks.root.run import Root
from tests.ingested import take_in, write_log
from trainer.errors import DamageError, InputError, RejectedError


def test_rejects_of_what_was_taken_in_and_of_what_was_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    a = write_log(tmp_path / "a.csv", "u,/a,2020-07-01", "u,/a,whenever", "u,/a,x", ",/a,2020-07-01")
    take_in(root, a, max_reject_ratio=1)
    b = write_log(tmp_path / "b.csv", "u,/a,then")
    with pytest.raises(RejectedError, match=r"which `surf2vec rejects` prints"):
        take_in(root, b)
    found = list_rejects(Root(root), most=2)
    assert found["num_rejected"] == 4
    assert found["counts"] == [
        {"delivery": "taken in", "source": str(a), "reason": "time not readable", "lines": 2},
        {"delivery": "taken in", "source": str(a), "reason": "no user", "lines": 1},
        {"delivery": "refused", "source": str(b), "reason": "time not readable", "lines": 1},
    ]
    assert [(row["source"], row["line"]) for row in found["rejects"]] == [(str(a), 3), (str(a), 4), (str(b), 2)]


def test_a_first_delivery_that_was_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", "u,/a,then")
    with pytest.raises(RejectedError):
        take_in(tmp_path / "root", log)
    assert list_rejects(Root(tmp_path / "root"), most=20)["num_rejected"] == 1


def test_no_rejects_no_root_and_a_damaged_list(tmp_path: Path) -> None:
    root = tmp_path / "root"
    take_in(root, write_log(tmp_path / "a.csv", "u,/a,2020-07-01"))
    assert list_rejects(Root(root), most=20) == {"num_rejected": 0, "counts": [], "rejects": []}
    with pytest.raises(InputError, match="no surf2vec root"):
        list_rejects(Root(tmp_path / "nothing"), most=20)
    (root / "rejects").mkdir()
    (root / "rejects" / "x.parquet").write_text("x")
    with pytest.raises(DamageError, match=r"x\.parquet cannot be read"):
        list_rejects(Root(root), most=20)
