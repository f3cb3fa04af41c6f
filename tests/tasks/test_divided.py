"""Steps done in parts by other processes: the very bytes of one process, and no secret on the way."""

import gzip
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import EvaluateConfig, ExportConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import Base, CorpusRequest
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.ingest.stage_logs import stage_part
from surf2vec.tasks.ingest.staging import Staging
from surf2vec.tasks.queries.infer import infer
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, InputError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.system.fan_out import HERE, FanOut
from surf2vec.trainer.training.infer import refit_held_out
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories
from tests.roots.files import bytes_of
from tests.roots.ingest import write_log
from tests.roots.store_contents import assert_same_bits
from tests.servers.part_processes import Divided, open_processes
from tests.tasks.queries.test_infer import ask, make_root

MEMORY_BYTES = 500_000_000
CONFIG = IngestConfig(min_item_events=1, min_item_users=1)


pytestmark = pytest.mark.usefixtures("large_logs")


@pytest.fixture(scope="module")
def processes() -> Iterator[Divided]:
    with open_processes() as divided:
        yield divided


def write_days(folder: Path, days: range) -> None:
    """A log a day; on the last one a few users only."""
    for day in days:
        lines = [
            f"{user},/p/{item},2026-01-0{day}T00:{n:02d}:00Z"
            for user, items in planted_histories(150).items()
            for n, item in enumerate(items[day % 3 :] if day < 5 or user.endswith("7") else [])
        ]
        write_log(folder / f"{day}.csv", ",/nobody,2026-01-01T00:00:00Z", *lines)


def take_in(root: Root, logs: Path, fan_out: FanOut, **settings: Any) -> dict[str, Any]:
    config = CONFIG.model_copy(update={"max_reject_ratio": 0.5} | settings)
    told = ingest(root, [f"{logs}/*.csv*"], config, None, MEMORY_BYTES, 1, ignore_event, fan_out)
    built = build_corpus(root, CorpusRequest(config, EvaluateConfig(max_users=20)), MEMORY_BYTES, 1, fan_out=fan_out)
    return told | {"window_id": built["window_id"]}


def make_release(root: Root, window_id: str, fan_out: FanOut) -> None:
    corpus = open_corpus(root.corpus(window_id))
    settings = TrainConfig(vector_size=8, epochs=3, threads=1, negative=5)
    job = Job(corpus.folder, root.store, settings, 4 * 10**9)
    train(job)
    assert refit_held_out(job, corpus, {"evaluation": {}}, fan_out=fan_out).has_seen_held_out
    asked = Export(corpus.folder, root.export("r1"), "r1", "r1", "r1", ExportConfig(pca_dim=6, dtype="int8"))
    export_vectors(asked, open_generation(root.store), ignore_event, fan_out)


def test_a_release_is_the_same_bytes_whoever_does_its_parts(tmp_path: Path, processes: Divided) -> None:
    write_days(tmp_path / "logs", range(1, 5))
    roots = [open_root(tmp_path / name) for name in ("one", "many")]
    told = [take_in(root, tmp_path / "logs", hands) for root, hands in zip(roots, (HERE, processes), strict=True)]
    assert told[0] == told[1]
    assert bytes_of(roots[0].path, "events", "rejects", "corpus") == bytes_of(
        roots[1].path, "events", "rejects", "corpus"
    )
    for root, hands in zip(roots, (HERE, processes), strict=True):
        make_release(root, told[0]["window_id"], hands)
    assert_same_bits(roots[0].store, roots[1].store)
    one, many = (bytes_of(root.path, "export") for root in roots)
    assert one == many
    assert len(one) > 10
    names = ("stage_part", "clean_part", "write_part", "refit_part", "write_users")
    assert {processes.done[name] for name in names} == {3}
    assert list(roots[1].temporary.iterdir()) == []
    assert [path.name for path in roots[1].store.iterdir() if path.name.endswith(".tmp")] == []


def test_a_corpus_that_continues_another_is_the_same_bytes(tmp_path: Path, processes: Divided) -> None:
    write_days(tmp_path / "logs", range(1, 4))
    root = open_root(tmp_path / "one")
    first = take_in(root, tmp_path / "logs", HERE)["window_id"]
    write_days(tmp_path / "logs", range(4, 6))
    ingest(root, [f"{tmp_path}/logs/*.csv"], CONFIG.model_copy(update={"max_reject_ratio": 0.5}), None,
           MEMORY_BYTES, 1, ignore_event)  # fmt: skip
    other = Root(tmp_path / "many")
    shutil.copytree(root.path, other.path)
    for is_full in (False, True):
        request = CorpusRequest(CONFIG, EvaluateConfig(max_users=20), base=Base(first, 90, is_full))
        told = [
            build_corpus(where, request, MEMORY_BYTES, 1, fan_out=hands)
            for where, hands in ((root, HERE), (other, processes))
        ]  # fmt: skip
        assert told[0] == told[1]
        assert told[0].get("num_changed", 1) > 0
    assert bytes_of(root.path, "corpus") == bytes_of(other.path, "corpus")


def test_one_log_is_read_where_the_command_was_given(tmp_path: Path, processes: Divided) -> None:
    write_days(tmp_path / "logs", range(1, 2))
    processes.done.clear()
    take_in(open_root(tmp_path / "root"), tmp_path / "logs", processes)
    assert set(processes.done) == {"clean_part", "write_part"}


def test_a_part_that_fails_leaves_what_was_there(tmp_path: Path, processes: Divided) -> None:
    write_days(tmp_path / "logs", range(1, 3))
    root = open_root(tmp_path / "root")
    take_in(root, tmp_path / "logs", processes)
    before = bytes_of(root.path, "events", "sources.json")
    write_days(tmp_path / "logs", range(3, 5))
    lines = "".join(f"u{n},/p/{n * n},2026-01-01T00:00:00Z\n" for n in range(50_000))
    whole = gzip.compress(f"user_id,url,ts\n{lines}".encode())
    (tmp_path / "logs" / "9.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"9\.csv\.gz is cut short or damaged"):
        take_in(root, tmp_path / "logs", processes)
    assert bytes_of(root.path, "events", "sources.json") == before
    assert list(root.temporary.iterdir()) == []


def test_the_user_key_is_looked_up_where_a_part_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: Divided
) -> None:
    """A machine without the key, or with another, is refused: it would make of one person two."""
    write_days(tmp_path / "logs", range(1, 3))
    monkeypatch.setenv("USER_KEY", "secret of 16 byte-1")
    with pytest.raises(ConfigError, match="USER_KEY, which is not set or empty on"):  # those processes are older
        take_in(open_root(tmp_path / "root"), tmp_path / "logs", processes, user_key_env="USER_KEY")
    config = CONFIG.model_copy(update={"user_key_env": "USER_KEY"})
    staging = Staging(Root(tmp_path), tmp_path, tmp_path, config, "0123456789abcdef", MEMORY_BYTES, 1, (), 8)
    with pytest.raises(ConfigError, match=r"the key in USER_KEY on .* is not that of the machine where the command"):
        stage_part(staging, ignore_event)
    assert "secret of 16 byte-1" not in repr(replace(staging, user_key=None))


def test_inferred_vectors_are_the_same_bytes(tmp_path: Path, processes: Divided) -> None:
    root = make_root(tmp_path / "root")
    for number in range(3):
        lines = [f"{user}-{number},/page/{item},2026-02-01T00:{n:02d}:00Z"
                 for user, items in planted_histories(60).items() for n, item in enumerate(items)]  # fmt: skip
        write_log(tmp_path / f"new-{number}.csv", *lines)
    told = [
        infer(root, "r1", ask(tmp_path / "new-*.csv", tmp_path / name), ignore_event, hands)
        for name, hands in (("one.parquet", HERE), ("many.parquet", processes))
    ]
    for one in told:
        del one["seconds"], one["out"]
    assert told[0] == told[1]
    assert told[0]["users"] == 180
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "many.parquet").read_bytes()
    assert processes.done["infer_part"] == 3
    assert list(root.temporary.iterdir()) == []
