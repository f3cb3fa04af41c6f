"""Corpora that continue a base: a literal night, what holds for any nights by a plain model, and the same bytes always."""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.activity.count import NAMES, read_activity
from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus import clean_pass
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import Base, CorpusRequest
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.system.files import write_manifest_json
from tests.data.cleaning_model import read_vocabulary
from tests.data.continued_corpora import Night, Rows, build, check_night, continue_plainly, histories_of, in_window
from tests.data.event_files import Event, moment, write_events
from tests.faults.exits import run_dying
from tests.tasks.corpus.test_build import EVERYTHING, MEMORY_BYTES, digests, many_events, random_events, random_settings


def visits(user: str, *urls: str, day: int) -> list[Event]:
    return [Event(user, url, moment(day, n), f"{user}-{day}", n) for n, url in enumerate(urls)]


FIRST = [
    *visits("ann", "/a", "/b", day=1), *visits("bob", "/a", "/c", day=1), *visits("cat", "/b", "/a", day=2),
    *visits("dan", "/c", "/d", day=2),
]  # fmt: skip
EPOCH_DAY = (date(2026, 1, 1) - date(1970, 1, 1)).days
SECOND = [*visits("ann", "/d", day=3), *visits("cat", "/b", day=3), *visits("eve", "/e", "/a", "/b", day=3)]


@pytest.fixture
def nights(tmp_path: Path) -> tuple[Corpus, Corpus]:
    """Day 1 and 2, then day 2 and 3, in one micro-partition: ann and cat change, dan does not, bob leaves, eve is new."""
    root = write_events(tmp_path, FIRST + SECOND, partitions=1)
    base = build(root, Night(1, 2), None)
    return base, build(root, Night(2, 3, retain_days=1), base)


def activity_of(corpus: Corpus, partition: int = 0) -> dict[str | None, bytes]:
    rows = [row.tobytes() for row in read_activity(corpus, partition)]
    return dict(zip(corpus.read_ids(partition).to_pylist(), rows, strict=True))


def test_activity_is_of_all_events_of_the_window(tmp_path: Path, nights: tuple[Corpus, Corpus]) -> None:
    """A night that continues has what a whole one has. Who has no event in the window keeps the numbers; a hole has zeros."""
    base, corpus = nights
    root = Root(tmp_path)
    continued, whole = activity_of(corpus), activity_of(build(root, Night(2, 3), None))
    assert continued.pop(None) == bytes(4 * len(NAMES))
    assert continued == {user: whole[user] for user in ("ann", "cat", "dan", "eve")}
    retained, before = activity_of(build(root, Night(3, 3), base)), activity_of(base)
    assert {user: retained[user] for user in ("bob", "dan")} == {user: before[user] for user in ("bob", "dan")}
    assert retained["ann"] != before["ann"]
    full = activity_of(build(root, Night(3, 3), base, is_full=True))
    assert full == retained


@pytest.mark.parametrize("has_digests", [True, False])
def test_activity_is_counted_again_only_for_users_whose_events_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_digests: bool
) -> None:
    """A corpus without digests, as `forget` and `restore` leave it, is continued as well: all users are counted again."""
    root = write_events(tmp_path, FIRST + SECOND, partitions=1)
    base, counted, count = build(root, Night(1, 2), None), [], clean_pass.count_activity
    if not has_digests:
        del base.manifest["files"]["p00000.digests.npy"]
        write_manifest_json(base.folder / "manifest.json", base.manifest)

    def watch(con: Any, events: pl.DataFrame, num_users: int) -> Iterator[Any]:
        counted.append(events["user_ix"].unique().to_list())
        return count(con, events, num_users)

    monkeypatch.setattr(clean_pass, "count_activity", watch)
    found = activity_of(build(root, Night(2, 3, retain_days=1), base))
    ann, cat, dan, eve = range(4)
    assert counted == [[ann, cat, eve] if has_digests else [ann, cat, dan, eve]]
    whole = activity_of(build(root, Night(2, 3), None))
    assert {user: found[user] for user in whole} == whole


def test_a_literal_night(nights: tuple[Corpus, Corpus]) -> None:
    base, corpus = nights
    a, b, c, d, e = range(5)
    assert [item["url"] for item in read_vocabulary(base)] == ["/a", "/b", "/c", "/d"]
    assert [tuple(item.values()) for item in read_vocabulary(corpus)] == [
        (a, "/a", 2, 2), (b, "/b", 3, 2), (c, "/c", 1, 1), (d, "/d", 2, 2), (e, "/e", 1, 1)
    ]  # fmt: skip
    assert histories_of(base, 0) == [("ann", [a, b]), ("bob", [a, c]), ("cat", [b, a]), ("dan", [c, d])]
    assert histories_of(corpus, 0) == [
        ("ann", [d]), (None, []), ("cat", [b, a, b]), ("dan", [c, d]), ("eve", [e, a, b])
    ]  # fmt: skip
    first = (date(2026, 1, 1) - date(1970, 1, 1)).days
    assert corpus.read_users(0)["last_day"].to_pylist() == [first + 2, 0, first + 2, first + 1, first + 2]
    assert corpus.read_users(0)["hash"].to_pylist()[1] == 0
    counted = {name: corpus.manifest[name] for name in ("users", "holes", "num_users", "num_tokens", "base")}
    assert counted == {"users": [5], "holes": [1], "num_users": 4, "num_tokens": 9, "base": base.manifest["window_id"]}
    names = ("num_changed", "num_new_users", "num_left", "num_new_items", "num_held_out")
    assert [corpus.manifest[name] for name in names] == [3, 1, 1, 1, 1]


def test_in_a_full_night_users_without_events_come_after_the_others(tmp_path: Path) -> None:
    root = write_events(tmp_path, FIRST + SECOND, partitions=1)
    base = build(root, Night(1, 2), None)
    between = build(root, Night(2, 3), base)
    assert histories_of(between, 0)[1] == ("bob", []), "without events already"
    plain = build(root, Night(3, 3), None)
    kept = histories_of(plain, 0)
    assert [user for user, _ in kept] == ["ann", "cat", "eve"]
    for retain_days, stay in ((2, ["bob", "dan"]), (1, ["dan"]), (0, [])):
        corpus = build(root, Night(3, 3, retain_days), between, is_full=True)
        assert histories_of(corpus, 0) == [*kept, *((user, []) for user in stay)]
        assert corpus.read_users(0)["last_day"].to_pylist()[3:] == [EPOCH_DAY + day for day in (0, 1)][2 - len(stay) :]
        assert read_vocabulary(corpus) == read_vocabulary(plain), "items are numbered anew"
        assert (corpus.manifest["base"], corpus.manifest["holes"]) == (None, [0])
        assert corpus.manifest["num_users"] == 3 + len(stay)
        assert corpus.manifest["num_held_out"] == plain.manifest["num_held_out"]
        assert not (corpus.folder / "changed").exists()
        assert [found.message for found in examine(root) if found.level != "ok" and "corpus" in found.place] == []
    path = between.folder / "p00000.users.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamageError, match="set nightly.full_from_champion to false"):
        build(root, Night(3, 3, 7), between, is_full=True)


def test_the_rows_to_train_are_a_corpus_of_their_own(nights: tuple[Corpus, Corpus]) -> None:
    base, corpus = nights
    changed = open_corpus(corpus.folder / "changed")
    a, b, d, e = 0, 1, 3, 4
    assert histories_of(changed, 0) == [("ann", [d]), ("cat", [b, a, b]), ("eve", [e, a, b])]
    rows = changed.rows(0)
    assert rows is not None
    assert (rows.tolist(), rows.dtype) == ([0, 2, 4], np.uint32)
    assert (corpus.rows(0), base.rows(0)) == (None, None)
    histories = changed.read(0)
    # The base had ann's and cat's items, if cat's /a is new.
    assert histories.is_held_out.tolist() == [False, False, True]
    assert histories.held_out_items().tolist() == [b]
    assert changed.manifest["window_id"] == f"{corpus.manifest['window_id']}/changed"
    assert (changed.num_users, changed.num_items, changed.manifest["num_tokens"]) == (3, 5, 7)
    assert corpus.count_training_tokens().tolist() == changed.count_training_tokens().tolist() == [2, 2, 1, 2, 1]
    assert not (changed.folder / "vocabulary.parquet").exists()


def test_who_has_nothing_new_is_not_trained_and_a_night_may_change_nothing(tmp_path: Path) -> None:
    root = write_events(tmp_path, FIRST)
    base = build(root, Night(1, 2), None)
    again = build(root, Night(1, 2), base)
    assert again.manifest["window_id"] != base.manifest["window_id"]
    assert [histories_of(again, p) for p in range(4)] == [histories_of(base, p) for p in range(4)]
    changed = open_corpus(again.folder / "changed")
    assert (changed.num_users, changed.manifest["num_held_out"], changed.manifest["users"]) == (0, 0, [0] * 4)
    assert changed.count_training_tokens().tolist() == again.count_training_tokens().tolist()
    assert changed.count_training_tokens().sum() == again.manifest["num_tokens"] == 8


def check_activity(corpus: Corpus, whole: Corpus) -> None:
    """Users with events in the window have the activity that a corpus without a base has."""
    for partition in range(corpus.num_partitions):
        found, anew = activity_of(corpus, partition), activity_of(whole, partition)
        shared = found.keys() & anew.keys()
        assert {user: found[user] for user in shared} == {user: anew[user] for user in shared}


random_nights = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 3)).map(lambda n: Night(n[0], n[0] + n[1], n[2])),
    min_size=2,
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(random_events, random_settings, random_nights, st.sampled_from([1, 2, 4]), st.integers(0, 4))
def test_any_nights_continue_as_the_plain_rules_say(
    events: list[Event], config: IngestConfig, nights: list[Night], partitions: int, max_users: int
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        root = write_events(folder, events, partitions)
        base, before = None, Rows()
        for night in nights:
            wanted = in_window(events, night)
            rows = continue_plainly(before, wanted, config, night.retain_days, partitions)
            if not rows.tokens:
                with pytest.raises(InputError):
                    build(root, night, base, config, max_users)
                return
            corpus = build(root, night, base, config, max_users, threads=2)
            if base:
                check_night(corpus, base, rows, before)
                all_users = EVERYTHING.model_copy(update={"max_day_events": config.max_day_events})
                check_activity(corpus, build(root, night, None, all_users, max_users=0))
            base, before = corpus, rows
        assert [found.message for found in examine(root) if found.level != "ok" and "corpus" in found.place] == []
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Corpus]:
    """A root of 20,000 events on five days, and the corpus of the first four."""
    root = write_events(tmp_path_factory.mktemp("many"), many_events(), partitions=16)
    return root, build(root, Night(1, 4), None, IngestConfig())


@pytest.mark.long
@pytest.mark.parametrize(("group_events", "threads", "factor"), [(1, 2, 1), (3000, 2, 3), (9000, 1, 2)])
def test_the_bytes_do_not_depend_on_memory_threads_or_groups(
    many: tuple[Root, Corpus], monkeypatch: pytest.MonkeyPatch, group_events: int, threads: int, factor: int
) -> None:
    root, base = many
    corpus = build(root, Night(2, 5), base, IngestConfig(), max_users=50)
    expected = digests(corpus)
    assert corpus.manifest["num_changed"] > corpus.manifest["num_held_out"] == 50
    shutil.rmtree(corpus.folder)
    monkeypatch.setattr("tests.data.continued_corpora.MEMORY_BYTES", MEMORY_BYTES * factor)
    monkeypatch.setattr(clean_pass, "spare_bytes", lambda memory_bytes: memory_bytes)
    monkeypatch.setattr(clean_pass, "BYTES_PER_EVENT", MEMORY_BYTES * factor // group_events)
    assert digests(build(root, Night(2, 5), base, IngestConfig(), max_users=50, threads=threads)) == expected


def test_the_id_depends_on_the_base_and_how_long_users_stay(many: tuple[Root, Corpus]) -> None:
    root, base = many
    bases = [
        None,
        Base(base.manifest["window_id"], 30),
        Base(base.manifest["window_id"], 31),
        Base("0123456789abcdef", 30),
    ]
    names = [CorpusRequest(IngestConfig(), EvaluateConfig(), base=one).name(root) for one in bases]
    assert len(set(names)) == 4
    told = build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig(), base=bases[1]), MEMORY_BYTES, 1)
    assert told["window_id"] == names[1]
    assert told["base"] == base.manifest["window_id"]
    assert told["num_changed"] > 0


@pytest.mark.parametrize(
    "name", ["vocabulary.parquet", "p00000.users.parquet", "p00000.tokens.npy", "p00000.digests.npy"]
)
def test_a_damaged_base_is_named_and_nothing_is_left(tmp_path: Path, name: str) -> None:
    root = write_events(tmp_path, FIRST, partitions=1)
    base = build(root, Night(1, 1), None)
    path = base.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamageError, match=f"{path} .*; or run with --full"):
        build(root, Night(1, 2), base)
    assert list((root.path / "corpus").iterdir()) == [base.folder]
    assert not list(root.temporary.iterdir())


def continue_in(path: Path, base: str) -> None:
    days = date(2026, 1, 2), date(2026, 1, 3)
    request = CorpusRequest(EVERYTHING, EvaluateConfig(), *days, base=Base(base, 1))
    build_corpus(Root(path), request, MEMORY_BYTES, 1)


@pytest.mark.slow
def test_a_build_that_dies_at_any_step_leaves_no_corpus_or_a_whole_one(
    nights: tuple[Corpus, Corpus], tmp_path: Path
) -> None:
    base, corpus = nights
    root, expected, deaths = Root(tmp_path), digests(corpus), 0
    for step in range(1, 100, 2):
        shutil.rmtree(corpus.folder)
        code = run_dying(continue_in, tmp_path, base.folder.name, step=step)
        is_whole = corpus.folder.exists()
        continue_in(tmp_path, base.folder.name)
        assert digests(corpus) == expected
        assert sorted((tmp_path / "corpus").iterdir()) == sorted([base.folder, corpus.folder])
        assert is_whole or not list(root.temporary.iterdir())
        if code == 0:
            break
        assert code == 9
        deaths += 1
    assert deaths >= 6


@pytest.mark.slow
@pytest.mark.parametrize(("log", "days"), [("yoochoose_100k", 8), ("entree", 928)])
def test_three_nights_on_a_real_log(data_dir: Path, tmp_path: Path, log: str, days: int) -> None:
    """A shop's clicks of eight days, and a guide's visits of 928 days, told as eight: windows of six that move by a day."""
    table: dict[str, list[Any]] = pq.read_table(data_dir / f"{log}.parquet").to_pydict()
    times = [at.replace(tzinfo=UTC) for at in table["ts"]]
    midnight = datetime.combine(min(times).date(), time(), UTC)
    events = [
        Event(user, url, moment(1) + (at - midnight) * 8 / days, line=line)
        for line, (user, url, at) in enumerate(zip(table["user_id"], table["url"], times, strict=True))
    ]
    root, config = write_events(tmp_path, events), IngestConfig()
    base, before = None, Rows()
    for night in (Night(1, 6), Night(2, 7, 5), Night(3, 8, 5)):
        rows = continue_plainly(before, in_window(events, night), config, night.retain_days, 4)
        corpus = build(root, night, base, config, threads=2)
        if base:
            check_night(corpus, base, rows, before)
            assert min(corpus.manifest[name] for name in ("num_changed", "num_new_users", "num_left")) > 0
        base, before = corpus, rows
