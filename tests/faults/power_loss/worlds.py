"""Worlds of power losses: a folder with a root, and with what a command writes elsewhere; its logs are beside it."""

from pathlib import Path

from surf2vec.tasks.config import IngestConfig, PublishConfig
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import lock_root, open_root
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.system.files import digest_file
from tests.roots.ingest import write_log
from tests.roots.training import MEMORY_BYTES

PUBLISH = PublishConfig(keep_releases=1)


def logs_of(world: Path) -> Path:
    """The logs, beside the world: a root knows them by inode and times, which the disks that are made do not keep."""
    return world.with_name(f"{world.name}-logs")


def list_files(folder: Path, with_bytes: bool = True) -> dict[str, str]:
    """The files below a folder by name, with the digest of each; without locks and leftovers, which gc removes."""
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    seen = {name: path for name, path in paths.items() if not any(part.startswith(".") for part in Path(name).parts)}
    return {name: digest_file(path) if with_bytes else "" for name, path in seen.items()}


def run_ingest(world: Path) -> None:
    root = open_root(world / "root")
    with lock_root(root, "ingest"):
        config = IngestConfig(max_reject_ratio=1)
        ingest(root, [f"{logs_of(world)}/*.csv"], config, 4, MEMORY_BYTES, 1, ignore_event)


def run_ingest_one(world: Path) -> None:
    write_log(logs_of(world) / "a.csv", "u,/a,2020-07-01")
    run_ingest(world)
