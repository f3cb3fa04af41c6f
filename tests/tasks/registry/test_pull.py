"""Pull: the export comes back byte for byte or not at all, and what is wrong is named."""

import json
import shutil
from pathlib import Path

import pytest

from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError, InputError
from tests.roots.release_series import bytes_of
from tests.roots.releases import STORAGES, make_release, write_run_record

CHAMPION = "models:/surf2vec-users@champion"


@pytest.fixture(scope="module", params=STORAGES)
def storage(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, storage: str) -> Root:
    """A root, with a name that a URI must quote, with two registered releases."""
    made = Root(tmp_path_factory.mktemp("root") / "a root ü")
    for number, release in enumerate(("r1", "r2"), start=1):
        make_release(made, release, seed=number)
        publish_release(made, STORAGES[storage], write_run_record(release), made.export(release))
    return made


def registered_file(root: Root, name: str) -> Path:
    """The file that pulling `name` (release/file) reads: in the registry, or in the folder that it refers to."""
    release, _, file = name.partition("/")
    for manifest in (root.artifacts / "models").rglob("manifest.json"):
        if json.loads(manifest.read_bytes())["release"] == release:
            inside = manifest.parent / file
            return inside if inside.exists() else root.export(release) / file
    raise AssertionError(f"{name} is not registered")


@pytest.mark.parametrize(("uri", "release"), [(CHAMPION, "r2"), ("models:/surf2vec-users/1", "r1")])
def test_the_export_comes_back_byte_for_byte(root: Root, tmp_path: Path, uri: str, release: str) -> None:
    events = []
    out = tmp_path / "vectors"
    told = pull(uri, out, root.tracking_uri, lambda *event: events.append(event))
    assert bytes_of(out) == bytes_of(root.export(release))
    assert told["release"] == release
    assert told["bytes"] == told["fetched_bytes"] == events[-1][1]["done"] == events[-1][1]["total"]
    assert list(tmp_path.iterdir()) == [out]


def test_the_same_again_changes_nothing_and_a_damaged_copy_is_mended(root: Root, tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    pull(CHAMPION, out, root.tracking_uri)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert pull(CHAMPION, out, root.tracking_uri)["fetched_bytes"] == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    (out / "index" / "users.faiss").write_bytes(b"short")
    pull(CHAMPION, out, root.tracking_uri)
    assert bytes_of(out) == bytes_of(root.export("r2"))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("r2/user_vectors/part-00001.parquet", lambda old: old[:-1], "has .* bytes where its manifest says"),
        ("r2/item_vectors/part-00000.parquet", lambda old: old[:-1] + b"?", "does not have the sha256"),
        ("r2/index/users.faiss", lambda old: None, "is missing"),
        ("r2/manifest.json", lambda old: old.replace(b'"r2"', b'"r3"'), "is not the one that was registered"),
    ],
)
def test_a_corrupt_file_is_named_and_the_older_pull_stays(
    root: Root, storage: str, tmp_path: Path, name, change, words
) -> None:
    out = tmp_path / "vectors"
    pull("models:/surf2vec-users/1", out, root.tracking_uri)
    before = bytes_of(out)
    path = registered_file(root, name)
    assert root.artifacts in path.parents or storage == "reference"
    old = path.read_bytes()
    try:
        new = change(old)
        path.unlink() if new is None else path.write_bytes(new)
        with pytest.raises(DamageError, match=rf"{name.removeprefix('r2/')} of models:/surf2vec-users/2 {words}"):
            pull(CHAMPION, out, root.tracking_uri)
    finally:
        path.write_bytes(old)
    assert bytes_of(out) == before
    # What was fetched before it is kept, and is not fetched again.
    told = pull(CHAMPION, out, root.tracking_uri)
    assert (told["fetched_bytes"] < told["bytes"]) == (name != "r2/manifest.json")
    assert bytes_of(out) == bytes_of(root.export("r2"))
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("models:/surf2vec-users@production", r"it has @challenger \(version 2\), @champion \(version 2\)"),
        ("models:/surf2vec-users/9", "of the versions the newest are 1, 2"),
        ("models:/nobody@champion", "no model 'nobody' with a version; its models are surf2vec-users"),
        ("surf2vec-users", "is not a model: write models:/surf2vec-users@champion"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(root: Root, tmp_path: Path, uri: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        pull(uri, tmp_path / "vectors", root.tracking_uri)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_export_is_not_replaced(root: Root, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not an export"):
        pull(CHAMPION, tmp_path, root.tracking_uri)
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(InputError, match="exists and is not an export"):
        pull(CHAMPION, tmp_path, root.tracking_uri)
    assert (tmp_path / "thesis.txt").exists()


def test_files_beside_an_earlier_pull_are_not_removed(root: Root, tmp_path: Path) -> None:
    pull("models:/surf2vec-users/1", out := tmp_path / "vectors", root.tracking_uri)
    (out / "user_vectors" / "mine.csv").write_text("years of work")
    with pytest.raises(InputError, match=r"does not name, such as user_vectors/mine\.csv: nothing was changed"):
        pull(CHAMPION, out, root.tracking_uri)
    (out / "user_vectors" / "mine.csv").unlink()
    assert pull(CHAMPION, out, root.tracking_uri)["model_version"] == 2


def test_a_root_without_a_registry_stays_without(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no registry at sqlite"):
        pull(CHAMPION, tmp_path / "vectors", Root(tmp_path).tracking_uri)
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_somebody_else_is_told_apart(root: Root, tmp_path: Path) -> None:
    client = tracking.MlflowClient(root.tracking_uri, root.tracking_uri)
    client.create_registered_model("prices")
    shutil.copytree(root.export("r1"), tmp_path / "model")
    client.create_model_version("prices", (tmp_path / "model").as_uri())
    with pytest.raises(InputError, match="was not registered by surf2vec"):
        pull("models:/prices/1", tmp_path / "vectors", root.tracking_uri)


def test_a_referenced_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    root, out = Root(tmp_path / "root"), tmp_path / "vectors"
    make_release(root)
    publish_release(root, STORAGES["reference"], write_run_record(), root.export("r1"))
    moved = root.export("r1").rename(tmp_path / "moved")
    with pytest.raises(
        DamageError, match=r"models:/surf2vec-users/1 was registered by reference to file://.*/export/r1, "
    ):
        pull(CHAMPION, out, root.tracking_uri)
    assert not out.exists()
    moved.rename(root.export("r1"))
    pull(CHAMPION, out, root.tracking_uri)
    assert bytes_of(out) == bytes_of(root.export("r1"))
