"""The root folder, its temporary and run folders, the writer lock, and the record of finished steps.

A run is identified by the digest of its sources, window and settings. Repeating a command therefore continues the same run:
finished steps are skipped.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from surf2vec.tasks.root.memory import give_back_memory
from surf2vec.tasks.root.records import IngestStep, RunRecord, S, Step, Steps, read_run_record
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.store.generation import Generation, has_generation, open_generation
from surf2vec.trainer.store.tokens import CHANGED
from surf2vec.trainer.system.files import TEMPORARY_SUFFIX, is_locked, lock, make_folder, write_manifest_json

FORGET = "forget"
"""The purpose of the only writer that may run after an interrupted `surf2vec forget`."""


class _Below:
    """An attribute of Root: the path of a file or folder in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, root: "Root", owner: type) -> Path:
        return root.path / self.name


@dataclass(frozen=True)
class Root:
    """The project root on disk: the paths of everything in it."""

    path: Path

    events = _Below("events")
    sources = _Below("sources.json")
    identity = _Below("root.json")  # tasks/root/identity.py
    settings = _Below("surf2vec.toml")  # tasks/night/root_settings.py
    rejects = _Below("rejects")
    store = _Below("store")
    nights_page = _Below("runs/index.html")
    temporary = _Below(".tmp")
    forgetting = _Below("forgetting.json")  # exists while users are being forgotten

    def corpus(self, window_id: str) -> Path:
        return self.path / "corpus" / window_id

    def export(self, release: str) -> Path:
        return self.path / "export" / release

    def run(self, run_id: str) -> Path:
        return self.path / "runs" / run_id

    def corpora(self) -> list[Path]:
        return [path.parent for path in sorted(self.path.glob("corpus/[!.]*/manifest.json"))]

    def exports(self) -> list[Path]:
        return [path.parent for path in sorted(self.path.glob("export/[!.]*/manifest.json"))]

    def pinned(self) -> list[Path]:
        """The manifests of the store's pinned generations, sorted by name."""
        return sorted(self.store.glob("pinned/*.json"))

    @property
    def database(self) -> Path:
        """The database of the root's own registry, if it has one."""
        return self.path.resolve() / "mlflow.db"

    @property
    def tracking_uri(self) -> str:
        """The root's own database; `registry_uri` in tasks/root/identity.py returns the registry that a call uses."""
        return f"sqlite:///{self.database}"

    @property
    def artifacts(self) -> Path:
        return self.path.resolve() / "mlartifacts"


def open_root(path: Path) -> Root:
    """Return the root at `path`; creates it if missing, with mode 700. Raises ResourceError when it is not writable."""
    try:
        make_folder(path, 0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "no write permission")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ResourceError(f"cannot write to the root {path}: {reason}; use another --root") from None
    return Root(path)


@contextmanager
def private_files(root: Root) -> Iterator[None]:
    """Give files made by this process and its children the root folder's access rights, restricted by the umask.

    Only the owner can read a root that surf2vec made; an existing folder keeps its access rights. `lock_root` already
    includes this.
    """
    before = os.umask(0o077)
    os.umask(before | (~root.path.stat().st_mode & 0o077))
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def lock_root(root: Root, purpose: str, on_wait: Callable[[str], None] = lambda message: None) -> Iterator[None]:
    """Hold the writer lock; waits for another writer. The lock ends with its process."""
    holder = f"process {os.getpid()}, {purpose}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"

    def wait(other: str) -> None:
        on_wait(f"waiting for another writer of {root.path}: {other}")

    with private_files(root), lock(root.path / ".lock", holder, wait):
        if root.forgetting.exists() and purpose != FORGET:  # another writer could bring users back
            raise ResourceError(
                f"a `surf2vec forget` of {root.path} was interrupted: run the same command again, or `surf2vec forget` without "
                "--ids-file, which finishes it"
            )
        yield


@contextmanager
def use_temporary_folder(folder: Path) -> Iterator[None]:
    """Make `tempfile`, and the libraries that use it, create folders in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def open_scratch_folder(root: Root, name: str) -> Iterator[Path]:
    """Yield a new folder on the root's disk and remove it at the end. First removes the folders of killed calls.

    A locked file in it shows that its call is alive. The folder gets its final name only once that file is locked.
    """
    root.temporary.mkdir(parents=True, exist_ok=True)
    for folder in list_folders(root.temporary):
        if (folder / ".lock").exists() and not is_locked(folder / ".lock"):
            remove_scratch_folder(folder)
    made = Path(tempfile.mkdtemp(prefix=f".new-{name}.", dir=root.temporary))
    folder = made.with_name(made.name.removeprefix(".new-"))
    try:
        with lock(made / ".lock"):
            made.rename(folder)
            yield folder
    finally:
        for path in (made, folder):
            shutil.rmtree(path, ignore_errors=True)


def note_partial(folder: Path, path: Path) -> None:
    """Note in a scratch folder that its call is writing `path`: if the call is killed, that file is removed too."""
    (folder / "partial").symlink_to(path.absolute())


def remove_scratch_folder(folder: Path) -> None:
    """Remove the folder of a killed call, and the file that it had partly written."""
    partial = folder / "partial"
    if partial.is_symlink() and partial.readlink().name.endswith(TEMPORARY_SUFFIX):
        partial.readlink().unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # another call may remove it at the same time


def current_generation(root: Root) -> Generation | None:
    return open_generation(root.store) if has_generation(root.store) else None


def refuse_training(root: Root, then: str) -> None:
    """Raise ConfigError while a training is under way: its position and its corpus belong together."""
    generation = current_generation(root)
    is_changed = generation and f"/{CHANGED}" in generation.manifest["window_id"]
    if generation and (is_changed or generation.manifest["stage"] == "training"):
        raise ConfigError(
            f"{root.store} holds a training that has not ended: finish it by the same `surf2vec run`, or remove "
            f"{root.store / 'MANIFEST.json'} to give it up; then {then}"
        )


@dataclass(frozen=True)
class Run:
    """One run and its folder `runs/<run-id>/`; its `run.json` is the record (tasks/root/records.py)."""

    root: Root
    run_id: str

    @property
    def folder(self) -> Path:
        return self.root.run(self.run_id)

    @property
    def record_path(self) -> Path:
        return self.folder / "run.json"

    def record(self) -> RunRecord:
        """Return what is recorded so far. Raises DamageError when it cannot be read."""
        return (
            read_run_record(self.record_path)
            if self.record_path.exists()
            else RunRecord(run_id=self.run_id, steps=Steps())
        )

    def amend(self, change: Callable[[RunRecord], RunRecord]) -> None:
        """Replace the record by `change(record)`. Under a lock: a rollback may write during a nightly run."""
        make_folder(self.folder)
        with lock(self.folder / ".lock"):
            write_manifest_json(self.record_path, change(self.record()).to_json())

    def update(self, **values: Any) -> None:
        self.amend(lambda record: record.replace(**values))

    def record_steps(self, *steps: Step) -> None:
        self.amend(lambda record: record.replace(steps=record.steps.replace(*steps)))

    def forget_steps(self) -> None:
        """Mark all steps but ingest as not done, as their results are gone; the record keeps them as "gone_steps"."""
        record = self.record()
        gone = record.steps.without(IngestStep)
        self.update(
            steps=Steps().replace(record.steps.ingest), gone_steps=record.gone_steps.replace(*gone.ended().values())
        )

    def reopen(self, kind: type[Step]) -> None:
        """Mark a step as not done; its record stays until it is done again."""
        self.amend(lambda record: record.reopen(kind))

    def step(self, kind: type[S], digest: str, make: Callable[[], S]) -> S:
        """Return the record of a step if it has this digest of its inputs; otherwise record and return `make()`.

        The recorded seconds exclude its `compile_seconds`: a machine compiles only once. A step that is done again with the same
        result keeps its seconds: the record, and what was sent of it, stay the same.
        """
        done = self.record().steps.find(kind)
        if done and done.digest == digest:
            return done
        started = time.monotonic()
        made = make()
        give_back_memory()
        seconds = round(time.monotonic() - started - (getattr(made, "compile_seconds", None) or 0.0), 3)
        values = [one.model_dump(exclude={"digest", "seconds"}) for one in (done, made)]
        kept = done.seconds if done and values[0] == values[1] else seconds if made.seconds is None else made.seconds
        result = made.model_copy(update={"digest": digest, "seconds": kept})
        self.record_steps(result)
        return result


def forget_releases(root: Root, releases: set[str]) -> None:
    """Mark the steps that made these releases, or found nothing changed since one, as not done: a rerun makes them again."""
    for record in read_run_records(root):
        if {record.run_id, record.steps.unchanged.release} & releases:
            Run(root, record.run_id).forget_steps()


def list_folders(parent: Path, pattern: str = "[!.]*") -> list[Path]:
    """Return the folders in a folder, sorted by name, without hidden ones."""
    return sorted(path for path in parent.glob(pattern) if path.is_dir())


def read_run_records(root: Root) -> list[RunRecord]:
    return [read_run_record(path) for path in sorted(root.path.glob("runs/[!.]*/run.json"))]
