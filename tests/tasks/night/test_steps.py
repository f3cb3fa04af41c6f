"""What a run says that it is about to do."""

import pytest

from surf2vec.tasks.night.summary import announce_run
from surf2vec.tasks.root.records import RunRecord

BASE = {"release": "r1", "window_id": "w1", "space_id": "s1"}


@pytest.mark.parametrize(
    ("told", "steps", "base", "because"),
    [
        ("run r2 trains all users: there is no champion", [], None, "there is no champion"),
        ("run r2 continues from release r1: only users whose pages changed are trained", ["ingest"], BASE, None),
        (
            "resuming run r2, of 2026-11-24 03:10; done: corpus, train", ["ingest", "corpus", "train"], None,
            "there is no champion",
        ),
        (
            "nothing to do: run r2, of 2026-11-24 03:10, is complete already; its results follow",
            ["ingest", "corpus", "train", "register", "report"], None, "there is no champion",
        ),
        (
            "nothing to do: run r2, of 2026-11-24 03:10, found no user whose pages changed since release r1",
            ["ingest", "corpus", "unchanged"], BASE, None,
        ),
    ],
)  # fmt: skip
def test_a_run_says_what_is_so_now(
    told: str, steps: list[str], base: dict[str, str] | None, because: str | None
) -> None:
    values = {"unchanged": {"release": "r1"}}
    record = RunRecord.model_validate(
        {
            "run_id": "r2", "created_at": "2026-11-24T03:10:59+00:00", "base": base, "full_because": because,
            "steps": {name: {"digest": ""} | values.get(name, {}) for name in steps},
        }
    )  # fmt: skip
    assert announce_run(record) == told
