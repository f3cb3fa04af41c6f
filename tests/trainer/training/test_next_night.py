"""A night on some rows: it begins with what the base has, trains only these, and is laid beside the base's files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.kernels.first_rows import begin_users
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.layout import read_rows
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.store.writer import open_pinned, pin_generation
from surf2vec.trainer.system.files import describe_file, read_json, write_json
from surf2vec.trainer.training.infer import FrozenItems, infer_vectors, refit_held_out
from surf2vec.trainer.training.job import Job, LearningSchedule
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.next_night import KNOWN_SQUARES, PriorVectors, fold_night, start_full_night, start_night
from tests.data.corpora import planted_histories, user_hash, write_corpus
from tests.roots.store_contents import read_item_table, read_tables

ITEMS, NEW_ITEMS, PARTITIONS = 60, 4, 4


def new_vectors(num: int) -> dict[str, dict[str, np.ndarray]]:
    tables = {"interest": ["outputs"], "trail": ["outputs", "inputs"]}
    return {part: {name: np.full((num, 8), 0.25, np.float32) for name in names} for part, names in tables.items()}


NO_NEW_ITEMS = new_vectors(0)
CONFIG = TrainConfig(vector_size=16, epochs=3, threads=1)


def base_order(histories: dict[str, list[int]]) -> list[list[str]]:
    """The users of each micro-partition in the order of their rows, as `write_corpus` has them."""
    return [sorted(u for u in histories if user_hash(u) % PARTITIONS == p) for p in range(PARTITIONS)]


def write_changed(folder: Path, histories: dict[str, list[int]], rows: list[list[str]], num_items: int) -> Corpus:
    """The corpus of the changed rows: `rows` has the users of the whole, by row; `histories` those that changed."""
    corpus = write_corpus(folder, histories, PARTITIONS, num_items, max_users=0)
    for partition, users in enumerate(rows):
        places = [users.index(user) for user in corpus.read_ids(partition).to_pylist()]
        assert places == sorted(places), "new users come after those of the base"
        np.save(folder / f"p{partition:05d}.rows.npy", np.array(places, dtype=np.uint32))
    np.save(folder / "counts.npy", np.arange(num_items, dtype=np.int64) + 1)
    manifest = read_json(folder / "manifest.json")
    manifest["files"] = {path.name: describe_file(path) for path in folder.iterdir() if path.name != "manifest.json"}
    write_json(folder / "manifest.json", manifest)
    return open_corpus(folder)


@pytest.fixture
def base(tmp_path: Path) -> Generation:
    write_corpus(tmp_path / "base", planted_histories(100, ITEMS), PARTITIONS, ITEMS)
    train(Job(tmp_path / "base", tmp_path / "store", CONFIG, 4 * 10**9))
    pin_generation(tmp_path / "store", "one")
    return open_pinned(tmp_path / "store", "one")


def night(tmp_path: Path, name: str, base: Generation, changed: dict[str, list[int]], rows: list[list[str]]) -> Any:
    """Begin, train and fold a night; returns the generation begun, that folded, and the corpus."""
    num_new = NEW_ITEMS if base.num_items == ITEMS else 0
    new_items = new_vectors(num_new)
    corpus = write_changed(tmp_path / name, changed, rows, base.num_items + num_new)
    schedule = LearningSchedule(2, 0.03, 0.003)
    job = Job(
        tmp_path / name, tmp_path / "store", CONFIG, 4 * 10**9, start=f"after {base.generation}", schedule=schedule
    )
    start_night(job, corpus, base, new_items, 0.5)
    begun = read_tables(job.store_dir)
    first = open_generation(job.store_dir)
    train(job)
    return begun, first, fold_night(job, corpus, base, {"window_id": name})


def changed_histories(rows: list[list[str]], each: int) -> dict[str, list[int]]:
    return {user: [1, 2, 3, 5] for users in rows for user in users[::each]}


def write_night(tmp_path: Path, config: TrainConfig = CONFIG) -> tuple[Job, Corpus]:
    """The job and the corpus of a night in which every ninth user changed."""
    rows = base_order(planted_histories(100, ITEMS))
    corpus = write_changed(tmp_path / "two", changed_histories(rows, 9), rows, ITEMS)
    return Job(corpus.folder, tmp_path / "store", config, 4 * 10**9, start="after one"), corpus


def test_a_night_trains_some_rows_and_leaves_the_others_bit_for_bit(tmp_path: Path, base: Generation) -> None:
    rows = base_order(planted_histories(100, ITEMS))
    new = next(f"~new-{n}" for n in range(100) if user_hash(f"~new-{n}") % PARTITIONS == 2)
    rows[2].append(new)
    changed = changed_histories(rows, 9) | {new: [4, 8, ITEMS + 1]}
    before = [read_rows(base.folder, base.manifest["users"][str(p)]) for p in range(PARTITIONS)]
    begun, first, folded = night(tmp_path, "two", base, changed, rows)

    for partition, users in enumerate(rows):
        is_changed = np.array([user in changed for user in users])
        is_old = np.array([user != new for user in users])
        after = read_rows(folded.folder, folded.manifest["users"][str(partition)])
        assert len(after.vectors) == len(users)
        old, stayed = before[partition], ~is_changed
        np.testing.assert_array_equal(after.vectors[stayed], old.vectors[stayed[: len(old.vectors)]])
        np.testing.assert_array_equal(after.squares[stayed], old.squares[stayed[: len(old.vectors)]])
        assert (
            (after.vectors[is_changed & is_old] != old.vectors[(is_changed & is_old)[: len(old.vectors)]])
            .any(axis=1)
            .all()
        )
    assert folded.manifest["window_id"] == "two"
    assert folded.read_items().shape == (ITEMS + NEW_ITEMS, 8)
    outputs, table = begun[PARTITIONS], read_item_table(base).outputs
    np.testing.assert_array_equal(outputs.vectors[:ITEMS], table.vectors)
    np.testing.assert_array_equal(outputs.squares[:ITEMS], table.squares * np.float32(0.5))
    np.testing.assert_array_equal(outputs.vectors[ITEMS:], 0.25)
    assert first.position == 0
    assert folded.position == 2 * PARTITIONS, "as many epochs as the schedule says"
    assert folded.config == CONFIG, "what infers later goes by the settings, not by a night's schedule"


def test_nights_of_few_rows_write_few_bytes_until_a_file_is_worth_it(tmp_path: Path, base: Generation) -> None:
    rows = base_order(planted_histories(100, ITEMS))
    _, _, second = night(tmp_path, "two", base, changed_histories(rows, 20), rows)
    entries = second.manifest["users"]
    for partition in map(str, range(PARTITIONS)):
        assert entries[partition]["file"] == base.manifest["users"][partition]["file"]
        assert entries[partition]["delta"]["bytes"] < entries[partition]["bytes"]
    pin_generation(second.folder, "two")
    second = open_pinned(second.folder, "two")
    _, _, third = night(tmp_path, "three", second, changed_histories(rows, 2), rows)
    for partition in range(PARTITIONS):
        entry = third.manifest["users"][str(partition)]
        assert "delta" not in entry
        places = open_corpus(tmp_path / "three").rows(partition)
        stayed = np.setdiff1d(np.arange(len(rows[partition])), places)
        np.testing.assert_array_equal(third.read_users(partition)[stayed], second.read_users(partition)[stayed])


def test_the_changed_begin_fitted_to_the_items(tmp_path: Path, base: Generation) -> None:
    job, corpus = write_night(tmp_path)
    start_night(job, corpus, base, NO_NEW_ITEMS, 1.0)
    begun, first = read_tables(job.store_dir), open_generation(job.store_dir)
    frozen = FrozenItems(first, corpus.count_training_tokens(), 1)
    for partition in range(PARTITIONS):
        histories = corpus.read(partition)
        fitted = infer_vectors(frozen, np.asarray(histories.tokens), histories.offsets, histories.hashes)
        np.testing.assert_array_equal(begun[partition].vectors, fitted.vectors)


def test_a_night_that_only_began_resumes_nothing(tmp_path: Path, base: Generation) -> None:
    job, corpus = write_night(tmp_path)
    start_night(job, corpus, base, NO_NEW_ITEMS, 1.0)
    messages: list[str] = []
    train(job, lambda name, values: messages.append(values.get("message", "")))
    assert any(message.startswith("kernel=cpu") for message in messages)
    assert not [message for message in messages if "resuming" in message or "going on" in message]


def test_a_new_user_begins_where_its_history_says(tmp_path: Path, base: Generation) -> None:
    rows = base_order(planted_histories(100, ITEMS))
    known = rows[1][0]
    history = planted_histories(100, ITEMS)[known]
    new = next(f"~new-{n}" for n in range(100) if user_hash(f"~new-{n}") % PARTITIONS == 1)
    rows[1].append(new)
    (alone, *_), _, _ = night(tmp_path, "two", base, {new: history}, rows)
    cosines = base.read_users(1) @ alone.vectors[0]
    cosines /= np.linalg.norm(base.read_users(1), axis=1) * np.linalg.norm(alone.vectors[0])
    assert cosines[0] > 0.8  # in `base`, its first tile met items that had hardly learned yet
    assert np.sort(cosines)[-2] < 0.8


def test_what_is_begun_or_folded_is_not_done_twice(tmp_path: Path, base: Generation) -> None:
    job, corpus = write_night(tmp_path)
    beginning = base, NO_NEW_ITEMS, 1.0
    start_night(job, corpus, *beginning)
    begun = open_generation(job.store_dir).generation
    start_night(job, corpus, *beginning)
    assert open_generation(job.store_dir).generation == begun
    train(job)
    start_night(job, corpus, *beginning)
    assert open_generation(job.store_dir).manifest["stage"] == "trained", "a training that is under way is left alone"
    folded = fold_night(job, corpus, base, {})
    assert fold_night(job, corpus, base, {}).generation == folded.generation


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (TrainConfig(vector_size=16, hs=1), "a tree is built"),
        (TrainConfig(vector_size=16, bias=0.25), r"its users have a train.bias of 0\.5, not 0\.25"),
        (TrainConfig(vector_size=9), "its vectors are of another kind"),
    ],
)
def test_what_is_trained_otherwise_cannot_go_on(
    tmp_path: Path, base: Generation, config: TrainConfig, reason: str
) -> None:
    job, corpus = write_night(tmp_path, config)
    with pytest.raises(ConfigError, match=rf"{reason}.*--full"):
        start_night(job, corpus, base, NO_NEW_ITEMS, 1.0)


def full_night(tmp_path: Path, base: Generation) -> tuple[Job, Corpus, PriorVectors]:
    """A full night of users of whom every third is not known; items are numbered from the other end, and one is new."""
    turned = {user: [ITEMS - item for item in history] for user, history in planted_histories(100, ITEMS).items()}
    corpus = write_corpus(tmp_path / "full", turned, PARTITIONS, ITEMS + 1, max_users=30)
    rows = [np.where(np.arange(users) % 3 == 0, -1, np.arange(users)) for users in corpus.users]
    known = PriorVectors(base, np.concatenate(([-1], np.arange(ITEMS)[::-1])), rows.__getitem__, PARTITIONS)
    return Job(corpus.folder, tmp_path / "store", CONFIG, 4 * 10**9, start="vectors of one"), corpus, known


def test_a_full_night_begins_with_the_base_but_for_what_it_must_not_know(tmp_path: Path, base: Generation) -> None:
    job, corpus, known = full_night(tmp_path, base)
    before = [base.read_users(partition) for partition in range(PARTITIONS)]
    start_full_night(job, corpus, known)
    begun = read_tables(job.store_dir)
    num_held_out = 0
    for partition in range(PARTITIONS):
        histories, rows = corpus.read(partition), begun[partition]
        anew = begin_users(CONFIG, histories.hashes)
        is_known = (known.users(partition) >= 0) & ~histories.is_held_out
        assert is_known.any()
        assert not is_known.all()
        np.testing.assert_array_equal(rows.vectors, np.where(is_known[:, None], before[partition], anew.vectors))
        np.testing.assert_array_equal(rows.squares, np.where(is_known, KNOWN_SQUARES, 0))
        num_held_out += int(histories.is_held_out.sum())
    assert num_held_out == 30
    outputs = begun[PARTITIONS]
    np.testing.assert_array_equal(outputs.vectors, np.vstack((np.zeros((1, 8)), base.read_items()[::-1])))
    np.testing.assert_array_equal(outputs.squares, [0] + [KNOWN_SQUARES] * ITEMS)
    trail, older = open_generation(job.store_dir).trail, base.trail
    assert trail is not None
    assert older is not None
    for rows, before_rows in ((trail.outputs, older.outputs), (trail.inputs, older.inputs)):
        np.testing.assert_array_equal(rows.vectors[1:], before_rows.vectors[::-1])
        np.testing.assert_array_equal(rows.squares[1:], np.float32(3) * before_rows.squares[::-1])


def test_users_a_full_night_knows_hardly_move_and_the_held_out_come_back_to_theirs(
    tmp_path: Path, base: Generation
) -> None:
    job, corpus, known = full_night(tmp_path, base)
    before = [base.read_users(partition) for partition in range(PARTITIONS)]
    start_full_night(job, corpus, known)
    generation = open_generation(job.store_dir).generation
    start_full_night(job, corpus, known)
    assert open_generation(job.store_dir).generation == generation, "what is begun is not begun again"
    train(job)
    trained = [open_generation(job.store_dir).read_users(partition) for partition in range(PARTITIONS)]

    def begin(partition: int, rows: Any) -> Any:
        return known.begin(CONFIG, partition, corpus.read(partition).hashes[rows], known.users(partition)[rows])

    after = refit_held_out(job, corpus, {}, begin=begin)
    held, free, unknown = [], [], []
    for partition in range(PARTITIONS):
        is_held_out, is_known = corpus.read(partition).is_held_out, known.users(partition) >= 0
        vectors = after.read_users(partition)
        np.testing.assert_array_equal(vectors[~is_held_out], trained[partition][~is_held_out])
        cosines = (before[partition] * vectors).sum(axis=1)
        cosines /= np.linalg.norm(before[partition], axis=1) * np.linalg.norm(vectors, axis=1)
        held.extend(cosines[is_known & is_held_out])
        free.extend(cosines[is_known & ~is_held_out])
        unknown.extend(cosines[~is_known])
    assert np.percentile([*held, *free], 5) > 0.9
    assert np.median(unknown) < np.median(held)
