"""The registered model's file: its answers against brute force, how little it reads, and what it imports."""

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.config import PublishConfig
from tasks.export import unit_rows
from tasks.publish import publish_release
from tasks.run import Root
from tasks.tracking import MODEL_CODE
from tests.corpora import user_hash
from tests.releases import ODD_IDS, VECTOR_SIZE, make_release, read_items, read_users, tell_story

NUM_USERS = 500


def load(export_dir: Path) -> Any:
    """The model as MLflow loads it from its file, with the export as its artifact."""
    spec = importlib.util.spec_from_file_location("user_vectors_model", MODEL_CODE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.UserVectors()
    model.load_context(SimpleNamespace(artifacts={"export": str(export_dir)}))
    return model


def ask(model: Any, ids: Any, **params: int) -> pd.DataFrame:
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


@pytest.fixture(scope="module")
def model(export_dir: Path) -> Any:
    return load(export_dir)


def test_every_user_has_its_vector_and_no_other_column(model: Any, users: dict[str, np.ndarray]) -> None:
    answer = ask(model, list(users))
    assert list(answer.columns) == ["user_id", "vector"]
    assert answer["user_id"].tolist() == list(users)
    np.testing.assert_array_equal(np.array(answer["vector"].tolist(), np.float32), np.stack(list(users.values())))
    assert all(type(vector) is list and type(vector[0]) is float for vector in answer["vector"])


@given(st.lists(st.one_of(st.text(), st.none(), st.integers(0, NUM_USERS * 2).map("user-{}".format))))
@settings(max_examples=50, deadline=None)
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
    monkeypatch.setitem(type(model).find_items.__globals__, "SCORES_AT_ONCE", 100)
    pieces = ask(model, list(users), items=4)
    assert whole["items"].tolist() == pieces["items"].tolist()


def test_a_negative_count_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match=r"params\['k'\] is -1: give 0 or more"):
        ask(model, ["user-7"], k=-1)


def test_loading_reads_the_manifest_only_and_asking_only_the_users_part(export_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    shutil.copytree(export_dir, folder, ignore=shutil.ignore_patterns("*.parquet", "*.faiss"))
    model = load(folder)
    partition = user_hash("user-7") % 2
    name = f"user_vectors/part-{partition:05d}.parquet"
    shutil.copy(export_dir / name, folder / name)
    assert len(ask(model, ["user-7"])["vector"][0]) == VECTOR_SIZE


def test_one_user_reads_one_row_group(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    part_class = type(model.part(0))
    groups_read = []
    read = part_class.read
    monkeypatch.setattr(
        part_class, "read", lambda self, groups, columns: groups_read.append(groups) or read(self, groups, columns)
    )
    ask(model, ["user-7", "user-7"])
    assert [len(groups) for groups in groups_read] == [1]
    assert model.part(0).metadata.num_row_groups > 1


def test_the_file_imports_nothing_of_ours() -> None:
    tree = ast.parse(MODEL_CODE.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert roots == {"faiss", "mlflow", "numpy", "pandas", "pyarrow"}


CONSUMER = """
import importlib.util, sys, time
import pandas as pd
started = time.monotonic()
import mlflow.pyfunc
assert not [name for name in ("tasks", "trainer", "flows", "sql", "duckdb", "torch") if importlib.util.find_spec(name)]
imported = time.monotonic()
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/surf2vec-users@champion")
loaded = time.monotonic()
answer = model.predict(pd.DataFrame({"user_id": ["user-7", "nobody"]}), params={"k": 3, "items": 2})
answered = time.monotonic()
print(f"import {imported - started:.1f} s, load {loaded - imported:.1f} s, answer {answered - loaded:.1f} s", file=sys.stderr)
print(answer.to_json(orient="records"))
"""


@pytest.mark.slow
def test_the_model_answers_where_none_of_our_code_is(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    folder = make_release(root)
    publish_release(root, PublishConfig(), tell_story(), folder, None)
    [requirements] = root.artifacts.rglob("requirements.txt")
    elsewhere = tmp_path / "elsewhere"
    venv.create(elsewhere / ".venv", with_pip=True)
    python = str(elsewhere / ".venv" / "bin" / "python")
    constraints = Path(__file__).parents[2] / "constraints.txt"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MLFLOW", "VIRTUAL"))}
    pip = [python, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", "-c", str(constraints)]
    subprocess.run([*pip, "-r", str(requirements)], check=True, timeout=600, cwd=elsewhere, env=clean)
    done = subprocess.run(
        [python, "-c", CONSUMER, root.tracking_uri],
        capture_output=True, text=True, timeout=120, cwd=elsewhere, env=clean, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    known, unknown = json.loads(done.stdout)
    np.testing.assert_allclose(known["vector"], read_users(folder)["user-7"], rtol=1e-6)
    assert (len(known["neighbours"]), len(known["items"])) == (3, 2)
    assert unknown["user_id"] == "nobody"
    assert unknown["vector"] is None
