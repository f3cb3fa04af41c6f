"""What gc removes, what it leaves, and that a release is whole or gone whatever happens."""

import shutil
from contextlib import closing
from pathlib import Path
from sqlite3 import connect
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.promotion import promote, rollback
from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.registry.versions import Registered, Version
from surf2vec.tasks.root.identity import ROOT_TAG
from surf2vec.tasks.root.run import Root, Run, lock_root
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.tasks.upkeep.gc import References, Waste, collect_garbage, find_waste
from surf2vec.trainer.errors import InputError, ResourceError
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.writer import lock_store, pin_generation
from surf2vec.trainer.system.files import write_json
from tests.faults.exits import run_dying
from tests.roots.files import bytes_of
from tests.roots.releases import draw_generation, export_release, make_corpus, make_release
from tests.roots.serving import record_release
from tests.roots.training import make_trained, rows_by_user

CONFIG = PublishConfig(keep_releases=2)
RELEASES = ("r1", "r2", "r3", "r4", "r5", "r6")
KEPT = {"r4", "r5", "r6"}


def collect(root: Root, publish: PublishConfig = CONFIG, dry_run: bool = False) -> dict[str, Any]:
    with lock_root(root, "test"), lock_store(root.store):
        return collect_garbage(root, publish, dry_run)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Path]:
    """A root after six nights, of which the third still serves, and a copy to put in its place again."""
    root = make_trained(tmp_path_factory.mktemp("gc") / "root", 2, num_users=30)
    for day, release in enumerate(RELEASES, start=1):
        export = make_release(root, release, num_users=10)  # with a corpus of its own
        record_release(root, release, export, f"window-{release}", CONFIG, day)
        if release in ("r1", "r3"):
            pin_generation(root.store, release)
    tracking.set_alias(root.tracking_uri, CONFIG.model_name, "champion", 3)
    backup = root.path.with_name("backup")
    shutil.copytree(root.path, backup)
    return root, backup


@pytest.fixture
def root(made: tuple[Root, Path]) -> Root:
    put_back(*made)
    return made[0]


def put_back(root: Root, backup: Path) -> None:
    """Make the root what it was, at the same place: MLflow keeps absolute paths, and an open connection to its database."""
    for path in root.path.iterdir():
        if path.name != "mlflow.db":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(backup, root.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("mlflow.db*"))
    with closing(connect(backup / "mlflow.db")) as old, closing(connect(root.path / "mlflow.db")) as new:
        old.backup(new)


def versions(root: Root) -> list[int]:
    return [version.number for version in read_model(root.tracking_uri, CONFIG.model_name).versions]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files(root: Root) -> dict[str, bytes]:
    """What is on the disk, but for MLflow's database."""
    return {name: content for name, content in bytes_of(root.path).items() if "mlflow.db" not in name}


def check_champion(root: Root, out: Path) -> None:
    """The champion serves, from the registry and from the root; nothing is damaged."""
    told = pull("models:/surf2vec-users@champion", out, root.tracking_uri)
    assert told["release"] == "r3"
    assert similar_users(root, root.export("r3"), "user-3", 2)["seen"]
    assert [found for found in examine(root) if found.level == "damage"] == []


def test_old_releases_go_whole_and_the_champion_stays(root: Root, tmp_path: Path) -> None:
    trained, vectors = open_generation(root.store).manifest["window_id"], rows_by_user(root)
    before = sum(map(len, files(root).values()))
    told = collect(root)
    after = sum(map(len, files(root).values()))
    assert told["kept_releases"] == ["r2", "r3", "r5", "r6"]  # where a rollback goes, the champion, the newest two
    assert names(root.path / "export") == ["r2", "r3", "r5", "r6"]
    assert names(root.store / "pinned") == ["r3.json"]
    assert set(names(root.path / "corpus")) == {trained, "window-r3", "window-r6"}
    assert versions(root) == [2, 3, 5, 6]
    assert len(list((root.artifacts / "models").glob("*/artifacts/MLmodel"))) == 4
    assert names(root.path / "runs") == list(RELEASES)
    assert rows_by_user(root) == vectors
    assert told["bytes"] == pytest.approx(before - after, abs=20_000)  # records are a little longer than before
    check_champion(root, tmp_path / "out")
    again = collect(root)
    assert (again["removed"], again["bytes"]) == ([], 0)


def test_what_served_last_stays_though_its_alias_was_removed(root: Root) -> None:
    tracking.set_alias(root.tracking_uri, CONFIG.model_name, "champion", 6)
    rollback(root, CONFIG, 3)
    MlflowClient(root.tracking_uri).delete_registered_model_alias(CONFIG.model_name, "champion")
    assert collect(root)["kept_releases"] == ["r3", "r5", "r6"]
    assert promote(root, CONFIG, 3, None)["changed"]


def test_a_release_that_is_a_link_goes_and_its_folder_elsewhere_stays(root: Root, tmp_path: Path) -> None:
    place = root.export("r1")
    elsewhere = place.rename(tmp_path / "elsewhere")
    place.symlink_to(elsewhere)
    removed = {one["place"]: one["bytes"] for one in collect(root)["removed"]}
    assert removed[str(place)] < 1000
    assert (elsewhere / "manifest.json").exists()
    assert names(root.path / "export") == ["r2", "r3", "r5", "r6"]


def test_what_a_full_disk_refused_has_room_after_gc(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held_bytes() -> int:
        return sum(path.stat().st_size for path in root.path.rglob("*") if path.is_file())

    corpus_dir = make_corpus(Root(tmp_path), 10)
    usage, room_bytes = shutil.disk_usage(root.path), held_bytes() + 1000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=room_bytes - held_bytes()))
    with pytest.raises(ResourceError, match="the export needs about .*: run `surf2vec gc`"):
        export_release(root, "r7", corpus_dir, draw_generation(corpus_dir))
    collect(root)
    export = export_release(root, "r7", corpus_dir, draw_generation(corpus_dir))
    assert (export / "manifest.json").exists()


def test_a_dry_run_names_the_same_and_removes_nothing(root: Root) -> None:
    before = files(root)
    told = collect(root, dry_run=True)
    assert files(root) == before
    assert versions(root) == [1, 2, 3, 4, 5, 6]
    assert told["bytes"] > 0
    assert collect(root)["removed"] == told["removed"]


def test_a_run_whose_release_went_is_made_anew_when_asked_for(root: Root) -> None:
    collect(root)
    record = Run(root, "r1").record()
    assert set(record.steps.ended()) == {"ingest"}
    assert set(record.gone_steps.ended()) == {"corpus", "train", "evaluate", "export", "register", "report"}
    assert set(Run(root, "r5").record().steps.ended()) > {"ingest", "export"}


def test_releases_of_another_model_are_left_alone(root: Root) -> None:
    before = files(root)
    told = collect(root, PublishConfig(model_name="another"))
    assert told["kept_releases"] == ["r6"]  # of the newest run
    assert {name for name in before if name.startswith(("export/", "store/", "mlartifacts/"))} <= set(files(root))
    assert versions(root) == [1, 2, 3, 4, 5, 6]


def test_a_registry_that_was_lost_is_no_reason_to_remove_anything(root: Root) -> None:
    (root.path / "mlflow.db").rename(root.path / "lost.db")
    before = files(root)
    with pytest.raises(InputError, match=r"of which the registry has none: nothing was removed"):
        collect(root)
    assert files(root) == before
    (root.path / "lost.db").rename(root.path / "mlflow.db")


def find_in_another(root: Root, found: list[Version], champion: dict[str, int], *others: Version) -> list[Waste]:
    """The model versions and exports that gc finds where the root publishes to a server with these versions."""
    publish = PublishConfig()
    write_json(root.identity, {"root_id": "me", "tracking_uri": "http://mlflow.example"})
    config = {"publish": publish.model_dump()}
    records = {name: Run(root, name).record().replace(config=config, steps={}) for name in RELEASES}
    references = References(root, publish)
    registered = Registered(found, champion)
    vars(references).update(registered=registered, versions=[*found, *others], records=records, kept=KEPT)
    return [waste for waste in find_waste(references) if waste.what in ("model version", "export")]


def test_in_another_registry_only_versions_that_refer_to_an_export_go_with_it(root: Root) -> None:
    tags: dict[str, dict[str, str]] = {
        name: {"release": name, ROOT_TAG: "me", "manifest_sha256": name} for name in RELEASES
    }
    tags["r1"]["export_uri"] = root.export("r1").as_uri()
    found = [Version("m", number, tags[name]) for number, name in enumerate(RELEASES, start=1)]
    places = [(waste.what, Path(waste.place).name) for waste in find_in_another(root, found, {"champion": 6})]
    assert places == [("model version", "1"), ("export", "r1"), ("export", "r2"), ("export", "r3")]


def test_what_others_registered_or_use_stays(root: Root) -> None:
    """Two roots share a model and made the same releases; a version of somebody refers to an export of ours."""
    of = {"release": "r1", "manifest_sha256": "1", "export_uri": root.export("r1").as_uri()}
    theirs, copied = Version("m", 1, of | {ROOT_TAG: "them"}), Version("prod", 1, of | {ROOT_TAG: "me"}, is_copied=True)
    ours = Version("m", 2, of | {ROOT_TAG: "me", "release": "r2", "export_uri": root.export("r2").as_uri()})
    places = [waste.place for waste in find_in_another(root, [theirs, ours], {}, copied)]
    assert places == ["models:/m/2", str(root.export("r2")), str(root.export("r3"))]


def test_a_copy_that_somebody_made_a_version_of_stays(root: Root) -> None:
    client = tracking.MlflowClient(root.tracking_uri, root.tracking_uri)
    client.copy_model_version(f"models:/{CONFIG.model_name}/1", "prod")
    collect(root)
    assert versions(root) == [2, 3, 5, 6]
    assert len(list(root.artifacts.glob("models/*/artifacts"))) == 5
    assert pull("models:/prod/1", root.path / "out", root.tracking_uri)["release"] == "r1"


def test_a_copy_whose_files_went_before_mlflow_forgot_it(root: Root) -> None:
    """MLflow deletes the files first: a gc that is killed then leaves logged models without them."""
    copies = [one["place"] for one in collect(root, dry_run=True)["removed"] if one["what"] == "copy in the registry"]
    shutil.rmtree(copies[0])
    shutil.rmtree(Path(copies[1]).parent)
    assert copies == [one["place"] for one in collect(root)["removed"] if one["what"] == "copy in the registry"]
    assert collect(root)["removed"] == []


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(root: Root) -> None:
    collect(root)
    before = files(root)
    living, dead = f".x.{1}.tmp", ".x.4194305.tmp"  # more than the largest process id
    for name in (f"corpus/{dead}", f"export/{dead}", "export/.r9.new.tmp", dead, "runs/r1/" + dead, ".tmp/ingest.1/a"):
        (root.path / name).parent.mkdir(parents=True, exist_ok=True)
        (root.path / name).write_bytes(b"x")
    (root.path / "tune").mkdir()
    (root.path / "tune" / living).write_bytes(b"x")
    (root.temporary / "infer.dead").mkdir()
    (root.temporary / "infer.dead" / "y").write_bytes(b"x")
    orphan = next((root.path / "events").glob("day=*")) / "0123456789abcdef.parquet"
    pq.write_table(pa.table({"x": [1]}), orphan)
    (root.store / "users-00000-g000099.safetensors").write_bytes(b"x" * 1000)
    assert collect(root)["bytes"] > 1000
    assert files(root) == before | {f"tune/{living}": files(root)[f"tune/{living}"]}


def test_a_search_keeps_all_corpora(root: Root) -> None:
    searching = Root(root.path / "tune")
    searching.path.mkdir()
    with lock_root(searching, "tune"):
        assert [waste for waste in collect(root)["removed"] if waste["what"] == "corpus"] == []
    assert [waste for waste in collect(root)["removed"] if waste["what"] == "corpus"]


def test_a_training_on_the_store_is_waited_for(root: Root) -> None:
    before = files(root)
    with lock_store(root.store), pytest.raises(ResourceError, match="is training on the store"):
        collect(root)
    assert files(root) == before


def work(path: Path) -> None:
    collect(Root(path))


@pytest.mark.long
def test_gc_that_dies_at_any_step(made: tuple[Root, Path], tmp_path: Path) -> None:
    root, backup = made
    deaths, wanted = 0, {}
    for step in range(100):
        put_back(root, backup)
        code = run_dying(work, root.path, step=step) if step else None
        if deaths % 4 == 0 or not step:
            check_champion(root, tmp_path / str(step))
        collect(root)
        assert versions(root) == [2, 3, 5, 6]
        left = {name for name in files(root) if not name.startswith("runs/")}
        wanted = wanted or left
        assert left == wanted
        assert set(Run(root, "r1").record().steps.ended()) == {"ingest"}
        if code == 0:
            break
        assert code in (None, 9)
        deaths += code == 9
    assert deaths >= 8
