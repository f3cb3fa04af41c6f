"""One flipped bit anywhere in what is read: refused by name with what to do, or the same answer bit for bit; never trained on."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import EvaluateConfig, IngestConfig, PublishConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.gate.figures import compare_vectors
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.queries.explain import explain_user
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.queries.word2vec import export_word2vec
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, open_folder
from surf2vec.tasks.root.records import EvaluateStep
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import has_generation, open_generation
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.system.files import read_json
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.faults.bit_flips import draw_places, flipped
from tests.roots.releases import export_release, make_release, read_users
from tests.roots.training import MEMORY_BYTES, SETTINGS, prepare
from tests.tasks.registry.test_serving_model import ask, load

NUM_PLACES = 4
Answer = Callable[[], Any]


def check(path: Path, answer: Answer, seed: int = 0, error: type[Exception] = DamageError) -> int:
    """Ask with one bit of the file flipped, at several places: it is refused by name, or says what it said; how often refused."""
    expected, num_refused = answer(), 0
    for place in draw_places(path, NUM_PLACES, seed):
        with flipped(path, place):
            try:
                assert answer() == expected, (path, place)
            except error as refused:
                assert path.name in str(refused), (path, place)
                assert re.search(r"surf2vec (run|pull|doctor)|load another version|run again", str(refused)), refused
                num_refused += 1
    return num_refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, str]:
    """A root with events, their corpus, a training and its export."""
    root, window_id = prepare(tmp_path_factory.mktemp("damage") / "root", 4)
    train(Job(root.corpus(window_id), root.store, TrainConfig(**SETTINGS), MEMORY_BYTES))
    export_release(root, "r1", root.corpus(window_id), open_generation(root.store))
    return root, window_id


def build_anew(root: Root, window_id: str) -> dict[str, Any]:
    """Build the corpus of the events anew. Return the digests of its files."""
    shutil.rmtree(root.corpus(window_id), ignore_errors=True)
    build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)
    return dict(read_json(root.corpus(window_id) / EXPORT_MANIFEST)["files"])


def test_no_corpus_is_made_of_altered_events(trained: tuple[Root, str], tmp_path: Path) -> None:
    root = Root(Path(shutil.copytree(trained[0].path, tmp_path / "root")))
    for path in sorted(root.events.rglob("*.parquet")):
        assert check(path, lambda: build_anew(root, trained[1])) == NUM_PLACES
    for place in draw_places(root.sources, NUM_PLACES):
        with flipped(root.sources, place), pytest.raises(DamageError, match=r"sources\.json"):
            build_anew(root, trained[1])


def test_an_altered_record_is_refused(tmp_path: Path) -> None:
    """The gate reads the figures of the nights before in it."""
    run = Run(Root(tmp_path), "r1")
    run.update(created_at="2026-11-26", window_id="0123456789abcdef")
    run.record_steps(EvaluateStep(metrics={"hit_at_10": 0.4321}, num_users=1000))
    for seed in range(10):
        # A line's end may turn to a blank.
        assert check(run.record_path, lambda: run.record().to_json(), seed) >= NUM_PLACES - 1


def test_giving_the_log_again_repairs_altered_events(trained: tuple[Root, str], tmp_path: Path) -> None:
    root = Root(Path(shutil.copytree(trained[0].path, tmp_path / "root")))
    expected = build_anew(root, trained[1])
    path = max(root.events.rglob("*.parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(DamageError, match=r"pass the logs .*a\.csv .*b\.csv to") as told:
        build_anew(root, trained[1])
    logs = re.search(r"pass the logs (\S+) (\S+) to", str(told.value))
    assert logs
    ingest(root, logs.groups(), IngestConfig(), None, MEMORY_BYTES, 1, ignore_event)
    assert build_anew(root, trained[1]) == expected


def test_an_altered_corpus_is_not_trained_on(trained: tuple[Root, str], tmp_path: Path) -> None:
    corpus_dir = Path(shutil.copytree(trained[0].corpus(trained[1]), tmp_path / "corpus"))
    used = [
        path for path in sorted(corpus_dir.glob("p0000[03].*")) if path.suffixes[0] not in (".activity", ".digests")
    ]
    for path in [*used, corpus_dir / EXPORT_MANIFEST]:
        for place in draw_places(path, 2):
            store = tmp_path / f"{path.name}.{place}"
            with flipped(path, place), pytest.raises(DamageError, match=re.escape(path.name)):
                train(Job(corpus_dir, store, TrainConfig(**SETTINGS), MEMORY_BYTES))
            assert not has_generation(store)


@pytest.mark.parametrize("name", ["vocabulary.parquet", "p00000.activity.npy"])
def test_an_altered_file_of_the_corpus_is_not_exported(trained: tuple[Root, str], name: str) -> None:
    root, window_id = trained
    path = root.corpus(window_id) / name
    assert check(path, lambda: read_json(_export(root, window_id, activity=True) / EXPORT_MANIFEST)) == NUM_PLACES


def _export(root: Root, window_id: str, **storage: Any) -> Path:
    shutil.rmtree(root.export("r2"), ignore_errors=True)
    return export_release(root, "r2", root.corpus(window_id), open_generation(root.store), **storage)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def test_an_altered_export_answers_nobody(trained: tuple[Root, str]) -> None:
    root, window_id = trained
    folder, users = root.export("r1"), sorted(read_users(root.export("r1")))[:2]

    def answer() -> Any:
        export, ids = open_folder(folder), open_corpus(root.corpus(window_id)).read_ids(0)
        return (
            [similar_users(root, folder, user, 5) for user in users],
            [compare_vectors(ids, export, export, partition).tolist() for partition in (0, 1)],
        )

    for path in _files(folder):
        num_refused = check(path, answer)  # 0 where nothing of the file is read
        assert num_refused == NUM_PLACES or path.parent.name == "user_vectors"


def test_an_altered_export_is_not_written_elsewhere(trained: tuple[Root, str], tmp_path: Path) -> None:
    folder = trained[0].export("r1")

    def answer() -> bytes:
        export_word2vec(folder, tmp_path / "users.bin", "users")
        return (tmp_path / "users.bin").read_bytes()

    for path in [*_files(folder / "user_vectors"), folder / EXPORT_MANIFEST]:
        assert check(path, answer) == NUM_PLACES


def test_nothing_altered_explains_a_user(trained: tuple[Root, str]) -> None:
    root = trained[0]
    user = min(read_users(root.export("r1")))
    paths = [*root.events.rglob("*.parquet"), *_files(root.corpus(trained[1])), *_files(root.export("r1"))]
    for path in sorted(paths)[::3]:
        check(path, lambda: explain_user(root, PublishConfig(), user))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export as a registered model holds it."""
    return make_release(Root(tmp_path_factory.mktemp("copy")), num_users=600, partitions=2)


def _predict(folder: Path) -> list[Any]:
    answer = ask(load(folder), ["user-7", "user-8", "nobody"], k=5, items=3)
    return [repr(answer[column].tolist()) for column in answer.columns]


@pytest.mark.parametrize("seed", range(3))
def test_an_altered_copy_serves_nobody(copy: Path, seed: int) -> None:
    for path in _files(copy):
        check(path, lambda: _predict(copy), seed, RuntimeError)
    for name in ("index/users.faiss", "item_vectors/part-00000.parquet", EXPORT_MANIFEST):
        assert check(copy / name, lambda: _predict(copy), seed, RuntimeError) == NUM_PLACES


def test_a_lookup_reads_and_looks_at_a_row_group_alone(copy: Path, tmp_path: Path) -> None:
    """What is damaged elsewhere in the file of 20 million users, nobody who does not ask for it has to read."""
    folder = Path(shutil.copytree(copy, tmp_path / "copy"))
    expected = ask(load(folder), ["user-7"])["vector"][0]
    part = load(folder).release.part
    for number in range(2):
        path = folder / "user_vectors" / f"part-{number:05d}.parquet"
        content = bytearray(path.read_bytes())
        bounds = part(number).bounds
        table = part(number).read([0], ["user_id"])[0]["user_id"].to_pylist()
        kept = next((group for group in range(len(bounds) - 2) if _has(part(number), group, "user-7")), 0)
        for group in range(len(bounds) - 2):
            if group != kept:
                content[bounds[group] + 40] ^= 1
        assert table
        path.write_bytes(content)
    assert ask(load(folder), ["user-7"])["vector"][0] == expected


def _has(part: Any, group: int, user_id: str) -> bool:
    return user_id in part.read([group], ["user_id"])[group]["user_id"].to_pylist()
