"""What is known of one user, told from files whose content is known."""

from pathlib import Path

import numpy as np
import pytest

from tasks.config import PublishConfig
from tasks.forgetting.forget import forget
from tasks.queries.explain import explain_user
from tasks.root.run import Root
from tests.corpora import held_out_position, planted_histories, user_hash
from tests.releases import read_users
from tests.served import deliver, make_served
from tests.trained import MEMORY_BYTES
from trainer.errors import InputError

CONFIG = PublishConfig()
WHO = "user-8"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """Two releases of one space; logs a.csv and b.csv hold the history of user-8 twice, on the same days."""
    return make_served(tmp_path_factory.mktemp("explain") / "root", CONFIG, ("r1", "r2"))


def test_everything_that_is_known(root: Root) -> None:
    told = explain_user(root, CONFIG, WHO)
    history = planted_histories(60)[WHO]
    both = [*history, *planted_histories(9)[WHO]]
    assert told["micro_partition"] == user_hash(WHO) % 4
    assert told["forgotten_on"] is None
    assert told["events"]["count"] == len(both)
    assert sum(told["events"]["days"].values()) == len(both)
    assert told["events"]["first"] == "2026-01-01T00:00:00"
    assert set(told["events"]["days"]) <= {"2026-01-01", "2026-01-02"}
    corpus = told["corpus"]
    assert corpus["micro_partition"] == told["micro_partition"]
    assert corpus["tokens"] == sum(item["count"] for item in corpus["items"]) <= len(both)
    assert {item["url"] for item in corpus["items"]} <= {f"/page/{item}" for item in both}
    assert corpus["is_held_out"] == (corpus["held_out_item"] is not None)
    assert held_out_position(history) >= 0
    vectors = [read_users(root.export(release))[WHO] for release in ("r1", "r2")]
    assert [(r["release"], r["version"], r["aliases"]) for r in told["releases"]] == [
        ("r1", 1, []), ("r2", 2, ["challenger", "champion"]),
    ]  # fmt: skip
    assert [r["norm"] for r in told["releases"]] == pytest.approx([np.linalg.norm(v) for v in vectors], abs=1e-6)
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert told["movement"] == [{"from": "r1", "to": "r2", "cosine": pytest.approx(cosine, abs=1e-6)}]


def test_a_stranger_is_nowhere(root: Root) -> None:
    with pytest.raises(InputError, match="nothing is known of this user"):
        explain_user(root, CONFIG, "a stranger")


def test_who_was_forgotten(root: Root) -> None:
    forget(root, ["user-11"], CONFIG, MEMORY_BYTES)
    told = explain_user(root, CONFIG, "user-11")
    assert told["forgotten_on"] is not None
    assert (told["events"]["count"], told["corpus"], told["releases"]) == (0, None, [])
    assert explain_user(root, CONFIG, WHO)["releases"][0]["version"] == 3


def test_undated_events_and_a_root_without_releases(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    root.path.mkdir()
    deliver(root, "a.csv", "ann,/a,2026-01-01T10:00:00Z", "ann,/b,2026-01-03T00:00:01Z", "bob,/b,2026-01-03T00:00:01Z")
    told = explain_user(root, CONFIG, "ann")
    days = {"2026-01-01": 1, "2026-01-03": 1}
    assert told["events"] == {"count": 2, "first": "2026-01-01T10:00:00", "last": "2026-01-03T00:00:01", "days": days}
    assert told["corpus"] is None
    assert not (root.path / "mlflow.db").exists()
