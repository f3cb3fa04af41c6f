"""Corpora that continue a base: how they are built, and everything that they say against the rules in plain Python."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

import numpy as np

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.cleaning import UNDATED
from surf2vec.tasks.corpus.window import Base, CorpusRequest
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.store.tokens import Corpus, held_out_keys, open_corpus
from surf2vec.trainer.system.files import verify_file
from tests.data.cleaning_model import clean_plainly, read_vocabulary
from tests.data.corpora import held_out_position, user_hash
from tests.data.event_files import EPOCH, Event
from tests.tasks.corpus.test_build import EVERYTHING, MEMORY_BYTES


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
    is_full: bool = False,
) -> Corpus:
    continued = base and Base(base.manifest["window_id"], night.retain_days, is_full)
    days = date(2026, 1, night.since), date(2026, 1, night.until)
    request = CorpusRequest(config, EvaluateConfig(max_users=max_users), *days, base=continued)
    told = build_corpus(root, request, MEMORY_BYTES, threads)
    return open_corpus(root.corpus(told["window_id"]))


def histories_of(corpus: Corpus, partition: int) -> list[tuple[str | None, list[int]]]:
    """User and tokens of every row."""
    histories = corpus.read(partition)
    spans = zip(histories.offsets[:-1], histories.offsets[1:], strict=True)
    tokens = [histories.tokens[start:end].tolist() for start, end in spans]
    return list(zip(corpus.read_ids(partition).to_pylist(), tokens, strict=True))


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
