"""Two roots of one registry, and what people do with them, by the project's code, except training and MLflow's packaging."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from mlflow import MlflowClient

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.forgetting import forget as forgetting
from surf2vec.tasks.gate import figures
from surf2vec.tasks.ingest.sources import Catalog
from surf2vec.tasks.night import runs, steps
from surf2vec.tasks.night.config import PipelineConfig
from surf2vec.tasks.night.context import NightContext
from surf2vec.tasks.registry import mlflow_runs, promotion, publish, releases, tracking
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.registry.versions import Registered, Version
from surf2vec.tasks.root.records import CorpusStep, ExportStep, ReportStep, SettleStep, TrainStep
from surf2vec.tasks.root.run import FORGET, Root, Run, lock_root, open_root
from surf2vec.tasks.stores.places import open_store
from surf2vec.tasks.stores.push import open_pushed, push
from surf2vec.tasks.upkeep import gc, restore
from surf2vec.tasks.users.tombstones import FILE, KEY_FILE, read_tombstones
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation, write_manifest
from surf2vec.trainer.store.layout import STORE_MANIFEST
from surf2vec.trainer.store.writer import lock_store, remove_unreferenced
from tests.data.corpora import RULES, write_corpus
from tests.roots.nights import commit_generation
from tests.roots.releases import export_release
from tests.roots.training import MEMORY_BYTES

USERS = ("ann", "bob", "cid", "dan")
ROOTS = ("a", "b")
DATABASE = "registry.db"


def users_of(number: int, forgotten: frozenset[str] = frozenset()) -> frozenset[str]:
    """Who is in the release of a night; cid comes every other night."""
    return frozenset(USERS) - forgotten - ({"cid"} if number % 2 else frozenset())


WRITES = {
    os: ("replace", "rename", "unlink", "link", "rmdir"),
    MlflowClient: (
        "create_run", "create_logged_model", "finalize_logged_model", "delete_logged_model", "create_model_version",
        "delete_model_version", "set_model_version_tag", "delete_model_version_tag", "set_registered_model_alias",
    ),
    releases: ("_write_tables",),
}  # fmt: skip
spared = partial(mock.patch.multiple, os, **{name: getattr(os, name) for name in WRITES[os]})
"""Within it no write counts: it was done before the process that is to be killed began."""


_MINUTES = count()


def now(zone: Any = UTC) -> datetime:
    """Each time is a minute later, so that runs have an order."""
    return datetime(2026, 1, 1, tzinfo=zone) + timedelta(minutes=next(_MINUTES))


class KilledError(BaseException):
    """What a process does no more."""


class World:
    """The registry and the roots in a folder. `is_server`: SQLite's tables are not written past MLflow, as on a server."""

    def __init__(self, folder: Path, made: Path, is_server: bool = False) -> None:
        self.folder, self.made, self.is_server = folder, made, is_server
        self.uri = f"sqlite:///{folder / DATABASE}"
        self.publish = PublishConfig(tracking_uri=self.uri, keep_releases=2)
        self.config = PipelineConfig(publish=self.publish)
        for name in ROOTS:
            Catalog(2, None, RULES).write(open_root(self.root(name).path))

    def root(self, name: str) -> Root:
        return Root(self.folder / name)

    def read(self) -> Registered:
        return read_model(self.uri, self.publish.model_name)

    def night(self, name: str, number: int, verdict: str) -> None:
        """The night of a day from its plan to its registration; as the night of the same command again if there was one."""
        root, run = self.root(name), Run(self.root(name), f"r{number}")
        quiet = mock.Mock(step=lambda _: nullcontext(ignore_event))
        night = NightContext(root, None, None, self.config, reporter=quiet)
        with lock_root(root, "run"):
            promotion.refuse_lost_champion(root, self.read(), run.run_id if run.record_path.exists() else None)
            for kind in runs.list_gone(run):
                run.forget_steps() if kind is TrainStep else run.reopen(kind)
            if not run.record().steps.train:
                self._train(root, run, number)

            def judge(case: figures.Case) -> dict[str, Any]:
                held = ["users"] if case.champion and verdict == "held" else []
                shown = verdict if case.champion else "first"
                return {"passes": not held, "verdict": shown, "held_by": held, "champion": case.champion}

            window = mock.patch.object(steps, "select_window", return_value=SimpleNamespace(files=[]))
            with mock.patch.object(figures, "judge_release", judge), window:
                steps.judge_release(night, run)
                steps.register_release(night, run)
            run.step(ReportStep, "", lambda: ReportStep(report="report.html"))

    def _train(self, root: Root, run: Run, number: int) -> None:
        trained = self._make(number, users_of(number, self.read_forgotten(root.path.name)))
        corpus = trained.corpora()[0]
        run.update(
            created_at=now().isoformat(), window_id=corpus.name, request=run.run_id,
            champion=self.read().serving, config=self.config.model_dump(mode="json"),
        )  # fmt: skip
        generation = open_generation(trained.store)
        with spared(), lock_store(root.store):
            copy_links(corpus, root.corpus(corpus.name))
            for file in generation.files():
                with suppress(FileExistsError):
                    os.link(trained.store / file, root.store / file)
            write_manifest(root.store, STORE_MANIFEST, generation.manifest)
            remove_unreferenced(root.store)
            copy_links(trained.export(run.run_id), root.export(run.run_id))
        settled = SettleStep(generation=generation.generation, space_id="space-1")
        exported = ExportStep(release=run.run_id, bytes=1)
        run.record_steps(CorpusStep(until=f"2026-01-{number:02}"), TrainStep(generation=1), settled, exported)

    @spared()
    def _make(self, number: int, users: frozenset[str]) -> Root:
        """A root with the corpus, the generation and the export of a night, the same for all roots with these users."""
        window_id = "-".join([f"w{number}", *sorted(users)])
        root = Root(self.made / window_id)
        if not root.export(f"r{number}").exists():
            histories = {user: [place, 3, 4] for place, user in enumerate(sorted(users))}
            open_root(root.path)
            corpus = write_corpus(root.corpus(window_id), histories, 1, 5)
            # forget numbers what it makes from that on
            unused = 1000 * number + 50 * sum(1 << place for place, user in enumerate(USERS) if user in users)
            commit_generation(root, corpus.folder, seed=number, number=unused)
            export_release(root, f"r{number}", corpus.folder, open_generation(root.store))
        return root

    def promote(self, name: str, number: int | None, reason: str | None = None) -> None:
        promotion.promote(self.root(name), self.publish, number, reason)

    def rollback(self, name: str, number: int | None = None) -> None:
        promotion.rollback(self.root(name), self.publish, number)

    def gc(self, name: str) -> None:
        root = self.root(name)
        with lock_root(root, "gc"), promotion.lock_aliases(root), lock_store(root.store):
            gc.collect_garbage(root, self.publish, dry_run=False)

    def forget(self, name: str, user: str) -> None:
        root = self.root(name)
        with lock_root(root, FORGET), lock_store(root.store):
            told = forgetting.forget(root, [user], self.publish, MEMORY_BYTES)
        assert told["found"] == 0

    def delete(self, _: str, what: str, name: str) -> None:
        getattr(MlflowClient(self.uri, self.uri), f"delete_{what}")(self.publish.model_name, name)

    def push(self, name: str) -> None:
        root, uri = self.root(name), f"models:/{self.publish.model_name}@champion"
        with open_store(self.store(name)) as store, open_pushed(root, uri, self.uri, ignore_event) as pushed:
            push(store, pushed, False, forgotten=read_tombstones(root))

    def store(self, name: str) -> str:
        return f"parquet://{self.folder / f'store-{name}'}"

    def restore(self, name: str, number: int) -> None:
        """The folder of a root is lost, but for the list of forgotten users, and a new one is made of a version."""
        root, kept = self.root(name), self.folder / f"kept-{name}"
        with spared():
            if not (kept / str(number)).exists():
                (kept / str(number)).mkdir(parents=True)
                for path in (root.path / FILE, root.path / KEY_FILE):
                    if path.exists():
                        os.replace(path, kept / path.name)
                shutil.rmtree(root.path)
            open_root(root.path)
        with lock_root(root, "restore"), lock_store(root.store):
            restore.restore(root, f"models:/{self.publish.model_name}/{number}", self.uri)
        with spared():
            for path in kept.glob(f"{Path(FILE).stem}.*"):
                os.replace(path, root.path / path.name)
            shutil.rmtree(kept)

    def read_forgotten(self, name: str) -> frozenset[str]:
        tombstones = read_tombstones(self.root(name))
        return frozenset(user for user in USERS if tombstones.day_of(user) is not None)

    def read_night(self, name: str, number: int) -> tuple[str, int] | None:
        """The verdict and the version in a run's record; None if it has no training."""
        steps = Run(self.root(name), f"r{number}").record().steps
        return (steps.gate.verdict, steps.registered.model_version) if steps.train else None

    def read_pushed(self, name: str) -> tuple[str, frozenset[str]] | None:
        """The release that readers of a root's store get, and its users."""
        if not (self.folder / f"store-{name}").exists():
            return None
        with open_store(self.store(name)) as store:
            found = [side for side in store.read_sides() if side.serves]
            return next(
                ((one.release, frozenset(store.read_digests(one.name, "users")["user_id"])) for one in found), None
            )

    def is_complete(self, name: str, version: Version | None) -> bool:
        """Whether a root has all that it needs to let a version serve."""
        with suppress(promotion.DamageError, promotion.InputError):
            promotion._check_complete(self.root(name), version)  # type: ignore[arg-type]
            return True
        return False

    def save(self, place: Path) -> None:
        """Keep what is in the folder; `load` brings it back."""
        copy_links(self.folder, place, ignore=shutil.ignore_patterns(f"*{DATABASE}*"))
        copy_database(self.folder / DATABASE, place / DATABASE)

    def load(self, place: Path) -> None:
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        copy_links(place, self.folder, ignore=shutil.ignore_patterns(f"*{DATABASE}*"))
        copy_database(place / DATABASE, self.folder / DATABASE)


def copy_links(place: Path, folder: Path, **options: Any) -> None:
    if not (folder / "manifest.json").exists():  # as after a night that was killed
        shutil.copytree(place, folder, copy_function=os.link, dirs_exist_ok=True, symlinks=True, **options)


def copy_database(place: Path, target: Path) -> None:
    """Through SQLite, as MLflow keeps the target open."""
    with closing(sqlite3.connect(place)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def log_model(uri: str, mlflow_run: str, content: tracking.Content, temporary: Path) -> str:
    """What `tracking.log_model` does, without the model's code, which MLflow takes a second to run."""
    with tracking.connect(uri) as client:
        experiment_id = client.get_run(mlflow_run).info.experiment_id
        model = client.create_logged_model(experiment_id, "user-vectors", mlflow_run, content.tags)
        folder = tracking.local_folder(model.artifact_location)
        (folder / "artifacts").mkdir(parents=True)
        (folder / "MLmodel").write_text("of a test")
        for path in content.artifacts.values():
            copy_links(path, folder / "artifacts" / path.name)
        client.finalize_logged_model(model.model_id, "READY")
        return model.model_id


def shortened(world: World) -> Iterator[Any]:
    """Patches of what takes long and is not the registry: packaging, reports, what MLflow asks besides; and the clock."""
    clock = SimpleNamespace(now=now)
    yield from (mock.patch.object(place, "datetime", clock) for place in (forgetting, promotion))
    yield mock.patch.object(tracking, "log_model", log_model)
    yield mock.patch.object(publish, "flatten", return_value={})  # params of MLflow's runs
    yield mock.patch.object(gc.psutil, "pid_exists", return_value=False)  # whoever was killed is this process
    nothing = (mlflow_runs, "log_run"), (forgetting, "write_report"), (MlflowClient, "_raise_if_prompt")
    yield from (mock.patch.object(place, name) for place, name in nothing)
    if world.is_server:
        yield mock.patch.object(releases, "_write_tables", return_value=False)


@contextmanager
def killed_at(step: int | None) -> Iterator[None]:
    """Let the process end before its write number `step` (from 1; None: it does not end): it writes nothing more."""
    left = step or 10**9

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                raise KilledError
            return real(*arguments, **named)

        return call

    with ExitStack() as stack:
        for place, names in WRITES.items():
            for name in names:
                stack.enter_context(mock.patch.object(place, name, dying(getattr(place, name))))
        yield
