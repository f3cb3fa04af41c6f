"""The log chooses the trail's weight and the popularity: only beyond chance, by users whom nobody else asks, and once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.evaluation import scores as scores_module
from surf2vec.tasks.evaluation.evaluate import join_sides, questions, rank_held_out
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.training import choice
from surf2vec.tasks.training.choice import (
    POPULARITIES,
    WEIGHTS,
    Values,
    choose_by_log,
    choose_values,
    commit_popularity,
    pick,
)
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.system.files import read_json, write_json
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import TRAIL_WEIGHT, BothParts, read_item_vectors, weight_of
from tests.data.corpora import write_corpus
from tests.roots.scores import score_by_vectors
from tests.tasks.corpus.test_order import walk

USUAL = (TRAIL_WEIGHT, 0.0)


def ranks(**factors: float) -> dict[Values, np.ndarray]:
    """The ranks of 1,000 users: with the usual values 1 to 1,000, with the named weights every other one by a factor."""
    given = {float(name.replace("w", "0.")): factor for name, factor in factors.items()}
    usual, every_other = np.arange(1, 1001), np.arange(1000) % 2 == 0
    return {(weight, 0.0): np.where(every_other, usual * given.get(weight, 1), usual) for weight in WEIGHTS}


def test_lower_ranks_beyond_two_standard_errors_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MAX_RANK", 10**6)
    chosen = pick(ranks(w9=0.5, w8=0.75), USUAL)
    assert chosen["trail_weight"] == 0.9
    assert chosen["gain"] == pytest.approx(np.log(2) / 2)
    assert chosen["standard_error"] == pytest.approx(np.log(2) / 2 / 1000**0.5, rel=0.01)
    assert chosen["num_users"] == 1000


def test_a_popularity_is_chosen_as_a_weight_is() -> None:
    chosen = pick(ranks() | {(0.5, 0.1): np.maximum(1, np.arange(1, 1001) // 2)}, USUAL)
    assert (chosen["trail_weight"], chosen["popularity"]) == (0.5, 0.1)


def test_ranks_that_nobody_reads_do_not_count() -> None:
    far = {(0.9, 0.0): np.where(np.arange(1, 1001) > 300, 250, np.arange(1, 1001) + 1)}
    assert pick(ranks() | far, USUAL)["trail_weight"] == TRAIL_WEIGHT


def test_lower_ranks_by_chance_are_not_chosen() -> None:
    by_one_user = ranks(w9=1) | {(0.9, 0.0): np.where(np.arange(1000) == 0, 1e-3, 1) * np.arange(1, 1001)}
    assert pick(by_one_user, USUAL)["trail_weight"] == TRAIL_WEIGHT


@pytest.mark.parametrize("found", [ranks(), ranks(w2=2.0), {}])
def test_otherwise_the_usual_values_stay(found: dict[Values, np.ndarray]) -> None:
    chosen = pick(found, USUAL)
    assert (chosen["trail_weight"], chosen["popularity"]) == USUAL
    assert "gain" not in chosen


def make(tmp_path: Path, **settings: object) -> tuple[Root, Corpus]:
    root = Root(tmp_path)
    corpus = write_corpus(root.corpus("window"), walk(400), partitions=4, num_items=50, max_users=300)
    manifest = read_json(corpus.folder / "manifest.json")
    keys = sorted(key for part in range(4) for key in keys_of(corpus, part))
    manifest |= {"held_out_key_max": keys[339], "evaluated_key_max": keys[299], "num_held_out": 340, "num_choosing": 40}
    write_json(corpus.folder / "manifest.json", manifest)
    config = TrainConfig(vector_size=16, epochs=2, threads=1, **settings)  # type: ignore[arg-type]
    train(Job(corpus.folder, root.store, config, 4 * 10**9))
    return root, open_corpus(corpus.folder)


def keys_of(corpus: Corpus, partition: int) -> list[int]:
    from surf2vec.trainer.store.tokens import held_out_keys

    histories = corpus.read(partition)
    return [int(key) for key in held_out_keys(histories.hashes)]


def test_the_users_who_choose_are_not_evaluated(tmp_path: Path) -> None:
    _, corpus = make(tmp_path)
    held, evaluated = np.zeros(2, int), np.zeros(2, int)
    for partition in range(4):
        histories = corpus.read(partition)
        assert (histories.ends[histories.is_held_out] < histories.offsets[1:][histories.is_held_out]).all()
        held += [histories.is_held_out.sum(), (histories.is_held_out & ~histories.is_evaluated).sum()]
        evaluated += [histories.is_evaluated.sum(), len(histories.held_out_items())]
    assert held.tolist() == [340, 40]
    assert evaluated.tolist() == [300, 300]
    assert corpus.num_evaluated == 300


def test_the_choice_is_committed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, corpus = make(tmp_path)
    chosen = choose_values(root, corpus, None, ignore_event)
    assert (chosen["num_users"], set(chosen["hit_at_20"])) == (40, {f"{weight:g}" for weight in (0, *WEIGHTS, 1)})
    generation = open_generation(root.store)
    assert weight_of(generation) == chosen["trail_weight"]
    monkeypatch.setattr(choice, "pick", lambda *ranks: pytest.fail("it was chosen already"))
    assert choose_values(root, corpus, None, ignore_event) == chosen
    assert open_generation(root.store).generation == generation.generation


def test_vectors_of_one_part_have_a_popularity_and_no_weight(tmp_path: Path) -> None:
    root, corpus = make(tmp_path, parts="interest", trail_weight=0.0)
    chosen = choose_values(root, corpus, None, ignore_event)
    assert (chosen["num_users"], chosen["popularity"] in POPULARITIES) == (40, True)
    assert not {"trail_weight", "hit_at_20"} & set(chosen)


def test_values_that_are_set_are_left_alone(tmp_path: Path) -> None:
    root, corpus = make(tmp_path, trail_weight=0.3, discount=0.4)
    assert choose_values(root, corpus, None, ignore_event) == {}
    assert weight_of(open_generation(root.store)) == 0.3


@pytest.mark.parametrize("parts", ["both", "interest", "trail"])
def test_a_popularity_moves_the_scores_by_the_log_of_the_count(tmp_path: Path, parts: str) -> None:
    """For every user, known or inferred; and the settings say so, by which inference and the next night correct their scores."""
    root, corpus = make(tmp_path, parts=parts, trail_weight={"interest": 0.0, "trail": 1.0}.get(parts))
    before, counts = open_generation(root.store), corpus.count_training_tokens()
    scores = BothParts(before, corpus).read_users(0) @ read_item_vectors(before).T
    after = commit_popularity(root.store, before, 0.2, counts, {"trail_weight": TRAIL_WEIGHT, "popularity": 0.2})
    assert after.config.popularity == 0.2
    moved = BothParts(after, corpus).read_users(0) @ read_item_vectors(after).T - scores
    np.testing.assert_allclose(moved, np.broadcast_to(0.2 * np.log(np.maximum(counts, 1)), moved.shape), atol=2e-5)
    assert commit_popularity(root.store, after, 0.2, counts, {}).manifest["items"] == after.manifest["items"]


@pytest.mark.parametrize("piece_bytes", [10**9, 1])
def test_the_hits_are_those_of_ranking_with_each_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(scores_module, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(scores_module, "GRAIN_ITEMS", 7)
    root, corpus = make(tmp_path)
    generation = open_generation(root.store)
    found: dict[Values, np.ndarray] = {}
    monkeypatch.setattr(choice, "pick", lambda ranks, usual: found.update(ranks) or pick(ranks, usual))
    choose_by_log(corpus, generation)
    assert len(found) == len(WEIGHTS) * len(POPULARITIES)
    counts = corpus.count_training_tokens()
    for weight, popularity in found:
        weighed = replace(generation, manifest=generation.manifest | {"choice": {"trail_weight": weight}})
        asked = ((one,) for one, _ in questions(corpus, BothParts(weighed, corpus), by_choosing=True))
        [(question,)] = join_sides(asked)
        users = np.column_stack((question.vectors, np.full(len(question.items), popularity, np.float32)))
        items = np.column_stack((read_item_vectors(weighed), np.log(np.maximum(counts, 1)).astype(np.float32)))
        expected = rank_held_out(replace(question, vectors=users), score_by_vectors(items)).ranks
        assert np.mean(found[weight, popularity] == expected) > 0.97  # sums in another order
