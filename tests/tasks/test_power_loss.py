"""What is told to be done is on the disk: files and folders are synced before what makes them count."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.export.without_users import erase_from_export
from surf2vec.tasks.forgetting import forget as forgetting
from surf2vec.tasks.forgetting.forget import forget
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.faults import is_served
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.releases import read_model
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.root.records import RegisterStep
from surf2vec.tasks.root.run import FORGET, Root, Run, lock_root
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.tasks.users.user_set import want_users
from surf2vec.trainer.store.writer import lock_store
from surf2vec.trainer.system.files import link_file
from tests.faults.disk_calls import Disk
from tests.roots.releases import make_release, write_run_record
from tests.roots.serving import make_served
from tests.roots.training import MEMORY_BYTES

CONFIG = PublishConfig()


def test_a_copy_is_on_the_disk_before_its_version_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root(tmp_path / "root")
    export_dir, disk, register = make_release(root), Disk(monkeypatch), tracking.register

    def watched_register(*arguments: Any) -> Any:
        disk.note("version", "made")
        return register(*arguments)

    monkeypatch.setattr(tracking, "register", watched_register)
    publish_release(root, CONFIG, write_run_record(), export_dir)
    made = disk.first("version")
    synced = {path for kind, path in disk.events[:made] if kind == "fsync"}
    (copy,) = (root.artifacts / "models").iterdir()
    files = [path for path in copy.rglob("*") if path.is_file()]
    assert len(files) > 10
    expected = {*map(str, copy.rglob("*")), str(copy), str(copy.parent), str(root.artifacts), str(root.path)}
    assert expected - synced == set()


def test_what_the_registry_holds_is_on_the_disk(served: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite ends a transaction by removing its journal: if that name were back after a power loss, it would undo it."""
    disk = Disk(monkeypatch)
    tracking.set_alias(served.tracking_uri, CONFIG.model_name, "tried", 1)
    assert ("fsync", str(served.path)) in disk.events


def test_hard_links_are_on_the_disk_before_the_older_export_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_release(Root(tmp_path / "root"))
    disk = Disk(monkeypatch)
    erase_from_export(folder, want_users(["user-7"]), MEMORY_BYTES, {"release": "r2"}, folder)
    goes = disk.first("rename", f"/.{folder.name}.new.tmp")  # the two have exchanged their names
    assert [path for kind, path in disk.events[:goes] if kind == "link"]
    assert disk.unsynced({"link", "replace"}, goes, folder.parent) == []


def test_copies_where_there_are_no_links_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")

    def refuse(*paths: Any) -> None:
        raise OSError("no links here")

    disk = Disk(monkeypatch)
    monkeypatch.setattr("os.link", refuse)
    link_file(tmp_path / "file", tmp_path / "a" / "b" / "copy")
    synced = [path for kind, path in disk.events if kind == "fsync"]
    assert {str(tmp_path / "a" / "b" / "copy"), str(tmp_path / "a"), str(tmp_path)} <= set(synced)


@pytest.mark.slow
def test_what_was_forgotten_is_gone_from_the_disk_before_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_served(tmp_path / "root", CONFIG, ("r1",))
    disk, search = Disk(monkeypatch), forgetting.search_everywhere

    def watched_search(*arguments: Any) -> Any:
        disk.note("proof", "begun")
        return search(*arguments)

    monkeypatch.setattr(forgetting, "search_everywhere", watched_search)
    with lock_root(root, FORGET), lock_store(root.store):
        forget(root, ["user-11"], CONFIG, MEMORY_BYTES)
    proof = disk.first("proof")
    removed = [path for kind, path in disk.events[:proof] if kind == "unlink" and "/events/day=" in path]
    assert removed
    there = {path for path in disk.unsynced({"unlink"}, proof, root.path) if Path(path).parent.exists()}
    assert {path for path in there if ".tmp" not in path and ".lock" not in path} == set()


def test_the_folder_of_a_run_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    Run(Root(tmp_path / "root"), "r1").update(created_at="2026-11-24")
    written = disk.first("replace", "run.json")
    synced = {path for kind, path in disk.events[:written] if kind == "fsync"}
    assert {str(tmp_path), str(tmp_path / "root"), str(tmp_path / "root" / "runs")} <= synced


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_served(tmp_path_factory.mktemp("served") / "root", CONFIG, ("r1", "r2"))


DAMAGES = [
    "artifacts/r1/index/users.faiss",
    "artifacts/r1/user_vectors/part-00000.parquet",
    "artifacts/state/manifest.json",
]


@pytest.mark.parametrize("name", [*DAMAGES, "MLmodel"])
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_copy_that_a_power_loss_left_bad_is_told_and_mended(served: Root, name: str, is_empty: bool) -> None:
    """Release r1 is rolled back to by its number: that, its alias and its tags stay as they were."""
    uri = served.tracking_uri
    before = read_model(uri, CONFIG.model_name)
    version = next(one for one in before.versions if one.tags["release"] == "r1")
    folder = version.folder
    assert folder
    if is_empty:
        (folder / name).write_bytes(b"")
    else:
        (folder / name).unlink()
    record = Run(served, "r1").record()
    assert not is_served(served, CONFIG, record.require(RegisterStep))
    told = [f"{found.place}: {found.message}" for found in examine(served) if found.level == "damage"]
    assert told
    assert all("models:/surf2vec-users/1" in line and "`surf2vec run` that made release r1" in line for line in told)
    publish_release(served, CONFIG, record, served.export("r1"))
    assert is_served(served, CONFIG, record.require(RegisterStep))
    assert [found for found in examine(served) if found.level == "damage"] == []
    after = read_model(uri, CONFIG.model_name)
    assert ([one.number for one in after.versions], after.aliases) == (
        [one.number for one in before.versions],
        before.aliases,
    )


def test_a_registration_that_was_cut_off_after_its_copy_makes_the_copy_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path / "root")
    export_dir = make_release(root)

    def die(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(tracking, "register", die)
        with pytest.raises(KeyboardInterrupt):
            publish_release(root, CONFIG, write_run_record(), export_dir)
    (index,) = root.artifacts.rglob("users.faiss")
    index.write_bytes(b"")
    told = publish_release(root, CONFIG, write_run_record(), export_dir)
    assert is_served(root, CONFIG, told)
    assert len(list((root.artifacts / "models").iterdir())) == 1


def test_a_damaged_database_is_told(served: Root, tmp_path: Path) -> None:
    root = Root(Path(shutil.copytree(served.path, tmp_path / "root")))
    path = root.path / "mlflow.db"
    content = bytearray(path.read_bytes())
    content[4096:8192] = bytes(4096)
    path.write_bytes(content)
    (told,) = (found for found in examine(root) if found.place == str(path))
    assert told.level == "damage"
    assert "the registry's database is damaged" in told.message
    assert (root.export("r1") / EXPORT_MANIFEST).exists()
