"""Rejects that a person can open: where, why, how many, and nothing of the lines themselves."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.ingest.rejects import list_rejects
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError, InputError, RejectedError
from tests.roots.ingest import read_events, take_in, write_log


def test_rejects_of_what_was_taken_in_and_of_what_was_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    a = write_log(tmp_path / "a.csv", "u,/a,2020-07-01", "u,/a,whenever", "u,/a,x", f"{'u' * 2000},/a,2020-07-01")
    take_in(root, a, max_reject_ratio=1)
    b = write_log(tmp_path / "b.csv", "u,/a,then")
    with pytest.raises(RejectedError, match=r"which `surf2vec rejects` prints"):
        take_in(root, b)
    found = list_rejects(Root(root), most=2)
    assert found["num_rejected"] == 4
    assert found["counts"] == [
        {"delivery": "taken in", "source": str(a), "reason": "time not readable", "lines": 2},
        {"delivery": "taken in", "source": str(a), "reason": "user id too long", "lines": 1},
        {"delivery": "refused", "source": str(b), "reason": "time not readable", "lines": 1},
    ]
    assert [(row["source"], row["line"]) for row in found["rejects"]] == [(str(a), 3), (str(a), 4), (str(b), 2)]


@pytest.mark.parametrize(
    ("time", "mend"),
    [
        ("soon", {"max_reject_ratio": 0.5}),
        ("soon", None),
        ("01.07.2020 um 10:00", {"time_format": "%d.%m.%Y um %H:%M"}),
        ("soon", {"columns": {"time": "then"}}),
    ],
)
def test_what_was_refused_is_taken_in_once_logs_or_settings_are_mended(
    tmp_path: Path, time: str, mend: dict[str, Any] | None
) -> None:
    """The ratio is raised, the file delivered again under its name, the form of times or their column set."""
    root, days = tmp_path / "root", [f"2020-07-0{day}" for day in range(1, 4)]
    lines = [f"u{day},/a,{day if time == 'soon' else time},{day}" for day in days]
    log = write_log(tmp_path / "a.csv", f"u,/a,{time},2020-07-04", *lines, header="user_id,url,ts,then")
    with pytest.raises(RejectedError, match=f"could not be read: '{time}'.*which `surf2vec rejects` prints"):
        take_in(root, log)
    assert list_rejects(Root(root), most=1)["rejects"] == [
        {"delivery": "refused", "source": str(log), "line": 2, "reason": "time not readable"}
    ]
    if mend is None:
        write_log(log, "u,/a,2020-07-04,2020-07-04", *lines, header="user_id,url,ts,then")
    take_in(root, log, **mend or {})
    assert len(read_events(root)) > 0
    assert {one["delivery"] for one in list_rejects(Root(root), most=1)["counts"]} <= {"taken in"}


def test_a_log_that_comes_late_with_columns_that_the_message_sets(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    with pytest.raises(InputError, match="no file matches"):
        take_in(tmp_path / "root", log)
    write_log(log, "u,/a,2020-07-01", header="visitor,page,when")
    with pytest.raises(InputError) as told:
        take_in(tmp_path / "root", log)
    words = shlex.split(str(told.value))
    pasted = [words[at + 1].rstrip(",") for at, word in enumerate(words) if word == "--set"][:3]
    take_in(tmp_path / "root", log, **dict(load_config(None, pasted).ingest))
    assert [(user, url) for user, url, *_ in read_events(tmp_path / "root")] == [("u", "/a")]


def test_no_rejects_no_root_and_a_damaged_list(tmp_path: Path) -> None:
    root = tmp_path / "root"
    take_in(root, write_log(tmp_path / "a.csv", "u,/a,2020-07-01"))
    assert list_rejects(Root(root), most=20) == {"num_rejected": 0, "counts": [], "rejects": []}
    with pytest.raises(InputError, match="not a surf2vec root"):
        list_rejects(Root(tmp_path / "nothing"), most=20)
    (root / "rejects").mkdir()
    (root / "rejects" / "x.parquet").write_text("x")
    with pytest.raises(DamageError, match=r"x\.parquet cannot be read"):
        list_rejects(Root(root), most=20)
