"""The corpus: cleaning by a plain model, the same bytes from any plan, and what is said when nothing is left."""

import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus import clean_pass
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.events.events_files import write_events as write_sorted_events
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError, InputError, ResourceError
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.system.files import describe_file, digest_file, read_json, write_json
from tests.data.cleaning_model import check_against, clean_plainly, read_urls, read_vocabulary
from tests.data.event_files import Event, moment, write_events, write_events_file

MEMORY_BYTES = 400_000_000
EVERYTHING = IngestConfig(min_item_events=1, min_item_users=1, min_user_events=1)


def build(root: Root, config: IngestConfig = EVERYTHING, max_users: int = 20_000, threads: int = 1) -> Corpus:
    told = build_corpus(root, CorpusRequest(config, EvaluateConfig(max_users=max_users)), MEMORY_BYTES, threads)
    return open_corpus(root.corpus(told["window_id"]))


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
    paths = [path for path in corpus.folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(corpus.folder)): digest_file(path) for path in paths}


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
        many, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1, lambda name, values: events.append(name)
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
    with pytest.raises(
        DamageError, match=rf"{path} does not have the sha256 .*pass the log log to `surf2vec run --logs` again"
    ):
        build(root)
    path.unlink()
    with pytest.raises(DamageError, match=rf"{path} is missing; pass the log log to `surf2vec run --logs` again"):
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
    catalog["files"] = {name: file | describe_file(path) for name, file in catalog["files"].items()}
    write_json(root.sources, catalog)
    with pytest.raises(DamageError, match="an events file cannot be read .*surf2vec doctor"):
        build(root)


def test_rows_that_sources_json_does_not_know_are_damage(tmp_path: Path) -> None:
    root = write_events(tmp_path, one_day(3))
    path = next(root.events.rglob("*.parquet"))
    write_events_file(path, one_day(2), partitions=4)
    catalog = read_json(root.sources)
    catalog["files"] = {name: file | describe_file(path) for name, file in catalog["files"].items()}
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
