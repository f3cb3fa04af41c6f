"""What a run says that it is about to do."""

from typing import Any

import pytest

from flows.steps import tell_run

STORY: dict[str, Any] = {"run_id": "r2", "created_at": "2026-11-24T03:10:59+00:00", "base": None, "full_because": None}


@pytest.mark.parametrize(
    ("told", "steps", "base", "because"),
    [
        ("run r2 trains all users: there is no champion", [], None, "there is no champion"),
        ("run r2 goes on from release r1: only users whose pages changed are trained", ["ingest"], {"release": "r1"}, None),
        (
            "run r2, of 2026-11-24 03:10, goes on; done before: corpus, train", ["ingest", "corpus", "train"], None,
            "there is no champion",
        ),
        (
            "nothing to do: run r2, of 2026-11-24 03:10, did all of this; what follows is what it made",
            ["ingest", "corpus", "train", "register", "report"], None, "there is no champion",
        ),
        (
            "nothing to do: run r2, of 2026-11-24 03:10, found no user whose pages changed since release r1",
            ["ingest", "corpus", "unchanged"], {"release": "r1"}, None,
        ),
    ],
)  # fmt: skip
def test_a_run_says_what_is_so_now(
    told: str, steps: list[str], base: dict[str, str] | None, because: str | None
) -> None:
    story = STORY | {"steps": {name: {"release": "r1"} for name in steps}, "base": base, "full_because": because}
    assert tell_run(story) == told
