"""What `surf2vec doctor` and the errors say to do is done to the letter; the same command then ends with a whole release."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from surf2vec.operations import pull as pull_release
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.registry import mlflow_runs, tracking
from surf2vec.tasks.registry.promotion import promote
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.root.run import Root, Run
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.trainer.errors import DamageError, ResourceError
from surf2vec.trainer.events import ignore_event
from tests.data.corpora import planted_histories
from tests.flows.test_gate import LENIENT
from tests.flows.test_night_after_night import FAST
from tests.roots.files import flip
from tests.roots.ingest import write_day
from tests.tasks.upkeep.test_gc import put_back

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]
HISTORIES = planted_histories(80)
SETTINGS = [
    *FAST,
    *LENIENT,
    "train.epochs=3",
    "train.vector_size=8",
    "store.partitions=2",
    "publish.keep_releases=5",
    "publish.copy_below=0",
]


def run(root: Root, *settings: str, full: bool = False) -> dict[str, Any]:
    """The night of all days that were delivered."""
    logs = [str(root.path.parent / "logs" / "*.csv")]
    return make_night(root.path, logs, config=load_config(None, [*SETTINGS, *settings]), full=full)


def deliver(root: Root, day: int) -> None:
    users = list(HISTORIES)[:: 1 if day == 1 else 5]
    write_day(root.path.parent / "logs", day, {user: HISTORIES[user][day - 1 :: 2] for user in users})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A full night whose release the registry has a copy of, and one that goes on from it, registered by reference; a copy of
    the root is beside it, for MLflow's paths are absolute."""
    root = Root(tmp_path_factory.mktemp("advice") / "root")
    deliver(root, 1)
    first = run(root, "publish.copy_below=1GB")
    deliver(root, 2)
    second = run(root)
    assert [one["alias"] for one in (first, second)] == ["champion", "champion"]
    assert second["night"]["base"] == first["release"]
    shutil.copytree(root.path, root.path.with_name("backup"))
    return root


@pytest.fixture
def root(made: Root) -> Root:
    put_back(made, made.path.with_name("backup"))
    (made.path.parent / "logs" / "day-03.csv").unlink(missing_ok=True)
    return made


def releases(root: Root) -> tuple[str, str]:
    """The first release, of which there is a copy, and the champion, of which there is none."""
    first, second = (version.tags["release"] for version in read_registry(root, PublishConfig()).versions)
    return first, second


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def damage_of(root: Root) -> list[str]:
    return [finding.message for finding in examine(root) if finding.level == "damage"]


def follow(root: Root, message: str) -> None:
    """Do what a message says, to the letter, but for running again."""
    paths = re.findall(rf"remove ({re.escape(str(root.path))}[^\s;:,]*)", message)
    assert paths, message
    for path in map(Path, paths):
        assert path != root.path
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if pull := re.search(r"`surf2vec pull (\S+) --out (\S+) --root (\S+)`", message):
        pull_release(pull[1], pull[2], pull[3], on_event=ignore_event)


def first_file(root: Root, pattern: str, damage: Callable[[Path], object]) -> None:
    damage(sorted(root.path.glob(pattern))[0])


CASES: dict[str, Callable[[Root], object]] = {
    "sources.json": lambda root: cut(root.sources),
    "events altered": lambda root: first_file(root, "events/*/*.parquet", flip),
    "events gone": lambda root: first_file(root, "events/*/*.parquet", Path.unlink),
    "corpus of the first": lambda root: flip(corpus_of(root, 0) / "p00000.tokens.npy"),
    "corpus of the champion": lambda root: flip(corpus_of(root, 1) / "p00000.tokens.npy"),
    "corpus manifest": lambda root: cut(corpus_of(root, 1) / "manifest.json"),
    "export, copied": lambda root: flip(next(root.export(releases(root)[0]).glob("user_vectors/*"))),
    "export manifest, copied": lambda root: cut(root.export(releases(root)[0]) / "manifest.json"),
    "export, by reference": lambda root: flip(next(root.export(releases(root)[1]).glob("user_vectors/*"))),
    "record of the first": lambda root: cut(Run(root, releases(root)[0]).record_path),
    "record of the champion": lambda root: cut(Run(root, releases(root)[1]).record_path),
    "record without steps": lambda root: Run(root, releases(root)[1]).record_path.write_text("{}"),
    "store manifest": lambda root: cut(root.store / "MANIFEST.json"),
    "pinned manifest": lambda root: cut(root.store / "pinned" / f"{releases(root)[1]}.json"),
    "store": lambda root: first_file(root, "store/*.safetensors", flip),
}


def corpus_of(root: Root, number: int) -> Path:
    return root.corpus(Run(root, releases(root)[number]).record().window_id)


@pytest.mark.parametrize("case", CASES)
def test_what_doctor_says_to_do_helps(root: Root, case: str) -> None:
    champion = releases(root)[1]
    CASES[case](root)
    messages = damage_of(root)
    assert messages
    for message in messages:
        follow(root, message)
    result = run(root)
    assert (result["release"], result["model_version"], result["alias"]) == (champion, 2, "champion")
    assert damage_of(root) == []
    assert Path(result["report"]).exists()
    if case.startswith(("corpus of the champion", "export, by", "record of the champion")):
        deliver(root, 3)
        assert run(root)["night"]["base"] == champion


@pytest.mark.parametrize("case", ["store", "pinned manifest"])
def test_after_damage_of_the_store_the_next_night_trains_anew(root: Root, case: str) -> None:
    CASES[case](root)
    for message in damage_of(root):
        follow(root, message)
    deliver(root, 3)
    result = run(root)
    assert (result["night"]["kind"], result["gate"]["held_by"]) == ("full", ["space"])
    promote(root, PublishConfig(), result["model_version"], "the store was damaged")
    assert damage_of(root) == []


def test_a_damaged_record_stops_the_night_and_says_what_to_do(root: Root) -> None:
    CASES["record of the first"](root)
    with pytest.raises(DamageError, match="run.json is not readable as JSON .*; remove .* and run again") as told:
        run(root)
    follow(root, str(told.value))
    assert run(root)["alias"] == "champion"


def test_a_record_that_the_registry_has_not_either(root: Root) -> None:
    shutil.rmtree(root.run(releases(root)[1]))
    with mock.patch.object(
        mlflow_runs, "read_document", side_effect=DamageError("run.json is missing in the registry")
    ):
        with pytest.raises(DamageError, match="its record .*run.json is missing .*: run with --full"):
            run(root)
        assert run(root, full=True)["alias"] == "champion"


def test_a_damaged_export_that_is_not_registered_is_made_anew(root: Root) -> None:
    deliver(root, 3)
    full = ResourceError("the disk is full")
    with mock.patch.object(tracking, "log_model", side_effect=full), pytest.raises(ResourceError):
        run(root)
    runs = [Run(root, path.parent.name) for path in root.path.glob("runs/*/run.json")]
    [release] = [one.run_id for one in runs if not one.record().steps.registered]
    cut(next(root.export(release).glob("index/*")))
    with pytest.raises(DamageError, match="remove .* and run the same command again") as told:
        run(root)
    follow(root, str(told.value))
    assert run(root)["alias"] == "champion"
    assert damage_of(root) == []
