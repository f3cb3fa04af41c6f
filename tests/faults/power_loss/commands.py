"""The commands that lose power, each in a world of its own: a folder with a root, logs, and what the command writes elsewhere.

python -m tests.faults.power_loss.commands NAME WORLD      runs one; a trainer says on standard error when a commit has ended
"""

import dataclasses
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import surf2vec.trainer.training.preparation
from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.root.run import Root, lock_root
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import has_generation, open_generation
from surf2vec.trainer.store.writer import remove_unreferenced
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.data.corpora import planted_histories, write_corpus
from tests.faults.faulty_trainer import PROCESS_BYTES, tell_commits
from tests.faults.power_loss import registry
from tests.faults.power_loss.worlds import list_files, logs_of, run_ingest
from tests.faults.trainer_kills import remember_positions
from tests.roots.ingest import events_files, read_events, read_rejects, write_log
from tests.roots.releases import export_release
from tests.roots.store_contents import count_differences, read_tables
from tests.roots.training import MEMORY_BYTES, SETTINGS, make_trained, prepare, rows_by_user

COMMITS = TrainConfig(vector_size=8, epochs=2, threads=1, alpha=0.1, negative=5, commit_seconds=0)


@dataclass(frozen=True)
class Command:
    """prepare: makes the world; run: the command; read: what must come of it. All get the world's folder.

    held: what must be there without another run, once the command had said that it is done. has_registry: it uses MLflow.
    """

    prepare: Callable[[Path], Any]
    run: Callable[[Path], Any]
    read: Callable[[Path], Any]
    held: Callable[[Path], Any]
    has_registry: bool = False


# commit


def make_job(world: Path) -> Job:
    return Job(world / "corpus", world / "store", COMMITS, MEMORY_BYTES)


def same_plans() -> Any:
    """Every process counts as equally large, so that each training is planned alike."""
    return mock.patch.object(surf2vec.trainer.training.preparation, "private_bytes", return_value=PROCESS_BYTES)


def prepare_commit(world: Path) -> None:
    write_corpus(world / "corpus", planted_histories(num_users=24), partitions=3)


def run_commit(world: Path) -> None:
    with same_plans():
        train(make_job(world))


def read_commit(world: Path) -> Any:
    remove_unreferenced(world / "store")  # after the last commit that is gc's
    rows = [(rows.vectors.tobytes(), rows.squares.tobytes()) for rows in read_tables(world / "store")]
    return open_generation(world / "store").position, rows, list_files(world / "store", with_bytes=False)


@cache
def remember_commits() -> dict[int, Any]:
    """The tables after each commit of the undisturbed training, by its position."""
    with tempfile.TemporaryDirectory() as folder:
        prepare_commit(Path(folder))
        with same_plans():
            return remember_positions(make_job(Path(folder)))


def check_commits(world: Path, num_reported: int) -> None:
    """No commit is reported that is not there, and what is there is whole: bit for bit what training held at that position."""
    position = 0
    if has_generation(world / "store"):
        position = open_generation(world / "store").position
        assert count_differences(read_tables(world / "store"), remember_commits()[position])[1] == 0
    assert position >= num_reported, f"{num_reported} commits were reported, and the store is at {position}"


# ingest, corpus, export


def prepare_ingest(world: Path) -> None:
    write_log(logs_of(world) / "a.csv", "u,/old,2020-07-01", "u,/old,2020-07-02")
    run_ingest(world)
    write_log(logs_of(world) / "a.csv", "u,/new,2020-07-02", "u,/new,2020-07-03", "u,/new,never")
    write_log(logs_of(world) / "b.csv", *(f"u{n},/b{n % 7},2020-07-0{n % 3 + 1}" for n in range(40)))


def read_ingest(world: Path) -> Any:
    root = world / "root"
    named = {str(Path(name).relative_to(root)) for name in events_files(root)}
    there = {name for name in list_files(root, with_bytes=False) if name.startswith("events/")}
    assert named == there, named ^ there
    return list_files(root), read_events(root), read_rejects(root)


def prepare_corpus(world: Path) -> None:
    root, window_id = prepare(world / "root", 4, num_users=30)
    shutil.rmtree(root.corpus(window_id))


def run_corpus(world: Path) -> None:
    root = Root(world / "root")
    with lock_root(root, "corpus"):
        build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)


def read_corpus(world: Path) -> Any:
    return list_files(world / "root")


def prepare_export(world: Path) -> None:
    """Another release was in the same folder, so that it is replaced."""
    root, window_id = prepare(world / "root", 4, num_users=30)
    config = TrainConfig(**SETTINGS)
    train(Job(root.corpus(window_id), root.store, dataclasses.replace(config, seed=2), MEMORY_BYTES))
    export_release(root, "r1", root.corpus(window_id), open_generation(root.store))
    train(Job(root.corpus(window_id), root.store, config, MEMORY_BYTES))


def run_export(world: Path) -> None:
    root = Root(world / "root")
    generation = open_generation(root.store)
    export_release(root, "r1", root.corpus(generation.manifest["window_id"]), generation)


def read_export(world: Path) -> Any:
    return list_files(world / "root" / "export")


# repartition


def prepare_repartition(world: Path) -> None:
    make_trained(world / "root", 4, num_users=30)


def run_repartition(world: Path) -> None:
    from surf2vec.tasks.upkeep.repartition import repartition

    root = Root(world / "root")
    with lock_root(root, "repartition"):
        repartition(root, 8, MEMORY_BYTES, 1)


def read_repartition(world: Path) -> Any:
    root = Root(world / "root")
    files = [name for name in list_files(root.path, with_bytes=False) if name.startswith(("events", "store"))]
    return rows_by_user(root), read_events(root.path, "micro_partition, user_id, url, ts, line"), files


# push


def prepare_push(world: Path) -> None:
    from tests.roots.pushes import SECOND, push_to, write_release

    push_to(f"parquet://{world}/serving", write_release(world / "r1", "r1"))
    write_release(world / "r2", "r2", SECOND, number=2)


def run_push(world: Path) -> None:
    from surf2vec.tasks.registry.versions import Version
    from surf2vec.tasks.release.folder import open_folder
    from surf2vec.tasks.stores.push import Pushed
    from tests.roots.pushes import push_to

    tags = {"release": "r2", "window_until": "2026-11-02"}
    release = Pushed(open_folder(world / "r2"), Version("surf2vec-users", 2, tags))
    push_to(f"parquet://{world}/serving", release)


def read_push(world: Path) -> Any:
    """What a reader finds behind the link that serves: the vectors of all keys."""
    from surf2vec.tasks.release.release_reader import KEYS
    from surf2vec.tasks.stores.places import open_store

    (current,) = (path for path in (world / "serving").iterdir() if path.is_symlink())
    with open_store(f"parquet://{world}/serving") as store:
        (side,) = (one for one in store.read_sides() if one.serves)
        rows = {kind: sorted(store.read_digests(side.name, kind).rows()) for kind in KEYS}
    return side.release, current.name, rows


def list_corpora(world: Path) -> Any:
    return list_files(world / "root" / "corpus")


def list_pulled(world: Path) -> Any:
    return list_files(world / "out")


def read_held_events(world: Path) -> Any:
    return read_events(world / "root", "micro_partition, user_id, url, ts, line")


COMMANDS = {
    "commit": Command(prepare_commit, run_commit, read_commit, read_commit),
    "ingest": Command(prepare_ingest, run_ingest, read_ingest, read_held_events),
    "corpus": Command(prepare_corpus, run_corpus, read_corpus, list_corpora),
    "export": Command(prepare_export, run_export, read_export, read_export),
    "repartition": Command(prepare_repartition, run_repartition, read_repartition, read_held_events),
    "push": Command(prepare_push, run_push, read_push, read_push),
    "register": Command(
        registry.prepare_register, registry.run_register, registry.read_registry, registry.read_versions, True
    ),
    "promote": Command(
        registry.prepare_promote, registry.run_promote, registry.read_registry, registry.read_versions, True
    ),
    "rollback": Command(
        registry.prepare_rollback, registry.run_rollback, registry.read_registry, registry.read_versions, True
    ),
    "gc": Command(registry.prepare_gc, registry.run_gc, registry.read_gc, registry.read_versions, True),
    "forget": Command(registry.prepare_forget, registry.run_forget, registry.read_forget, registry.read_vectors, True),
    "pull": Command(registry.prepare_pull, registry.run_pull, registry.read_pull, list_pulled, True),
    "restore": Command(
        registry.prepare_restore, registry.run_restore, registry.read_restore, registry.read_vectors, True
    ),
    "first night": Command(
        registry.prepare_first_night, registry.run_night, registry.read_night, registry.read_vectors, True
    ),
    "second night": Command(
        registry.prepare_second_night, registry.run_night, registry.read_night, registry.read_vectors, True
    ),
}


def main() -> None:
    warnings.simplefilter("ignore")
    tell_commits()
    name, world = sys.argv[1:]
    COMMANDS[name].run(Path(world))


if __name__ == "__main__":
    main()
