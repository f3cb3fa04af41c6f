"""Pages asked of the registered model: renewed vectors and next items, of known users and of strangers."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from surf2vec.api import Release
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.pull import pull
from surf2vec.tasks.registry.pull_since import pull_since
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import decode_vectors
from surf2vec.tasks.release.trail_sums import TrailSums
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import read_json
from tests.data.corpora import RULES
from tests.roots.releases import STORAGES, make_release, read_items, read_users, write_run_record
from tests.roots.trail_releases import STORED, make_trail_root
from tests.tasks.registry.test_serving_model import load

KNOWN, SEEN, NOW = "user-3", ["/page/1"], ["/page/5", "/elsewhere", "/page/6", "/page/6"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_trail_root(tmp_path_factory.mktemp("made") / "root")


def ask(model: Any, ids: list[Any] | None, pages: Any, **params: Any) -> pd.DataFrame:
    columns = {"user_id": ids, "pages": pages} if ids is not None else {"pages": pages}
    return model.predict(
        None, pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()}), params
    )


def expect(root: Root, release: str, user: str | None, pages: list[str]) -> np.ndarray:
    users = read_users(root.export(release))
    last = users[user] if user else np.zeros(len(users[KNOWN]), np.float32)
    return Release(root.export(release)).renew(last[None], [pages])[0][0]


@pytest.mark.parametrize("release", STORED)
def test_a_row_of_pages_has_its_own_vector_and_next_items(root: Root, release: str) -> None:
    model = load(root.export(release))
    answer = ask(model, [KNOWN, KNOWN, "a stranger", None], [SEEN, NOW, NOW, SEEN], items=4, seen="keep")
    assert answer["unknown_pages"].tolist() == [0, 1, 1, 0]
    assert answer["user_id"].tolist() == [KNOWN, KNOWN, "a stranger", None]
    expected = [
        expect(root, release, user, pages) for user, pages in ((KNOWN, SEEN), (KNOWN, NOW), (None, NOW), (None, SEEN))
    ]
    np.testing.assert_allclose(np.array(answer["vector"].tolist()), expected, rtol=1e-6, atol=1e-7)
    urls, items = read_items(root.export(release))
    for row, vector in zip(answer.itertuples(), expected, strict=True):
        assert row.items == [urls[i] for i in np.argsort(-(items @ vector), kind="stable")[:4]]


def test_without_a_known_page_last_nights_vector_stays_and_a_stranger_has_none(root: Root) -> None:
    model, users = load(root.export("whole")), read_users(root.export("whole"))
    answer = ask(
        model, [KNOWN, KNOWN, "a stranger", "a stranger"], [[], ["/elsewhere"], [], ["/elsewhere"]], k=2, items=2
    )
    np.testing.assert_array_equal(np.array(answer["vector"].tolist()[:2], np.float32), [users[KNOWN]] * 2)
    for name in ("vector", "neighbours", "scores", "items", "item_scores"):
        assert answer[name].isna().tolist() == [False, False, True, True]
    assert answer["unknown_pages"].tolist() == [0, 1, 0, 1]
    assert ask(model, None, []).shape == (0, 2)


def test_urls_are_the_items_that_the_logs_rules_make_of_them(root: Root) -> None:
    model = load(root.export("whole"))
    bare = ask(model, [KNOWN, "a stranger"], [NOW, SEEN], items=20)
    urls = [[f"{page}?utm_source=x#top" for page in pages] for pages in (NOW, SEEN)]
    pd.testing.assert_frame_equal(ask(model, [KNOWN, "a stranger"], urls, items=20), bare)


def test_the_pages_that_were_just_given_are_not_ranked_unless_kept(root: Root) -> None:
    model, pages = load(root.export("whole")), [["/page/5?a", "/page/6"], [], ["/page/1"]]
    kept = ask(model, [KNOWN] * 3, pages, items=20, seen="keep")["items"]
    answer = ask(model, [KNOWN] * 3, pages, items=20)["items"]
    assert kept.map(len).tolist() == [20, 20, 20]
    for found, all_items, given in zip(answer, kept, [{"/page/5", "/page/6"}, set(), {"/page/1"}], strict=True):
        assert found == [item for item in all_items if item not in given]
    both = {"user_id": [KNOWN], "pages": [pages[0]], "seen": [["/page/7?b", "/elsewhere"]]}
    row = model.predict(None, pd.DataFrame(both), {"items": 20}).iloc[0]
    assert row["items"] == [item for item in kept[0] if item not in ("/page/5", "/page/6", "/page/7")]
    assert row["unknown_pages"] == 1
    assert row["vector"] == ask(model, [KNOWN], [pages[0]])["vector"][0]


def test_neighbours_are_by_the_renewed_vectors(root: Root) -> None:
    users = read_users(root.export("whole"))
    answer = ask(load(root.export("whole")), [KNOWN, "a stranger"], [NOW, NOW], k=3)
    for row, user in zip(answer.itertuples(), (KNOWN, None), strict=True):
        vector = expect(root, "whole", user, NOW)
        cosines = {
            name: one @ vector / np.linalg.norm(one) / np.linalg.norm(vector)
            for name, one in users.items()
            if name != user
        }
        best = sorted(cosines, key=lambda name: -cosines[name])[:3]
        np.testing.assert_allclose(row.scores, [cosines[name] for name in best], atol=2e-3)
        assert KNOWN not in row.neighbours or user is None


@pytest.mark.parametrize("release", ["whole", "narrow"])
def test_a_part_alone(root: Root, release: str) -> None:
    model = load(root.export(release))
    columns = {part: slice(*span) for part, span in model.manifest["parts"].items()}
    urls, items = read_items(root.export(release))
    for part in ("trail", "interest"):
        row = ask(model, [KNOWN], [NOW], part=part, items=3, seen="keep").iloc[0]
        vector = expect(root, release, KNOWN, NOW)[columns[part]]
        np.testing.assert_allclose(row["vector"], vector, rtol=1e-6, atol=1e-7)
        assert row["items"] == [urls[i] for i in np.argsort(-(items[:, columns[part]] @ vector), kind="stable")[:3]]


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        (None, "row 0 is null"),
        ("/secret", "row 0 is of type str"),
        (float("nan"), "row 0 is null"),
        (["/a", 3], "row 0 has an entry"),
    ],
)
def test_bad_pages_are_refused_in_words(root: Root, pages: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^pages in {words}.*: give a list of URLs, oldest first") as caught:
        ask(load(root.export("whole")), [KNOWN], [pages])
    assert "secret" not in str(caught.value)


def test_one_row_of_lists_as_it_comes_over_http(root: Root) -> None:
    model = load(root.export("whole"))
    expected = ask(model, [KNOWN, "a stranger"], [NOW, SEEN])
    for frame in ({"user_id": [[KNOWN, "a stranger"]], "pages": [[NOW, SEEN]]}, {"pages": [[NOW, SEEN]]}):
        answer = model.predict(None, pd.DataFrame(frame))
        assert len(answer) == 2
        assert answer["vector"][1] == expected["vector"][1]
    assert ask(model, None, [[]])["vector"].tolist() == [None], "a row without pages is a row"
    with pytest.raises(ValueError, match="the columns have different lengths"):
        ask(model, [[KNOWN]], [[NOW, SEEN]])
    with pytest.raises(ValueError, match="pages in row 0 is null"):
        ask(model, [[KNOWN]], [None])


def test_neither_column_and_a_release_without_a_trail_are_refused(root: Root, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give a column user_id, a column pages with lists of URLs, or both"):
        load(root.export("whole")).predict(None, pd.DataFrame({"page": ["/page/1"]}))
    model = load(make_release(Root(tmp_path)))
    with pytest.raises(ValueError, match="release r1 cannot sum up pages: its vectors have no trail"):
        ask(model, ["user-3"], [NOW])


def test_the_file_is_read_at_the_first_pages_and_a_damaged_one_refused(root: Root) -> None:
    trail = root.export("narrow") / "trail_inputs.parquet"
    whole = trail.read_bytes()
    trail.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    try:
        model = load(root.export("narrow"))
        assert len(model.predict(None, pd.DataFrame({"user_id": [KNOWN]}))["vector"][0]) == 16
        with pytest.raises(RuntimeError, match=r"trail_inputs.parquet there does not have the registered sha256"):
            ask(model, [KNOWN], [NOW])
    finally:
        trail.write_bytes(whole)


@pytest.mark.parametrize("storage", STORAGES)
def test_through_mlflow_with_its_schema(tmp_path: Path, storage: str) -> None:
    root = make_trail_root(tmp_path / "root")
    publish_release(root, STORAGES[storage], write_run_record("whole"), root.export("whole"))
    with tracking.use_uri(root.tracking_uri):
        model = tracking.mlflow.pyfunc.load_model("models:/surf2vec-users/1")
    expected = [expect(root, "whole", user, NOW) for user in (KNOWN, None)]
    assert model.input_example["pages"].map(type).tolist() == [list, list]
    urls = [f"{page}?utm_source=x" for page in NOW]
    both = model.predict(pd.DataFrame({"user_id": [KNOWN, "a stranger"], "pages": [NOW, urls]}), params={"items": 2})
    assert both["unknown_pages"].tolist() == [1, 1]
    assert not {"/page/5", "/page/6"} & set(both["items"].explode())
    kept = model.predict(pd.DataFrame({"pages": [NOW]}), params={"items": 20, "seen": "keep"})
    assert {"/page/5", "/page/6"} < set(kept["items"][0])
    np.testing.assert_allclose(np.array(both["vector"].tolist()), expected, rtol=1e-6, atol=1e-7)
    assert both["items"].map(len).tolist() == [2, 2]
    alone = model.predict(pd.DataFrame({"pages": [NOW]}))
    assert list(alone.columns) == ["vector", "unknown_pages"]
    assert alone["unknown_pages"][0] == 1
    np.testing.assert_allclose(alone["vector"][0], expected[1], rtol=1e-6, atol=1e-7)
    assert model.predict(pd.DataFrame({"user_id": [KNOWN]}))["vector"][0] is not None
    with pytest.raises(Exception, match="pages in row 0 is of type str"):
        model.predict(pd.DataFrame({"user_id": [KNOWN], "pages": ["/page/1"]}))


@pytest.mark.parametrize("storage", STORAGES)
def test_pulls_bring_the_file_and_since_brings_it_whole(tmp_path: Path, storage: str) -> None:
    root = make_trail_root(tmp_path / "root")
    for release in ("whole", "reduced"):
        publish_release(root, STORAGES[storage], write_run_record(release), root.export(release))
    name = "models:/surf2vec-users/2"
    pull(name, tmp_path / "pulled", root.tracking_uri)
    told = pull_since(name, tmp_path / "changes", 1, root.tracking_uri)
    expected = open_folder(root.export("reduced")).trail_sums
    content = (root.export("reduced") / "trail_inputs.parquet").read_bytes()
    for folder in ("pulled", "changes"):
        assert (tmp_path / folder / "trail_inputs.parquet").read_bytes() == content
        found = open_folder(tmp_path / folder).trail_sums if folder == "pulled" else read_changed(tmp_path / folder)
        assert (found.columns, found.weight) == (expected.columns, expected.weight)
        assert read_json(tmp_path / folder / "manifest.json")["rules"] == RULES
        np.testing.assert_array_equal(found.inputs, expected.inputs)
    again = pull_since(name, tmp_path / "changes", 1, root.tracking_uri)
    assert again["fetched_bytes"] == told["fetched_bytes"]
    for path in [*root.artifacts.rglob("trail_inputs.parquet"), *root.path.glob("export/*/trail_inputs.parquet")]:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamageError, match=r"trail_inputs.parquet of models:/surf2vec-users/2 has"):
        pull_since(name, tmp_path / "new", 1, root.tracking_uri)


def read_changed(folder: Path) -> TrailSums:
    """The sums of a folder of changes, whose manifest names the file as that of a release does."""
    manifest, table = read_json(folder / "manifest.json"), pq.read_table(folder / "trail_inputs.parquet")
    assert manifest["files"]["trail_inputs.parquet"] == manifest["trail"]
    return TrailSums.of_release(manifest, decode_vectors(table))
