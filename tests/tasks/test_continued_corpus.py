"""Corpora that continue a base: a literal night, what holds for any nights by a plain model, and the same bytes always."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import corpus as corpus_module
from tasks.cleaning import UNDATED
from tasks.config import EvaluateConfig, IngestConfig
from tasks.corpus import build_corpus, window_id
from tasks.doctor import examine
from tasks.run import Root
from tasks.window import Base
from tests.corpora import held_out_position, user_hash
from tests.dying import run_dying
from tests.event_files import EPOCH, Event, moment, write_events
from tests.tasks.test_corpus import (
    EVERYTHING,
    MEMORY_BYTES,
    clean_plainly,
    many_events,
    random_events,
    random_settings,
    read_vocabulary,
)
from trainer.corpus import Corpus, held_out_keys, open_corpus
from trainer.errors import DamageError, InputError
from trainer.files import digest_file, verify_file


@dataclass(frozen=True)
class Night:
    """A window, first and last day of January 2026, and how long users stay."""

    since: int
    until: int
    retain_days: int = 30


def build(
    root: Root,
    night: Night,
    base: Corpus | None,
    config: IngestConfig = EVERYTHING,
    max_users: int = 20_000,
    threads: int = 1,
) -> Corpus:
    continued = base and Base(base.manifest["window_id"], night.retain_days)
    days = date(2026, 1, night.since), date(2026, 1, night.until)
    told = build_corpus(
        root, config, EvaluateConfig(max_users=max_users), *days, None, MEMORY_BYTES, threads, base=continued
    )
    return open_corpus(root.corpus(told["window_id"]))


def histories_of(corpus: Corpus, partition: int) -> list[tuple[str | None, list[int]]]:
    """User and tokens of every row."""
    histories = corpus.read(partition)
    spans = zip(histories.offsets[:-1], histories.offsets[1:], strict=True)
    tokens = [histories.tokens[start:end].tolist() for start, end in spans]
    return list(zip(corpus.read_user_ids(partition), tokens, strict=True))


def visits(user: str, *urls: str, day: int) -> list[Event]:
    return [Event(user, url, moment(day, n), f"{user}-{day}", n) for n, url in enumerate(urls)]


FIRST = [
    *visits("ann", "/a", "/b", day=1), *visits("bob", "/a", "/c", day=1), *visits("cat", "/b", "/a", day=2),
    *visits("dan", "/c", "/d", day=2),
]  # fmt: skip
SECOND = [*visits("ann", "/d", day=3), *visits("cat", "/b", day=3), *visits("eve", "/e", "/a", "/b", day=3)]


@pytest.fixture
def nights(tmp_path: Path) -> tuple[Corpus, Corpus]:
    """Day 1 and 2, then day 2 and 3, in one micro-partition: ann and cat change, dan does not, bob leaves, eve is new."""
    root = write_events(tmp_path, FIRST + SECOND, partitions=1)
    base = build(root, Night(1, 2), None)
    return base, build(root, Night(2, 3, retain_days=1), base)


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
    assert counted == {
        "users": [5], "holes": [1], "num_users": 4, "num_tokens": 9, "base": base.manifest["window_id"]
    }  # fmt: skip
    names = ("num_changed", "num_new_users", "num_left", "num_new_items", "num_held_out")
    assert [corpus.manifest[name] for name in names] == [3, 1, 1, 1, 1]


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
    assert histories.is_held_out.tolist() == [
        False,
        False,
        True,
    ]  # the base had ann's and cat's items, if cat's /a is new
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


def test_who_falls_below_the_thresholds_keeps_row_and_vector_but_has_no_tokens(tmp_path: Path) -> None:
    events = [*visits("ann", "/a", "/b", day=1), *visits("ann", "/a", day=3), *visits("bob", "/a", "/b", day=3)]
    events += visits("cat", "/a", day=3)  # new, and below: no row
    config = EVERYTHING.model_copy(update={"min_user_events": 2})
    root = write_events(tmp_path, events, partitions=1)
    base = build(root, Night(1, 1), None, config)
    corpus = build(root, Night(3, 3, retain_days=0), base, config)
    assert histories_of(corpus, 0) == [("ann", []), ("bob", [0, 1])]
    assert open_corpus(corpus.folder / "changed").read_user_ids(0) == ["bob"]
    assert corpus.manifest["funnel"][-1] == ["users kept", 1]


def test_items_of_the_base_stay_though_nobody_sees_them(tmp_path: Path) -> None:
    root = write_events(tmp_path, [*visits("ann", "/x", "/a", day=1), *visits("ann", "/b", "/a", day=2)], partitions=1)
    corpus = build(root, Night(2, 2), build(root, Night(1, 1), None))
    assert [tuple(item.values()) for item in read_vocabulary(corpus)] == [
        (0, "/a", 1, 1), (1, "/x", 0, 0), (2, "/b", 1, 1)
    ]  # fmt: skip
    assert corpus.manifest["num_new_items"] == 1


@dataclass
class Rows:
    """What a corpus has, in plain Python: items; of each micro-partition users and last days by row; tokens by user."""

    items: list[str] = field(default_factory=list)
    users: list[list[tuple[str, int] | None]] = field(default_factory=list)
    tokens: dict[str, list[str]] = field(default_factory=dict)


def day_of(event: Event) -> int:
    return (event.at - EPOCH).days if isinstance(event.at, datetime) else UNDATED


def in_window(events: Sequence[Event], night: Night) -> list[Event]:
    return [e for e in events if not isinstance(e.at, datetime) or night.since <= e.at.day <= night.until]


def continue_plainly(base: Rows, events: list[Event], config: IngestConfig, retain_days: int, partitions: int) -> Rows:
    """The rules of a night in plain Python, a user at a time."""
    model = clean_plainly(events, config, base.items)
    days = Counter((event.user_id, event.day) for event in events if event.day != "undated")
    bots = {user for (user, _), number in days.items() if number > config.max_day_events}
    last_days: dict[str, int] = {}
    for event in events:
        if event.user_id not in bots:
            last_days[event.user_id] = max(last_days.get(event.user_id, UNDATED), day_of(event))
    until = max((day_of(event) for event in events), default=UNDATED)
    rows = []
    for partition in range(partitions):
        mine: list[tuple[str, int] | None] = []
        for row in base.users[partition] if base.users else []:
            user, last = row or ("", UNDATED)
            stays = user in last_days or last == UNDATED or until == UNDATED or last >= until - retain_days
            mine.append((user, max(last, last_days.get(user, UNDATED))) if row and stays else None)
        before = {row[0] for row in mine if row}
        new = [user for user in model.users if user not in before and user_hash(user) % partitions == partition]
        rows.append(mine + [(user, last_days[user]) for user in sorted(new, key=str.encode)])
    return Rows([item["url"] for item in model.vocabulary], rows, model.users)


def check_night(corpus: Corpus, base: Corpus, rows: Rows, before: Rows) -> None:
    """Everything a continued corpus says, against the plain rules."""
    changed = open_corpus(corpus.folder / "changed")
    ix = {url: i for i, url in enumerate(rows.items)}
    assert [item["url"] for item in read_vocabulary(corpus)] == rows.items
    assert rows.items[: len(before.items)] == before.items
    counts = np.zeros(len(ix), dtype=np.int64)
    keys: list[int] = []
    for partition, mine in enumerate(rows.users):
        users = corpus.read_users(partition)
        assert users["user_id"].to_pylist() == [row and row[0] for row in mine]
        assert users["last_day"].to_pylist() == [row[1] if row else 0 for row in mine]
        assert users["hash"].to_pylist() == [user_hash(row[0]) if row else 0 for row in mine]
        tokens = [[ix[url] for url in rows.tokens.get(row[0], [])] if row else [] for row in mine]
        found_histories = histories_of(corpus, partition)
        assert [found for _, found in found_histories] == tokens
        earlier = [found for _, found in histories_of(base, partition)]
        earlier += [[]] * (len(tokens) - len(earlier))
        trained = [row for row, now in enumerate(tokens) if now and now != earlier[row]]
        found_rows = changed.rows(partition)
        assert found_rows is not None
        assert found_rows.tolist() == trained
        assert histories_of(changed, partition) == [found_histories[row] for row in trained]
        places = [held_out_position(tokens[row]) for row in trained]
        places = [p if p >= 0 and tokens[r][p] not in earlier[r] else -1 for r, p in zip(trained, places, strict=True)]
        found = np.load(changed.folder / f"p{partition:05d}.held_out.npy")
        assert found.tolist() == places
        part, whole = changed.read(partition), corpus.read(partition)
        keys += held_out_keys(part.hashes[found >= 0]).tolist()
        assert np.flatnonzero(whole.is_held_out).tolist() == found_rows[part.is_held_out].tolist()
        for row, now in enumerate(tokens):
            np.add.at(counts, now[: int(whole.ends[row] - whole.starts[row])], 1)
    assert corpus.count_training_tokens().tolist() == changed.count_training_tokens().tolist() == counts.tolist()
    check_manifests(corpus, changed, rows, before, len(keys))


def check_manifests(corpus: Corpus, changed: Corpus, rows: Rows, before: Rows, num_possible: int) -> None:
    manifest = corpus.manifest
    holes = [sum(row is None for row in mine) for mine in rows.users]
    assert (manifest["users"], manifest["holes"]) == ([len(mine) for mine in rows.users], holes)
    assert manifest["num_users"] == sum(manifest["users"]) - sum(holes)
    assert manifest["num_tokens"] == sum(map(len, rows.tokens.values())) == sum(manifest["tokens"])
    assert manifest["num_left"] == sum(holes) - sum(row is None for mine in before.users for row in mine)
    assert manifest["num_new_users"] == sum(map(len, rows.users)) - sum(map(len, before.users))
    assert manifest["num_new_items"] == len(rows.items) - len(before.items)
    assert manifest["num_changed"] == changed.num_users == sum(changed.manifest["users"])
    assert manifest["num_held_out"] == changed.manifest["num_held_out"] <= num_possible
    held_out = [int(c.read(p).is_held_out.sum()) for c in (corpus, changed) for p in range(len(holes))]
    assert sum(held_out) == 2 * manifest["num_held_out"]
    for one in (corpus, changed):
        for name, about in one.manifest["files"].items():
            verify_file(one.folder / name, about)
        assert {p.name for p in one.folder.iterdir()} - {"changed"} == {"manifest.json", *one.manifest["files"]}


random_nights = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 3)).map(lambda n: Night(n[0], n[0] + n[1], n[2])),
    min_size=2,
    max_size=3,
)


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
            base, before = corpus, rows
        assert [found.message for found in examine(root) if found.level != "ok" and "corpus" in found.place] == []
    finally:
        shutil.rmtree(folder)


def digests(corpus: Corpus) -> dict[str, str]:
    return {
        str(path.relative_to(corpus.folder)): digest_file(path) for path in corpus.folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Corpus]:
    """A root of 20,000 events on five days, and the corpus of the first four."""
    root = write_events(tmp_path_factory.mktemp("many"), many_events(), partitions=16)
    return root, build(root, Night(1, 4), None, IngestConfig())


@pytest.mark.parametrize(("group_events", "threads", "factor"), [(1, 2, 1), (3000, 2, 3), (9000, 1, 2)])
def test_the_bytes_do_not_depend_on_memory_threads_or_groups(
    many: tuple[Root, Corpus], monkeypatch: pytest.MonkeyPatch, group_events: int, threads: int, factor: int
) -> None:
    root, base = many
    corpus = build(root, Night(2, 5), base, IngestConfig(), max_users=50)
    expected = digests(corpus)
    assert corpus.manifest["num_changed"] > corpus.manifest["num_held_out"] == 50
    shutil.rmtree(corpus.folder)
    monkeypatch.setattr("tests.tasks.test_continued_corpus.MEMORY_BYTES", MEMORY_BYTES * factor)
    monkeypatch.setattr(corpus_module, "spare_bytes", lambda memory_bytes: memory_bytes)
    monkeypatch.setattr(corpus_module, "BYTES_PER_EVENT", MEMORY_BYTES * factor // group_events)
    assert digests(build(root, Night(2, 5), base, IngestConfig(), max_users=50, threads=threads)) == expected


def test_the_id_depends_on_the_base_and_how_long_users_stay(many: tuple[Root, Corpus]) -> None:
    root, base = many
    bases = [
        None,
        Base(base.manifest["window_id"], 30),
        Base(base.manifest["window_id"], 31),
        Base("0123456789abcdef", 30),
    ]
    names = [window_id(root, IngestConfig(), EvaluateConfig(), None, None, None, one) for one in bases]
    assert len(set(names)) == 4
    told = build_corpus(root, IngestConfig(), EvaluateConfig(), None, None, None, MEMORY_BYTES, 1, base=bases[1])
    assert told["window_id"] == names[1]
    assert told["base"] == base.manifest["window_id"]
    assert told["num_changed"] > 0


def test_a_base_that_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    root = write_events(tmp_path / "one", FIRST)
    base = build(root, Night(1, 1), None)
    with pytest.raises(InputError, match="was made with cleaning .*; run with --full"):
        build(root, Night(1, 2), base, IngestConfig())
    other = write_events(tmp_path / "two", FIRST, partitions=8)
    with pytest.raises(InputError, match=rf"corpus {base.manifest['window_id']} is gone"):
        build(other, Night(1, 2), base)
    shutil.copytree(base.folder, other.corpus(base.manifest["window_id"]))
    with pytest.raises(InputError, match="was made with partitions 4, not 8"):
        build(other, Night(1, 2), base)
    assert len(list((other.path / "corpus").iterdir())) == 1


@pytest.mark.parametrize("name", ["vocabulary.parquet", "p00000.users.parquet", "p00000.tokens.npy"])
def test_a_damaged_base_is_named_and_nothing_is_left(tmp_path: Path, name: str) -> None:
    root = write_events(tmp_path, FIRST, partitions=1)
    base = build(root, Night(1, 1), None)
    path = base.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamageError, match=f"{path} .*; run with --full"):
        build(root, Night(1, 2), base)
    assert list((root.path / "corpus").iterdir()) == [base.folder]
    assert not list(root.temporary.iterdir())


def continue_in(path: Path, base: str) -> None:
    days = date(2026, 1, 2), date(2026, 1, 3)
    build_corpus(Root(path), EVERYTHING, EvaluateConfig(), *days, None, MEMORY_BYTES, 1, base=Base(base, 1))


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
