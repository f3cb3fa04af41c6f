"""What is known of one user, told from files whose content is known."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.forgetting.forget import forget
from surf2vec.tasks.queries.explain import explain_user
from surf2vec.tasks.queries.similar import find_history
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.kernels.cpu import trail_vectors
from surf2vec.trainer.store.generation import open_generation
from tests.data.corpora import held_out_position, planted_histories, user_hash
from tests.roots.releases import read_users
from tests.roots.serving import deliver, make_served
from tests.roots.trail_releases import corpus_of, make_trail_root
from tests.roots.training import MEMORY_BYTES

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


def test_the_last_pages_have_their_weights_in_the_trail_of_each_release(tmp_path: Path) -> None:
    root = make_trail_root(tmp_path / "root")
    told = explain_user(root, CONFIG, "user-3")["releases"]
    assert [release["release"] for release in told] == ["narrow", "reduced", "whole"]
    urls, weights = zip(*(page.values() for page in told[2]["pages"]), strict=True)
    corpus = corpus_of(root)
    _, row, histories = find_history(corpus, "user-3") or pytest.fail("no history")
    tokens = histories.tokens[histories.offsets[row] : histories.offsets[row + 1]]
    names = pq.read_table(corpus.vocabulary)["url"].to_pylist()
    assert list(urls) == [names[item] for item in tokens[::-1][:5]]
    path = open_generation(root.store).trail
    assert path is not None
    summed = trail_vectors(path, tokens, np.array([0]), np.array([len(tokens)]), 5)[0]
    by_hand = np.float32(weights) @ path.inputs.vectors[tokens[::-1][:5]]
    np.testing.assert_allclose(by_hand[:-2], summed[:-2], rtol=1e-4, atol=1e-5)
    assert told[0]["pages"] == told[1]["pages"] == told[2]["pages"]
    shutil.rmtree(corpus.folder)
    assert [release["pages"] for release in explain_user(root, CONFIG, "user-3")["releases"]] == [[], [], []]
