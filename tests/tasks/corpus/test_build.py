"""The corpus: cleaning by a plain model, the same bytes from any plan, and what is said when nothing is left."""

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.config import EvaluateConfig, IngestConfig
from tasks.corpus import clean_pass
from tasks.corpus.build import build_corpus
from tasks.corpus.window import CorpusRequest
from tasks.events.events_files import write_events as write_sorted_events
from tasks.root.run import Root
from tests.corpora import held_out_position, user_hash
from tests.event_files import Event, moment, write_events, write_events_file
from trainer.errors import DamageError, InputError, ResourceError
from trainer.store.tokens import Corpus, held_out_keys, open_corpus
from trainer.system.files import describe_file, digest_file, read_json, verify_file, write_json

MEMORY_BYTES = 400_000_000
EVERYTHING = IngestConfig(min_item_events=1, min_item_users=1, min_user_events=1)


def build(root: Root, config: IngestConfig = EVERYTHING, max_users: int = 20_000, threads: int = 1) -> Corpus:
    told = build_corpus(root, CorpusRequest(config, EvaluateConfig(max_users=max_users)), MEMORY_BYTES, threads)
    return open_corpus(root.corpus(told["window_id"]))


def read_vocabulary(corpus: Corpus) -> list[dict[str, Any]]:
    return pq.read_table(corpus.folder / "vocabulary.parquet").to_pylist()


def read_urls(corpus: Corpus) -> dict[str | None, list[str]]:
    """What each user saw, in the order of the tokens; the users in the order of the rows."""
    urls = [item["url"] for item in read_vocabulary(corpus)]
    seen = {}
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        for row, user_id in enumerate(corpus.read_ids(partition).to_pylist()):
            tokens = histories.tokens[histories.offsets[row] : histories.offsets[row + 1]]
            seen[user_id] = [urls[token] for token in tokens]
    return seen


@dataclass
class Model:
    """The rules of cleaning in plain Python, a user at a time."""

    vocabulary: list[dict[str, Any]] = field(default_factory=list)
    users: dict[str, list[str]] = field(default_factory=dict)
    funnel: list[int] = field(default_factory=list)


def clean_plainly(events: list[Event], config: IngestConfig, base_items: Sequence[str] = ()) -> Model:
    """What the rules make of these events; the items of a base come first."""
    by_user: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_user[event.user_id].append(event)
    by_user = {user: sorted(by_user[user], key=lambda event: event.order) for user in by_user}
    days = {user: Counter(event.day for event in mine if event.day != "undated") for user, mine in by_user.items()}
    people = {
        user: mine for user, mine in by_user.items() if max(days[user].values(), default=0) <= config.max_day_events
    }
    urls = {user: [event.url for event in mine] for user, mine in people.items()}
    num_people = sum(map(len, urls.values()))
    urls = {u: [url for i, url in enumerate(mine) if i == 0 or mine[i - 1] != url] for u, mine in urls.items()}
    counts = Counter(url for mine in urls.values() for url in mine)
    readers = Counter(url for mine in urls.values() for url in set(mine))
    new = [u for u in counts if counts[u] >= config.min_item_events and readers[u] >= config.min_item_users]
    kept = [*base_items, *sorted(set(new) - set(base_items), key=lambda url: (-counts[url], url.encode()))]
    is_kept = set(kept)
    known = {user: [url for url in mine if url in is_kept] for user, mine in urls.items()}
    enough = {user: mine for user, mine in known.items() if len(mine) >= config.min_user_events}
    newest = {user: mine[-config.max_user_events :] for user, mine in enough.items()}
    stages = [events, num_people, urls, known, enough, newest]
    numbers = [s if isinstance(s, int) else len(s) if s is events else sum(map(len, s.values())) for s in stages]
    numbers += [len({event.url for event in events}), len(kept), len(by_user), len(newest)]
    items = [{"item_ix": i, "url": u, "count": counts[u], "users": readers[u]} for i, u in enumerate(kept)]
    return Model(items, newest, numbers)


moments = st.builds(moment, st.integers(1, 3), st.integers(0, 3))
random_events = st.lists(
    st.builds(
        Event,
        user_id=st.sampled_from(["ann", "bob", "Zoë", "zoe", "日本", "a", "b", ""]),
        url=st.sampled_from(["/", "/a", "/b", "/ä", "https://x.example/c"]),
        at=moments | st.integers(0, 3),
        source=st.sampled_from(["one", "two"]),
        line=st.integers(0, 10_000),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda event: (event.source, event.line),
)
random_settings = st.builds(
    IngestConfig,
    max_day_events=st.integers(1, 8),
    min_item_events=st.integers(1, 3),
    min_item_users=st.integers(1, 3),
    min_user_events=st.integers(1, 3),
    max_user_events=st.integers(2, 4),
)


@settings(max_examples=40)
@given(random_events, random_settings, st.sampled_from([1, 2, 8]), st.integers(1, 30), st.integers(0, 4))
def test_a_corpus_is_what_the_plain_rules_make(
    events: list[Event], config: IngestConfig, partitions: int, group_events: int, max_users: int
) -> None:
    model = clean_plainly(events, config)
    folder = Path(tempfile.mkdtemp())
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clean_pass, "spare_bytes", lambda memory_bytes: memory_bytes)
            patch.setattr(clean_pass, "BYTES_PER_EVENT", MEMORY_BYTES // group_events)
            root = write_events(folder, events, partitions)
            if not model.users:
                with pytest.raises(InputError, match="nothing is left after cleaning"):
                    build(root, config, max_users)
                assert not list((folder / "corpus").iterdir())
                return
            check_against(build(root, config, max_users, threads=2), model, partitions, max_users)
        assert not list(root.temporary.iterdir())
    finally:
        shutil.rmtree(folder)


def check_against(corpus: Corpus, model: Model, partitions: int, max_users: int) -> None:
    assert read_vocabulary(corpus) == model.vocabulary
    assert read_urls(corpus) == model.users
    ix = {item["url"]: item["item_ix"] for item in model.vocabulary}
    keys, chosen = [], 0
    for partition in range(partitions):
        ids = sorted((user for user in model.users if user_hash(user) % partitions == partition), key=str.encode)
        assert corpus.read_ids(partition).to_pylist() == ids
        histories = corpus.read(partition)
        assert histories.hashes.tolist() == [user_hash(user) for user in ids]
        places = np.load(corpus.folder / f"p{partition:05d}.held_out.npy", mmap_mode="r", allow_pickle=False)
        assert places.tolist() == [held_out_position([ix[url] for url in model.users[user]]) for user in ids]
        assert (places.dtype, histories.tokens.dtype, histories.offsets.dtype) == (np.int32, np.int32, np.int64)
        keys += held_out_keys(histories.hashes[places >= 0]).tolist()
        chosen += int(histories.is_held_out.sum())
    manifest = corpus.manifest
    assert manifest["num_held_out"] == chosen == min(max_users, len(keys))
    assert sum(key <= manifest["held_out_key_max"] for key in keys) == chosen
    assert [number for _, number in manifest["funnel"]] == model.funnel
    assert manifest["num_users"] == sum(manifest["users"]) == len(model.users)
    assert (manifest["base"], manifest["holes"]) == (None, [0] * partitions)
    assert manifest["num_tokens"] == sum(manifest["tokens"]) == sum(map(len, model.users.values()))
    assert manifest["num_items"] == len(model.vocabulary)
    for name, about in manifest["files"].items():
        verify_file(corpus.folder / name, about)
    assert {path.name for path in corpus.folder.iterdir()} == {"manifest.json", *manifest["files"]}


def many_events(num_users: int = 400, num_events: int = 20_000) -> list[Event]:
    rng = np.random.default_rng(3)
    items = (3000 ** rng.random(num_events)).astype(int)
    users, days, seconds = (rng.integers(1, high, num_events) for high in (num_users, 6, 86_400))
    return [
        Event(f"user-{users[i]}", f"/page/{items[i]}", moment(int(days[i]), int(seconds[i])), f"log-{i % 3}", i)
        for i in range(num_events)
    ]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return write_events(tmp_path_factory.mktemp("many"), many_events(), partitions=16)


def digests(corpus: Corpus) -> dict[str, str]:
    return {path.name: digest_file(path) for path in corpus.folder.iterdir()}


@pytest.mark.parametrize(("group_events", "threads", "factor"), [(10**6, 1, 1), (1, 2, 1), (3000, 2, 3), (9000, 1, 2)])
def test_the_bytes_do_not_depend_on_memory_threads_or_groups(
    many: Root, monkeypatch: pytest.MonkeyPatch, group_events: int, threads: int, factor: int
) -> None:
    expected = digests(build(many, IngestConfig()))
    shutil.rmtree(many.path / "corpus")
    monkeypatch.setattr("tests.tasks.corpus.test_build.MEMORY_BYTES", MEMORY_BYTES * factor)
    monkeypatch.setattr(clean_pass, "spare_bytes", lambda memory_bytes: memory_bytes)
    monkeypatch.setattr(clean_pass, "BYTES_PER_EVENT", MEMORY_BYTES * factor // group_events)
    assert digests(build(many, IngestConfig(), threads=threads)) == expected


def test_what_exists_is_not_built_again(many: Root) -> None:
    first = build(many, IngestConfig())
    times = {path.name: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    events: list[str] = []
    told = build_corpus(
        many,
        CorpusRequest(IngestConfig(), EvaluateConfig()),
        MEMORY_BYTES,
        1,
        lambda name, values: events.append(name),
    )
    assert events == []
    assert {path.name: path.stat().st_mtime_ns for path in first.folder.iterdir()} == times
    assert told["bytes"] == sum(about["bytes"] for about in first.manifest["files"].values())
    assert {key: told[key] for key in ("num_users", "partitions", "since", "until")} == {
        "num_users": first.manifest["num_users"], "partitions": 16, "since": "2026-01-01", "until": "2026-01-05",
    }  # fmt: skip


def test_progress_ends_at_its_total(many: Root) -> None:
    seen: list[tuple[int, int]] = []

    def note(name: str, values: dict[str, Any]) -> None:
        if name == "progress":
            seen.append((values["done"], values["total"]))

    build_corpus(many, CorpusRequest(EVERYTHING, EvaluateConfig(max_users=1)), MEMORY_BYTES, 1, note)
    assert seen == sorted(seen)
    assert seen[-1] == (40_000, 40_000)


def test_leftovers_of_dead_builds_go_and_other_temporary_files_stay(tmp_path: Path) -> None:
    root = write_events(tmp_path, [Event("ann", "/a", moment(1))])
    leftovers = [root.path / "corpus" / ".0123456789abcdef.1.tmp", root.temporary / "corpus.0123456789abcdef.1"]
    others = [root.temporary / "ingest.1", root.path / "corpus" / "fedcba9876543210"]
    for folder in (*leftovers, *others):
        folder.mkdir(parents=True)
    (leftovers[1] / ".lock").touch()
    corpus = build(root)
    assert [folder.exists() for folder in (*leftovers, *others)] == [False, False, True, True]
    assert read_urls(corpus) == {"ann": ["/a"]}


def test_a_folder_without_manifest_is_replaced(tmp_path: Path) -> None:
    root = write_events(tmp_path, [Event("ann", "/a", moment(1))])
    corpus = build(root)
    (corpus.folder / "manifest.json").unlink()
    (corpus.folder / "stray").write_text("")
    assert digests(build(root)).keys() == {"manifest.json", *corpus.manifest["files"]}


def test_ties_in_time_are_broken_by_source_and_line(tmp_path: Path) -> None:
    events = [Event("ann", f"/{source}/{line}", moment(1), source, line) for source in ("x", "y") for line in (10, 9)]
    first, second = sorted({"x", "y"}, key=lambda source: Event("", "", 0, source).sha256)
    seen = read_urls(build(write_events(tmp_path, events)))
    assert seen == {"ann": [f"/{first}/9", f"/{first}/10", f"/{second}/9", f"/{second}/10"]}


def test_names_of_folders_are_no_patterns(tmp_path: Path) -> None:
    root = write_events(tmp_path / "what? [a]*'s", [Event("ann", "/a", moment(1)), Event("ann", "/b", 7)])
    assert read_urls(build(root, IngestConfig(min_item_events=1, min_item_users=1, max_day_events=1))) == {
        "ann": ["/b", "/a"]
    }


def one_day(num_users: int, num_items: int = 1) -> list[Event]:
    return [
        Event(f"user-{u}", f"/{i}", moment(1, i), line=u * 100 + i) for u in range(num_users) for i in range(num_items)
    ]


@pytest.mark.parametrize(
    ("events", "way_out"),
    [
        (one_day(2), r"no item has 5 events and 3 users \(the most events of one are 2, the most users 2\): lower"),
        (one_day(1, 9), r"all users are taken for bots: raise ingest.max_day_events \(8\)"),
        (one_day(6), r"6 of items in the vocabulary, 0 of users kept; .*lower ingest.min_user_events \(2\)"),
    ],
)
def test_nothing_left_says_which_setting_to_change(tmp_path: Path, events: list[Event], way_out: str) -> None:
    root = write_events(tmp_path, events)
    with pytest.raises(InputError, match=f"nothing is left after cleaning: {len(events)} events .*{way_out}"):
        build(root, IngestConfig(max_day_events=8))
    assert not list((tmp_path / "corpus").iterdir())


@pytest.mark.parametrize("spared", [slice(4), slice(-12, None)], ids=["footer lost", "footer senseless"])
def test_an_altered_events_file_is_damage(tmp_path: Path, spared: slice) -> None:
    root = write_events(tmp_path, one_day(3))
    path = next(root.events.rglob("*.parquet"))
    whole = path.read_bytes()
    altered = bytearray(len(whole))
    altered[spared] = whole[spared]
    path.write_bytes(altered)
    with pytest.raises(DamageError, match=rf"{path} does not have the sha256 .*give the log log again"):
        build(root)
    path.unlink()
    with pytest.raises(DamageError, match=rf"{path} is missing; give the log log again with `surf2vec run --logs`"):
        build(root)


def test_damage_far_into_an_events_file(tmp_path: Path) -> None:
    """What DuckDB finds while the rows are read, after good ones."""
    root = write_events(tmp_path, one_day(30_000, 5))
    path = next(root.events.rglob("*.parquet"))
    write_sorted_events(path, pq.read_table(path, partitioning=None).to_reader())
    damaged = bytearray(path.read_bytes())
    last = pq.read_metadata(path).row_group(6).column(5)
    damaged[last.data_page_offset + 60 : last.data_page_offset + last.total_compressed_size] = bytes(
        last.total_compressed_size - 60
    )
    path.write_bytes(damaged)
    catalog = read_json(root.sources)
    for entry in catalog["sources"]:
        entry["files"] = {name: file | describe_file(path) for name, file in entry["files"].items()}
    write_json(root.sources, catalog)
    with pytest.raises(DamageError, match="an events file cannot be read .*surf2vec doctor"):
        build(root)


def test_rows_that_sources_json_does_not_know_are_damage(tmp_path: Path) -> None:
    root = write_events(tmp_path, one_day(3))
    path = next(root.events.rglob("*.parquet"))
    write_events_file(path, one_day(2), partitions=4)
    catalog = read_json(root.sources)
    for entry in catalog["sources"]:
        entry["files"] = {name: file | describe_file(path) for name, file in entry["files"].items()}
    write_json(root.sources, catalog)
    with pytest.raises(DamageError, match="do not have the 3 rows in 4 micro-partitions that sources.json says"):
        build(root)


def test_too_little_memory_says_so_and_leaves_nothing(many: Root) -> None:
    with pytest.raises(ResourceError, match="raise --host-memory"):
        build_corpus(many, CorpusRequest(EVERYTHING, EvaluateConfig(max_users=7)), 1_000_000, 1)
    assert not list(many.temporary.iterdir())
    assert not list((many.path / "corpus").glob(".*"))


def test_a_real_log(data_dir: Path, tmp_path: Path) -> None:
    rows = pq.read_table(data_dir / "yoochoose_100k.parquet").to_pydict()
    ids, urls, times = (rows[name] for name in ("user_id", "url", "ts"))
    events = [
        Event(str(user_id), url, at if isinstance(at, datetime) else int(at), line=line)
        for line, (user_id, url, at) in enumerate(zip(ids, urls, times, strict=True))
    ]
    corpus = build(write_events(tmp_path, events), IngestConfig(), threads=2)
    model = clean_plainly(events, IngestConfig())
    assert read_vocabulary(corpus) == model.vocabulary
    assert read_urls(corpus) == model.users
    assert corpus.manifest["num_held_out"] <= 20_000
