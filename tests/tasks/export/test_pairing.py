"""Vectors of two releases do not belong together: whatever reads a folder that was copied by half refuses it, and names both."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import surf2vec
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.queries.word2vec import export_word2vec
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.pull_since import pull_since
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import describe_token, read_token, token_of
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.stores.push import open_pushed
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import ignore_event
from tests.roots.pushes import push_to
from tests.roots.releases import STORAGES, make_release, write_run_record
from tests.tasks.registry.test_serving_model import ask, load

WORDS = r"is of release r2 \(space space-1\), and the manifest of release r1 \(space space-1\): vectors of two releases"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root with two registered releases of the same shape, by reference."""
    made = Root(tmp_path_factory.mktemp("root"))
    for number, release in enumerate(("r1", "r2"), start=1):
        make_release(made, release, num_users=300, seed=number)
        publish_release(made, STORAGES["reference"], write_run_record(release), made.export(release))
    return made


def mix(root: Root, folder: Path, kind: str) -> Path:
    """A copy of release r1 in which the vectors of one kind are those of release r2, as after an interrupted copy."""
    shutil.copytree(root.export("r1"), folder)
    for path in root.export("r2").glob(f"{kind}_vectors/*"):
        shutil.copyfile(path, folder / f"{kind}_vectors" / path.name)
    return folder


def test_every_file_of_vectors_names_its_release_and_space(root: Root) -> None:
    folder = root.export("r2")
    files = [*folder.rglob("*_vectors/*.parquet")]
    assert len(files) > 4
    assert {describe_token(read_token(path)) for path in files} == {"release r2 (space space-1)"}
    assert token_of(open_folder(folder).manifest) == read_token(files[0])
    assert pl.read_parquet_metadata(files[0])["surf2vec.release"] == "r2"


def push(folder: Path, tmp_path: Path, root: Root) -> None:
    with open_pushed(root, "models:/surf2vec-users/1", root.tracking_uri, ignore_event) as pushed:
        push_to(f"parquet://{tmp_path}/store", replace(pushed, release=open_folder(folder)))


READERS: dict[str, tuple[str, Callable[[Path, Path, Root], Any]]] = {
    "similar": ("user", lambda folder, tmp_path, root: similar_users(root, folder, "user-7", 3)),
    "similar, items": ("item", lambda folder, tmp_path, root: similar_users(root, folder, "user-7", 3)),
    "word2vec": ("user", lambda folder, tmp_path, root: export_word2vec(folder, tmp_path / "u.bin", "users")),
    "word2vec, items": ("item", lambda folder, tmp_path, root: export_word2vec(folder, tmp_path / "i.bin", "items")),
    "surf2vec.py": ("user", lambda folder, tmp_path, root: surf2vec.open_release(folder).user_vectors()),
    "surf2vec.py, items": ("item", lambda folder, tmp_path, root: surf2vec.open_release(folder).item_vectors()),
    "surf2vec.py, rank": ("item", lambda folder, tmp_path, root: surf2vec.open_release(folder).rank("user-7")),
    "served copy": ("user", lambda folder, tmp_path, root: ask(load(folder), ["user-7"])),
    "served copy, items": ("item", lambda folder, tmp_path, root: ask(load(folder), ["user-7"], items=3)),
    "served by reference": ("item", lambda folder, tmp_path, root: ask(load(folder, "reference"), ["user-7"], items=3)),
    "push": ("item", push),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_copied_by_half_is_refused_in_words(root: Root, tmp_path: Path, reader: str) -> None:
    kind, read = READERS[reader]
    folder = mix(root, tmp_path / "vectors", kind)
    with pytest.raises(Exception, match=WORDS):
        read(folder, tmp_path, root)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".bin"] == []


def test_changes_carry_the_token_and_are_no_release(root: Root, tmp_path: Path) -> None:
    out = tmp_path / "changes"
    pull_since("models:/surf2vec-users/2", out, 1, root.tracking_uri)
    files = [*out.glob("*_vectors/*.parquet")]
    assert {describe_token(read_token(path)) for path in files} == {"release r2 (space space-1)"}
    for read in (
        lambda: surf2vec.open_release(out).user_vectors(),
        lambda: export_word2vec(out, tmp_path / "u", "users"),
    ):
        with pytest.raises(InputError, match="only what changed from release r1 to r2"):
            read()


def test_files_read_by_a_person_are_checked_in_a_line(root: Root, tmp_path: Path) -> None:
    users = root.export("r2") / "user_vectors" / "*.parquet"
    items = {release: root.export(release) / "item_vectors" / "part-00000.parquet" for release in ("r1", "r2")}
    surf2vec.check_pair(users, items["r2"])
    with pytest.raises(InputError, match="item_vectors.*is of release r1 .*two releases do not belong together"):
        surf2vec.check_pair(users, items["r1"])
    pq.write_table(pq.read_table(items["r2"]).replace_schema_metadata(None), tmp_path / "bare.parquet")
    for other in (tmp_path / "bare.parquet", tmp_path / "nothing.parquet"):
        with pytest.raises(InputError, match="is of no release"):
            surf2vec.check_pair(users, other)


def test_what_the_model_returns_names_its_release(root: Root) -> None:
    assert ask(load(root.export("r2")), ["user-7"]).attrs == {"release": "r2", "space_id": "space-1"}
