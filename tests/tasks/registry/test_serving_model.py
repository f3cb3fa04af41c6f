"""The registered model's file: its answers against brute force, how little it reads, and what it imports."""

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surf2vec.tasks.registry.tracking import MODEL_CODE, MODEL_MODULES, find_modules
from surf2vec.tasks.release.release_reader import unit_rows
from surf2vec.tasks.root.run import Root
from tests.data.corpora import user_hash
from tests.roots.releases import ODD_IDS, STORAGES, VECTOR_SIZE, make_release, read_items, read_users

NUM_USERS = 500


def load(export_dir: Path, storage: str = "copy", manifest: Path | None = None) -> Any:
    """The model as MLflow loads it from its file: with the export as its artifact, or with a copy of its manifest
    (by default the very one) and the folder's URI."""
    spec = importlib.util.spec_from_file_location("user_vectors_model", MODEL_CODE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with find_modules():
        spec.loader.exec_module(module)
    model = module.UserVectors()
    context = SimpleNamespace(artifacts={"export": str(export_dir)}, model_config=None)
    if storage == "reference":
        context.artifacts = {"manifest": str(manifest or export_dir / "manifest.json")}
        context.model_config = {"export_uri": export_dir.as_uri()}
    model.load_context(context)
    return model


def ask(model: Any, ids: Any, **params: Any) -> pd.DataFrame:
    return model.predict(None, pd.DataFrame({"user_id": ids}), params)


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_release(Root(tmp_path_factory.mktemp("root")), num_users=NUM_USERS, partitions=2)


@cache
def cached_users(export_dir: Path) -> dict[str, np.ndarray]:
    return read_users(export_dir)


@pytest.fixture(scope="module")
def users(export_dir: Path) -> dict[str, np.ndarray]:
    return cached_users(export_dir)


@pytest.fixture(scope="module", params=STORAGES)
def model(export_dir: Path, request: pytest.FixtureRequest) -> Any:
    return load(export_dir, request.param)


def test_every_user_has_its_vector_and_no_other_column(model: Any, users: dict[str, np.ndarray]) -> None:
    answer = ask(model, list(users))
    assert list(answer.columns) == ["user_id", "vector"]
    assert answer["user_id"].tolist() == list(users)
    np.testing.assert_array_equal(np.array(answer["vector"].tolist(), np.float32), np.stack(list(users.values())))
    assert all(type(vector) is list and type(vector[0]) is float for vector in answer["vector"])


@given(st.lists(st.one_of(st.text(), st.none(), st.integers(0, NUM_USERS * 2).map("user-{}".format))))
@settings(max_examples=50)
def test_a_row_an_id_in_the_order_asked(model: Any, export_dir: Path, ids: list[str | None]) -> None:
    users = cached_users(export_dir)
    answer = ask(model, pd.Series(ids, dtype=object), k=2, items=1)
    assert len(answer) == len(ids)
    for asked, row in zip(ids, answer.itertuples(), strict=True):
        assert row.user_id == asked
        expected = users.get(asked) if asked is not None else None
        assert (row.vector is None) == (row.neighbours is None) == (row.items is None) == (expected is None)
        if expected is not None:
            np.testing.assert_array_equal(np.float32(row.vector), expected)


def test_missing_ids_and_ids_that_pandas_made_numbers(model: Any, users: dict[str, np.ndarray]) -> None:
    twelve = users["12"].tolist()
    assert ask(model, [12, 13])["vector"].tolist() == [twelve, None]
    assert ask(model, [12.0, float("nan")])["vector"].tolist() == [twelve, None]
    assert ask(model, [None, "12", pd.NA, 12.5])["vector"].tolist() == [None, twelve, None, None]
    assert ask(model, pd.Categorical(["12", "12"]))["vector"].tolist() == [twelve, twelve]
    assert ask(model, [["12", "0012"]])["vector"].tolist() == [twelve, users["0012"].tolist()]
    assert ask(model, [float("inf")])["vector"].tolist() == [None]
    assert ask(model, pd.Series(["\ud800"], dtype=object))["vector"].tolist() == [None]
    assert ask(model, [], k=1, items=1).shape == (0, 6)


@pytest.mark.parametrize("user_id", ["user-7", *ODD_IDS])
def test_neighbours_and_items_are_those_of_brute_force(
    model: Any, export_dir: Path, users: dict[str, np.ndarray], user_id: str
) -> None:
    row = ask(model, ["nobody", user_id], k=5, items=3).iloc[1]
    others = [other for other in users if other != user_id]
    cosines = unit_rows(np.stack([users[other] for other in others])) @ unit_rows(users[user_id][None])[0]
    assert row["neighbours"] == [others[i] for i in np.argsort(-cosines)[:5]]
    np.testing.assert_allclose(row["scores"], -np.sort(-cosines)[:5], atol=1e-3)
    urls, items = read_items(export_dir)
    scores = items @ users[user_id]
    assert row["items"] == [urls[i] for i in np.argsort(-scores)[:3]]
    np.testing.assert_allclose(row["item_scores"], -np.sort(-scores)[:3], rtol=1e-5)


def test_a_part_alone_has_its_columns_and_ranks_by_them(
    model: Any, export_dir: Path, users: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match="'trail': this release has 'interest'"):
        ask(model, ["user-7"], part="trail")
    monkeypatch.setitem(model.manifest, "parts", {"interest": [0, 3], "trail": [3, 8]})
    urls, items = read_items(export_dir)
    for part, columns in (("interest", slice(0, 3)), ("trail", slice(3, 8)), ("", slice(None))):
        row = ask(model, ["user-7"], items=3, part=part).iloc[0]
        np.testing.assert_array_equal(np.float32(row["vector"]), users["user-7"][columns])
        assert row["items"] == [urls[i] for i in np.argsort(-(items[:, columns] @ users["user-7"][columns]))[:3]]
    with pytest.raises(Exception, match="'interests': this release has 'interest' or 'trail'"):
        ask(model, ["user-7"], part="interests")
    row, others = ask(model, ["user-7"], k=3, part="trail").iloc[0], [user for user in users if user != "user-7"]
    units = {user: unit_rows(vector[None, 3:])[0] for user, vector in users.items()}
    nearest = sorted(others, key=lambda user: -float(units[user] @ units["user-7"]))[:3]
    assert row["neighbours"] == nearest
    np.testing.assert_allclose(row["scores"], [units[user] @ units["user-7"] for user in nearest], atol=1e-6)


def test_asking_for_more_than_there_is_gives_all_there_is(model: Any) -> None:
    row = ask(model, ["user-7"], k=10_000, items=10_000).iloc[0]
    assert len(set(row["neighbours"]) - {"user-7"}) == len(row["scores"]) == NUM_USERS + len(ODD_IDS) - 1
    assert len(set(row["items"])) == 40
    assert row["item_scores"] == sorted(row["item_scores"], reverse=True)


def test_a_user_among_its_doubles_is_not_its_own_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random, "default_rng", lambda seed: SimpleNamespace(standard_normal=np.ones))
    model = load(make_release(Root(tmp_path), num_users=30))
    for row in ask(model, [f"user-{i}" for i in range(30)], k=3).itertuples():
        assert len(row.neighbours) == 3
        assert row.user_id not in row.neighbours
        assert max(row.scores) <= 1


def test_many_users_at_once_are_scored_in_bounded_pieces(
    model: Any, users: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ask(model, list(users), items=4)
    monkeypatch.setitem(type(model.release).rank_items.__globals__, "SCORES_AT_ONCE", 100)
    pieces = ask(model, list(users), items=4)
    assert whole["items"].tolist() == pieces["items"].tolist()


def test_a_negative_count_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match=r"params\['k'\] is -1: give 0 or more"):
        ask(model, ["user-7"], k=-1)


@pytest.fixture
def folder(export_dir: Path, tmp_path: Path) -> Path:
    """A copy of the export that a test may damage."""
    return Path(shutil.copytree(export_dir, tmp_path / "an export ü%20"))


@pytest.mark.parametrize("storage", STORAGES)
def test_loading_reads_the_manifest_only_and_asking_only_the_users_part(folder: Path, storage: str) -> None:
    kept = folder / "user_vectors" / f"part-{user_hash('user-7') % 2:05d}.parquet"
    for path in folder.rglob("*.*"):
        if path not in (kept, folder / "manifest.json"):
            path.write_bytes(bytes(path.stat().st_size))
    assert len(ask(load(folder, storage), ["user-7"])["vector"][0]) == VECTOR_SIZE


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing file": (
        lambda folder: (folder / "index" / "users.faiss").unlink(),
        "index/users.faiss there cannot be read",
    ),
    "cut short": (
        lambda folder: os.truncate(folder / "user_vectors" / "part-00000.parquet", 9),
        r"user_vectors/part-00000\.parquet there has 9 bytes, registered were \d",
    ),
    "unmounted": (shutil.rmtree, "it is not on this machine: moved, deleted, or its disk is not mounted"),
    "another export": (
        lambda folder: (folder / "manifest.json").write_text('{"release": "r2"}'),
        "it holds another export: sha256 of manifest.json [0-9a-f]{64}, registered was [0-9a-f]{64}",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_referenced_folder_that_is_not_as_registered_is_told_with_the_way_out(
    export_dir: Path, folder: Path, damage: str
) -> None:
    change, words = DAMAGES[damage]
    change(folder)
    with pytest.raises(RuntimeError, match=rf"release r1 has its files in .*an export ü%20, but {words}") as caught:
        load(folder, "reference", export_dir / "manifest.json")
    assert "restore the folder, load another version, or say where the folder is now with" in str(caught.value)
    assert 'model_config={"export_uri": "file:///the/folder"}' in str(caught.value)


def test_a_copy_that_is_not_whole_is_not_loaded(folder: Path) -> None:
    os.truncate(folder / "index" / "users.faiss", 9)
    with pytest.raises(
        RuntimeError, match=r"users.faiss there has 9 bytes.*: load another version, or repeat the `surf2vec run`"
    ):
        load(folder)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_folder_replaced_under_a_loaded_model_is_never_mixed_in(folder: Path, tmp_path: Path, storage: str) -> None:
    model = load(folder, storage)
    assert ask(model, ["user-7"])["vector"][0] is not None
    folder.rename(tmp_path / "older")
    make_release(Root(tmp_path), num_users=NUM_USERS, partitions=2, seed=2).rename(folder)
    for params in ({}, {"k": 1}, {"items": 1}):
        with pytest.raises(
            RuntimeError, match="there has changed since it was opened: open it, or load the model, again"
        ):
            ask(model, ["user-7"], **params)


@pytest.mark.parametrize("uri", ["s3://bucket/export", "file://elsewhere/export", "export/r1"])
def test_a_place_that_is_no_folder_of_this_machine_is_refused(model: Any, uri: str) -> None:
    with pytest.raises(RuntimeError, match=r"export_uri is .*: give a folder of this machine"):
        type(model).load_context.__globals__["folder_of"](uri)


def watch_reads(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The row groups and columns of each read of a file of users, from now on."""
    part_class, reads = type(model.release.part(0)), []
    read = part_class.read
    monkeypatch.setattr(part_class, "read", lambda self, *what: reads.append(what) or read(self, *what))
    return reads


def test_one_user_reads_one_row_group(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = watch_reads(model, monkeypatch)
    ask(model, ["user-7", "user-7"])
    assert [len(groups) for groups, _ in reads] == [1]
    assert model.release.part(0).metadata.num_row_groups > 1


def test_the_ids_of_neighbours_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(folder)
    first = ask(model, ["user-7"], k=5)
    reads = watch_reads(model, monkeypatch)
    pd.testing.assert_frame_equal(ask(model, ["user-7"], k=5), first)
    assert [columns for _, columns in reads] == [["user_id", "vector", "scale"]]
    other = folder / "user_vectors" / f"part-{1 - user_hash('user-7') % 2:05d}.parquet"
    os.utime(other, (1, 1))
    with pytest.raises(RuntimeError, match="there has changed since it was opened"):
        ask(model, ["user-7"], k=NUM_USERS)  # of both parts, and in memory by now


COUNT_THREADS = """
import json, os, sys
from pathlib import Path
import pyarrow
from release_reader import ReleaseReader
pyarrow.set_cpu_count(4)
folder = Path(sys.argv[1])
release = ReleaseReader(folder, json.loads((folder / "manifest.json").read_text()), "")
before = len(os.listdir("/proc/self/task"))
assert len(release.find_users({"user-7", "user-8"})) == 2
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_a_process_may_end_right_after_an_answer(export_dir: Path) -> None:
    """One of Arrow's threads that still freed Python's memory then aborted it, once in forty times on a busy machine."""
    folder = next(path.parent for path in MODEL_MODULES if path.stem == "release_reader")
    command = [sys.executable, "-c", COUNT_THREADS, str(export_dir)]
    assert subprocess.check_output(command, text=True, env=os.environ | {"PYTHONPATH": str(folder)}) == "0\n"


def test_the_files_import_nothing_of_ours() -> None:
    modules = {path.stem for path in MODEL_MODULES}
    for path in (MODEL_CODE, *MODEL_MODULES):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in names} <= {
            *sys.stdlib_module_names, "ada_url", "faiss", "mlflow", "numpy", "pandas", "pyarrow", *modules,
        }, path  # fmt: skip


def test_seen_items_are_left_out(model: Any, users: dict[str, np.ndarray], export_dir: Path) -> None:
    names, (urls, _) = list(users)[:3], read_items(export_dir)
    ids = [names[0], "a stranger", names[1], names[2]]
    before = ask(model, ids, items=5)["items"]
    seen = [[before[0][0], f"{before[0][1]}?utm_source=x"], before[0], ["/no such page"], list(urls)]
    answer = model.predict(None, pd.DataFrame({"user_id": ids, "seen": seen}), {"items": 5})
    found = answer["items"]
    assert found[0][:3] == before[0][2:]
    assert len(found[0]) == 5
    assert found[1] is None
    assert found[2] == before[2]
    assert found[3] == []
    assert answer["unknown_pages"].tolist() == [0, 0, 1, 0]
    assert ask(model, ids, items=5, seen="keep")["items"].tolist() == before.tolist()
    with pytest.raises(ValueError, match="'drop': use 'keep', or by default 'leave out'"):
        ask(model, ids, seen="drop")
    with pytest.raises(ValueError, match="is 'keep', but a column `seen` has what to leave out"):
        model.predict(None, pd.DataFrame({"user_id": ids, "seen": seen}), {"items": 5, "seen": "keep"})
    with pytest.raises(ValueError, match="seen in row 1 is null"):
        model.predict(None, pd.DataFrame({"user_id": ids[:2], "seen": [[], None]}), {"items": 5})
