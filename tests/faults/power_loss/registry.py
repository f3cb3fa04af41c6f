"""Commands of power losses that use MLflow: their worlds, what they do, and what must come of it. See `commands`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.root.run import FORGET, Root, lock_root, open_root
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.writer import lock_store
from surf2vec.trainer.system.files import read_json
from tests.data.corpora import planted_histories
from tests.faults.power_loss.worlds import PUBLISH, list_files, logs_of, run_ingest_one
from tests.roots.ingest import read_events, write_day
from tests.roots.training import MEMORY_BYTES, rows_by_user

GONE = "user-11"
MODEL = "models:/surf2vec-users@champion"


def make_nights(
    world: Path, gates: Sequence[str], keep: int = 3, between: Callable[[Path], Any] = lambda _: None
) -> None:
    """A root with nights r1, r2, ... of these verdicts (names in tests.roots.nights), of which `keep` releases are kept.

    between: is called after the first night.
    """
    from tests.roots import nights

    root = open_root(world / "root")
    run_ingest_one(world)
    for number, gate in enumerate(gates, start=1):
        if number == 2:
            between(world)
        nights.make_night(root, f"r{number}", getattr(nights, gate), PublishConfig(keep_releases=keep))


def prepare_register(world: Path) -> None:
    from tests.roots.nights import commit_generation, export_release, make_corpus

    make_nights(world, ("FIRST",), keep=1)
    root = Root(world / "root")
    corpus_dir = make_corpus(root, 10, 2, "window-r2")
    commit_generation(root, corpus_dir, seed=2)
    export_release(root, "r2", corpus_dir, open_generation(root.store))


def run_register(world: Path) -> None:
    from tests.roots.nights import PASSED, make_night

    make_night(Root(world / "root"), "r2", PASSED, PUBLISH)


def read_registry(world: Path) -> Any:
    """Versions with their tags, aliases, the files of each version's copy, the records; no times and no random ids."""
    from surf2vec.tasks.registry import tracking
    from surf2vec.tasks.registry.faults import find_faults
    from surf2vec.tasks.registry.releases import read_model

    root = Root(world / "root")
    found = read_model(root.tracking_uri, PUBLISH.model_name)
    versions = []
    for version in found.versions:
        folder = version.folder
        assert not list(find_faults(version))
        files = list_files(folder / "artifacts") if folder and (folder / "artifacts").exists() else {}
        timed = ("_at", "state_sha256")
        tags = {name: value for name, value in version.tags.items() if not name.endswith(timed)}
        files = {name: digest for name, digest in files.items() if name != "state/manifest.json"}
        versions.append((version.number, tags, sorted(set(version.tags) - set(tags)), files))
    records = {path.parent.name: read_run_record(path) for path in root.path.glob("runs/*/run.json")}
    copies = len(tracking.list_copies(root.tracking_uri))
    return versions, found.aliases, records, copies, list_files(root.path / "export"), list_store(root)


def read_run_record(path: Path) -> Any:
    record = read_json(path)
    version = record["steps"].get("register", {}).get("model_version")
    gate = {name: value for name, value in (record["steps"].get("gate") or {}).items() if name != "champion"}
    # The gate's champion is left out: tests.roots.nights judges by who serves now.
    return (version, sorted(record["steps"]), gate)


def list_store(root: Root) -> Any:
    return sorted(name for name in list_files(root.store, with_bytes=False))


prepare_promote = partial(make_nights, gates=("FIRST", "HELD"))
prepare_rollback = partial(make_nights, gates=("FIRST", "PASSED"))
prepare_gc = partial(make_nights, gates=("FIRST", "PASSED", "PASSED", "PASSED"), keep=9)


def run_promote(world: Path) -> None:
    from surf2vec.tasks.registry.promotion import promote

    promote(Root(world / "root"), PUBLISH, None, "the data is right")


def run_rollback(world: Path) -> None:
    from surf2vec.tasks.registry.promotion import rollback

    rollback(Root(world / "root"), PUBLISH, None)


def run_gc(world: Path) -> None:
    from surf2vec.tasks.upkeep.gc import collect_garbage

    root = Root(world / "root")
    with lock_root(root, "gc"), lock_store(root.store):
        collect_garbage(root, PUBLISH, False)


def read_gc(world: Path) -> Any:
    root = world / "root"
    names = [name for name in list_files(root, with_bytes=False) if not name.startswith("mlartifacts/")]
    folders = len(list(root.glob("mlartifacts/models/*")))
    return read_registry(world)[:2], names, folders


def prepare_forget(world: Path) -> None:
    from tests.roots.serving import make_served

    make_served(world / "root", PublishConfig(), ("r1",), num_users=30)


def run_forget(world: Path) -> None:
    from surf2vec.tasks.forgetting.forget import forget

    root = Root(world / "root")
    with lock_root(root, FORGET), lock_store(root.store):
        forget(root, [GONE], PublishConfig(), MEMORY_BYTES)


def read_forget(world: Path) -> Any:
    from surf2vec.tasks.registry.releases import read_model
    from tests.roots.serving import champion_vectors

    root = Root(world / "root")
    users = champion_vectors(root, PublishConfig())
    assert GONE not in users
    assert not root.forgetting.exists()
    events = read_events(root.path)
    assert GONE not in {user for user, *_ in events}
    found = read_model(root.tracking_uri, PUBLISH.model_name)
    versions = [(one.number, one.tags["release"]) for one in found.versions]
    exports = [path.name for path in sorted((root.path / "export").iterdir())]
    return users, rows_by_user(root), events, versions, found.aliases, exports, list_store(root)


def run_pull(world: Path) -> None:
    from surf2vec.tasks.registry.pull import pull

    pull(MODEL, world / "out", Root(world / "root").tracking_uri)


prepare_pull = partial(make_nights, gates=("FIRST", "PASSED"), between=run_pull)
"""An older release was pulled before, so that it is replaced."""


def read_pull(world: Path) -> Any:
    return list_files(world / "out"), sorted(path.name for path in world.iterdir())


def prepare_restore(world: Path) -> None:
    from tests.roots.serving import make_served

    make_served(world / "lost", PublishConfig(), ("r1",), num_users=30)


def run_restore(world: Path) -> None:
    from surf2vec.operations import restore

    restore(MODEL, world / "root", Root(world / "lost").tracking_uri, on_event=ignore_event)


def read_restore(world: Path) -> Any:
    root = Root(world / "root")
    names = list(list_files(root.path, with_bytes=False))
    return rows_by_user(root), list_files(root.path / "export"), list_files(root.path / "store"), names


# nights

NIGHT = [
    "train.epochs=2",
    "train.vector_size=8",
    "train.threads=1",
    "train.negative=5",
    "ingest.min_item_users=1",
    "ingest.min_item_events=1",
    "store.partitions=2",
    "window_days=9",
    "gate.newest_day_events=0",
    "gate.hit_at_10_drop=1",
    "gate.kept=0",
]
HISTORIES = planted_histories(60)


def write_night(world: Path, day: int) -> None:
    users = list(HISTORIES)[:: 1 if day == 1 else 6]
    write_day(logs_of(world), day, {user: HISTORIES[user][day - 1 :: 2] for user in users})


def run_night(world: Path) -> None:
    from surf2vec.tasks.night.config import load_config
    from surf2vec.tasks.night.night import make_night

    make_night(world / "root", [f"{logs_of(world)}/*.csv"], config=load_config(None, NIGHT))


def prepare_first_night(world: Path) -> None:
    write_night(world, 1)


def prepare_second_night(world: Path) -> None:
    write_night(world, 1)
    run_night(world)
    write_night(world, 2)


def read_night(world: Path) -> Any:
    """The registry without the files of its copies, and the vectors of the release that serves."""
    from tests.roots.serving import champion_vectors

    root = Root(world / "root")
    versions, aliases, records, copies, *_ = read_registry(world)
    told = [(number, tags.get("release"), tags.get("gate")) for number, tags, *_ in versions]
    steps = {name: (alias, done) for name, (alias, done, *_) in records.items()}
    return told, aliases, steps, copies, champion_vectors(root, PUBLISH), rows_by_user(root), read_events(root.path)


def read_vectors(world: Path) -> Any:
    return rows_by_user(Root(world / "root"))


def read_versions(world: Path) -> Any:
    versions, aliases, *_ = read_registry(world)
    return versions, aliases
