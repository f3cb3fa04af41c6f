"""Vectors for users in other logs: the file, the counts, and what stays of a call that fails or is killed."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import surf2vec.tasks.queries.infer
from surf2vec.commands import infer as infer_by_command
from surf2vec.commands import similar
from surf2vec.tasks.config import ColumnsConfig, EvaluateConfig, ExportConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.ingest.rejects import list_rejects
from surf2vec.tasks.queries.infer import Inference, infer
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.pseudonyms import pseudonym
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, DamageError, InputError, RejectedError, ResourceError, SurfError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import pin_generation
from surf2vec.trainer.system.files import read_json, write_json
from surf2vec.trainer.training.infer import FrozenItems
from surf2vec.trainer.training.infer import infer_vectors as fit_vectors
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, user_hash
from tests.roots.ingest import MEMORY_BYTES, snapshot, write_log
from tests.roots.releases import read_items, read_users

TRAIN = TrainConfig(vector_size=8, epochs=5, threads=1, alpha=0.1, negative=5)
LITERAL = (
    "ann,/page/1?utm_source=mail,2026-02-01T00:00:01Z",
    "ann,/page/5,2026-02-01T00:00:02Z",
    "ann,/nowhere,2026-02-01T00:00:03Z",
    "bob,/nowhere,2026-02-01T00:00:01Z",
    "user-8,/page/2,2026-02-01T00:00:01Z",
)


def history_lines(user: str, items: Sequence[int | str]) -> list[str]:
    return [f"{user},/page/{item},2026-01-01T00:{n // 60:02d}:{n % 60:02d}Z" for n, item in enumerate(items)]


def make_root(path: Path, **settings: Any) -> Root:
    """A root with a release `r1` of planted histories, by the steps of a night but for the registry."""
    lines = [line for user, items in planted_histories().items() for line in history_lines(user, items)]
    log = write_log(path.parent / "trained.csv", *lines)
    root, config, evaluation = Root(path), IngestConfig(**settings), EvaluateConfig(max_users=20)
    path.mkdir()
    ingest(root, [str(log)], config, None, MEMORY_BYTES, 1, ignore_event)
    built = build_corpus(root, CorpusRequest(config, evaluation), MEMORY_BYTES, 1)
    corpus_dir = root.corpus(built["window_id"])
    train(Job(corpus_dir, root.store, TRAIN, 4 * 10**9))
    export_vectors(
        Export(corpus_dir, root.export("r1"), "r1", "r1", "r1", ExportConfig(activity=False)),
        open_generation(root.store),
    )
    pin_generation(root.store, "r1")
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_root(tmp_path_factory.mktemp("made") / "root")


def ask(
    log: Path, out: Path, train: TrainConfig = TRAIN, memory_bytes: int = MEMORY_BYTES, **settings: Any
) -> Inference:
    return Inference([str(log)], out, IngestConfig(**settings), train, memory_bytes)


def read_vectors(path: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(path)
    return dict(zip(table["user_id"].to_pylist(), np.array(table["vector"].to_pylist(), np.float32), strict=True))


def expected(root: Root, user: str, pages: Sequence[int]) -> np.ndarray:
    """The vector of a user with these pages, by the trainer alone."""
    generation = open_generation(root.store)
    urls, _ = read_items(root.export("r1"))
    place = {int(url.rsplit("/", 1)[1]): ix for ix, url in enumerate(urls)}
    tokens = np.array([place[page] for page in pages], np.int32)
    offsets = np.array([0, len(tokens)])
    counts = open_corpus(root.corpus(generation.manifest["window_id"])).count_training_tokens()
    frozen = FrozenItems(generation, counts, TRAIN.threads)
    return fit_vectors(frozen, tokens, offsets, np.array([user_hash(user)], np.uint64)).vectors[0]


def test_activity_is_of_the_events_given(root: Root, tmp_path: Path) -> None:
    """The events of the training again give the numbers of the release; others, others, within the same range."""
    release = root.export("r2")
    corpus_dir = root.corpus(open_generation(root.store).manifest["window_id"])
    try:
        export_vectors(Export(corpus_dir, release, "r2", "r2", "r1"), open_generation(root.store))
        columns = slice(*open_folder(release).manifest["parts"]["activity"])
        histories = planted_histories().items()
        log = write_log(
            tmp_path / "log.csv", *(line for user, items in histories for line in history_lines(user, items))
        )
        infer(root, "r2", ask(log, tmp_path / "v.parquet"))
        again, served = read_vectors(tmp_path / "v.parquet"), read_users(release)
        assert {user: again[user][columns].tobytes() for user in served} == {
            user: vector[columns].tobytes() for user, vector in served.items()
        }
        assert len({vector[columns].tobytes() for vector in served.values()}) > 1
    finally:
        shutil.rmtree(release)


def test_a_literal_log(root: Root, tmp_path: Path) -> None:
    before, out = snapshot(root.path), tmp_path / "new" / "vectors.parquet"
    log = write_log(tmp_path / "log.csv", *LITERAL)
    result = infer(root, "r1", ask(log, out))
    assert result.pop("seconds") >= 0
    assert result == {
        "users": 2, "users_without_known_items": 1, "events": 5, "events_forgotten": 0, "events_unknown_items": 2,
        "rejected": 0, "items": 60,
        "vector_size": 8, "release": "r1", "out": str(out), "bytes": out.stat().st_size,
    }  # fmt: skip
    schema = pq.read_schema(out)
    assert schema.remove_metadata() == pa.schema([("user_id", pa.string()), ("vector", pa.list_(pa.float32(), 8))])
    vectors = read_vectors(out)
    assert set(vectors) == {"ann", "user-8"}
    np.testing.assert_array_equal(vectors["ann"], expected(root, "ann", [1, 5]))
    np.testing.assert_array_equal(vectors["user-8"], expected(root, "user-8", [2]))
    assert snapshot(root.path) == before
    assert list(root.temporary.iterdir()) == []
    assert [path.name for path in out.parent.iterdir()] == ["vectors.parquet"]


def test_rows_are_sorted_and_the_same_bytes_whatever_the_threads_memory_and_order_of_lines(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surf2vec.tasks.queries.infer, "ROW_GROUP_ROWS", 4)
    lines = [line for user, items in planted_histories(90).items() for line in history_lines(f"new-{user}", items)]
    logs = write_log(tmp_path / "a.csv", *lines), write_log(tmp_path / "b.csv", *sorted(lines, reverse=True))
    two_threads = dataclasses.replace(TRAIN, threads=2)
    infer(root, "r1", ask(logs[0], tmp_path / "a.parquet"))
    infer(root, "r1", ask(logs[1], tmp_path / "b.parquet", two_threads))
    monkeypatch.setattr(surf2vec.tasks.queries.infer, "_plan_rows", lambda *_: 4)
    infer(root, "r1", ask(logs[0], tmp_path / "c.parquet", two_threads))
    data = [(tmp_path / f"{name}.parquet").read_bytes() for name in "abc"]
    assert data[0] == data[1] == data[2]
    users = list(read_vectors(tmp_path / "a.parquet"))
    assert len(users) == 90
    assert users == sorted(users, key=lambda user: (user_hash(user) % 8, user.encode()))


def test_histories_are_those_of_a_corpus(root: Root, tmp_path: Path) -> None:
    pages = {
        "repeats": [1, 1, 2, 2, 2, 1], "apart": [3, "nowhere", 3], "long": list(range(30)), "busy": [7, 8] * 30,
    }  # fmt: skip
    log = write_log(
        tmp_path / "log.csv", *(line for user, items in pages.items() for line in history_lines(user, items))
    )
    infer(root, "r1", ask(log, tmp_path / "v.parquet", max_user_events=4, max_day_events=50))
    vectors = read_vectors(tmp_path / "v.parquet")
    tokens = {"repeats": [1, 2, 1], "apart": [3, 3], "long": [26, 27, 28, 29], "busy": [7, 8, 7, 8]}
    assert set(vectors) == set(tokens)
    for user, items in tokens.items():
        np.testing.assert_array_equal(vectors[user], expected(root, user, items), err_msg=user)


def test_columns_are_the_calls(root: Root, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", "/page/1;ann", "/page/5;ann", header="page;who")
    columns = ColumnsConfig(user=("who",), url=("page",), time=())
    infer(root, "r1", ask(log, tmp_path / "v.parquet", columns=columns))
    np.testing.assert_array_equal(read_vectors(tmp_path / "v.parquet")["ann"], expected(root, "ann", [1, 5]))
    with pytest.raises(InputError, match="ingest.columns.user"):
        infer(root, "r1", ask(log, tmp_path / "v.parquet"))


def test_a_log_without_any_known_item_makes_a_file_without_rows(root: Root, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", "ann,/nowhere,2026-02-01", "bob,/else,2026-02-01")
    result = infer(root, "r1", ask(log, tmp_path / "v.parquet"))
    assert (result["users"], result["users_without_known_items"], result["events_unknown_items"]) == (0, 2, 2)
    assert pq.read_table(tmp_path / "v.parquet").num_rows == 0


def test_garbage_leaves_everything_but_a_list_of_rejects(root: Root, tmp_path: Path) -> None:
    before, out = snapshot(root.path), tmp_path / "v.parquet"
    out.write_bytes(b"as it was")
    log = write_log(tmp_path / "log.csv", "ann,/page/1,2026-02-01", *["secret-9731,/page/1,whenever"] * 3)
    with pytest.raises(RejectedError, match="3 of 4 new lines") as caught:
        infer(root, "r1", ask(log, out))
    listed = root.rejects / "infer"
    assert str(listed) in str(caught.value)
    assert sum(pq.read_metadata(path).num_rows for path in listed.iterdir()) == 3
    assert "9731" not in str(caught.value)
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)) * 100)
    for name in ("bytes.csv", "none*.csv"):
        with pytest.raises(SurfError):
            infer(root, "r1", ask(tmp_path / name, out))
    assert out.read_bytes() == b"as it was"
    assert snapshot(root.path) == before
    assert list(root.temporary.iterdir()) == []
    assert not listed.exists()  # the last two calls rejected no line


def test_rejects_lists_what_infer_counts(root: Root, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", "ann,/page/1,2026-02-01", "ann,/page/2,2026-02-01", "bob,/page/1,whenever")
    query = ask(log, tmp_path / "v.parquet", max_reject_ratio=0.5)
    lines: list[str] = []
    assert infer(root, "r1", query, lambda name, values: lines.append(values.get("message", "")))["rejected"] == 1
    assert any("1 of 3 lines rejected (1 time not readable); `surf2vec rejects` prints them" in one for one in lines)
    assert list_rejects(root, 5)["counts"] == [
        {"delivery": "the last infer", "source": str(log), "reason": "time not readable", "lines": 1}
    ]
    infer(root, "r1", ask(write_log(log, "ann,/page/1,2026-02-01"), tmp_path / "v.parquet"))
    assert list_rejects(root, 5)["num_rejected"] == 0


def test_without_a_release_the_error_is_that_of_similar(root: Root, tmp_path: Path) -> None:
    log, out = write_log(tmp_path / "log.csv", *LITERAL), tmp_path / "v.parquet"
    for place in (root.path, tmp_path):
        messages = []
        for call in (
            lambda at: similar("ann", 5, at),
            lambda at: infer_by_command([str(log)], out, at, on_event=ignore_event),
        ):
            with pytest.raises(InputError) as caught:
                call(place)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    with pytest.raises(InputError, match="no export in .*r9: run `surf2vec run` first"):
        infer(root, "r9", ask(log, out))
    assert not out.exists()


def test_what_a_run_publishes_meanwhile_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, log = make_root(tmp_path / "root"), write_log(tmp_path / "log.csv", *LITERAL)
    infer(root, "r1", ask(log, tmp_path / "before.parquet"))

    def ingest_while_all_goes(*arguments: Any, **named: Any) -> dict[str, Any]:
        for folder in (root.store, root.path / "corpus", root.path / "export"):
            shutil.rmtree(folder)
        return ingest(*arguments, **named)

    monkeypatch.setattr(surf2vec.tasks.queries.infer, "ingest", ingest_while_all_goes)
    infer(root, "r1", ask(log, tmp_path / "after.parquet"))
    assert (tmp_path / "before.parquet").read_bytes() == (tmp_path / "after.parquet").read_bytes()


def test_a_release_that_was_replaced_is_said_so(tmp_path: Path) -> None:
    root, log = make_root(tmp_path / "root"), write_log(tmp_path / "log.csv", *LITERAL)
    (root.store / "pinned" / "r1.json").unlink()
    # Still the current generation: its run was killed before pinning.
    infer(root, "r1", ask(log, tmp_path / "v.parquet"))
    manifest = root.store / "MANIFEST.json"
    write_json(manifest, read_json(manifest) | {"generation": 2})
    with pytest.raises(DamageError, match="has not the generation of release r1: .* same command again"):
        infer(root, "r1", ask(log, tmp_path / "v.parquet"))


def test_items_are_made_by_the_roots_rules(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", granularity="prefix:2", timezone="Europe/Berlin")
    log = write_log(tmp_path / "log.csv", "ann,/page/1/deep/down,2026-02-01")
    assert infer(root, "r1", ask(log, tmp_path / "v.parquet"))["users"] == 1
    assert infer(root, "r1", ask(log, tmp_path / "v.parquet", granularity="prefix:2"))["users"] == 1
    with pytest.raises(ConfigError, match="ingest.granularity is 'page', but was 'prefix:2' when"):
        infer(root, "r1", ask(log, tmp_path / "v.parquet", granularity="page"))


def test_users_are_named_by_the_roots_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "open sesame, open")
    root, out = make_root(tmp_path / "root", user_key_env="KEY"), tmp_path / "v.parquet"
    log = write_log(tmp_path / "log.csv", *LITERAL)
    infer(root, "r1", ask(log, out, user_key_env="KEY"))
    assert set(read_vectors(out)) == {pseudonym(user, b"open sesame, open") for user in ("ann", "user-8")}
    with pytest.raises(ConfigError, match="has pseudonyms"):
        infer(root, "r1", ask(log, out))


def test_a_file_that_cannot_be_written_is_refused(root: Root, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", *LITERAL)
    (tmp_path / "folder.parquet").mkdir()
    for out, error, message in (
        (tmp_path / "v.csv", ConfigError, "does not end in .parquet"),
        (tmp_path / "folder.parquet", ConfigError, "is a folder"),
        (tmp_path / f"{'x' * 300}.parquet", ConfigError, "File name too long"),
        (log / "v.parquet", ResourceError, "no folder that may be written to"),
    ):
        with pytest.raises(error, match=message):
            infer(root, "r1", ask(log, out))
    table = pa.table({"user_id": ["ann"], "url": ["/page/1"], "ts": [1]})
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(InputError, match="is one of the logs"):
        infer(root, "r1", ask(tmp_path / "log.parquet", tmp_path / "log.parquet"))
    assert pq.read_table(tmp_path / "log.parquet") == table


def test_too_little_memory_is_refused_with_the_numbers(root: Root, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", *LITERAL)
    with pytest.raises(ResourceError, match=r"the 60 items of release r1 need .* raise --host-memory"):
        infer(root, "r1", ask(log, tmp_path / "v.parquet", memory_bytes=1_000_000))


def test_training_settings_are_the_releases(root: Root, tmp_path: Path) -> None:
    log, said = write_log(tmp_path / "log.csv", *LITERAL), []
    other = TrainConfig(vector_size=16, epochs=TRAIN.epochs, threads=1)
    infer(root, "r1", ask(log, tmp_path / "v.parquet", other), lambda name, values: said.append(values.get("message")))
    assert "train.vector_size is 8, as in release r1, not 16" in said
    assert not [message for message in said if message and "train.epochs" in message]
    assert len(read_vectors(tmp_path / "v.parquet")["ann"]) == 8


CHILD = """
import sys, time
from pathlib import Path
import surf2vec.tasks.queries.infer
from surf2vec.tasks.root.run import Root
from tests.tasks.queries.test_infer import ask

def stall(*arguments):
    print("inferring", flush=True)
    time.sleep(600)

surf2vec.tasks.queries.infer.infer_whole = stall
surf2vec.tasks.queries.infer.infer(Root(Path(sys.argv[1])), "r1", ask(Path(sys.argv[2]), Path(sys.argv[3])))
"""


def test_a_killed_call_leaves_nothing_after_the_next_and_a_living_one_is_left_alone(root: Root, tmp_path: Path) -> None:
    log, out = write_log(tmp_path / "log.csv", *LITERAL), tmp_path / "out" / "v.parquet"
    command = [sys.executable, "-c", CHILD, str(root.path), str(log), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout
        assert process.stdout.readline() == b"inferring\n"
        folders, partial = list(root.temporary.iterdir()), list(out.parent.iterdir())
        assert (len(folders), len(partial)) == (1, 1)
        infer(root, "r1", ask(log, tmp_path / "other.parquet"))
        assert (list(root.temporary.iterdir()), list(out.parent.iterdir())) == (folders, partial)
        process.kill()
    assert list(root.temporary.iterdir()) == folders
    infer(root, "r1", ask(log, tmp_path / "other.parquet"))
    assert list(root.temporary.iterdir()) == []
    assert list(out.parent.iterdir()) == []
