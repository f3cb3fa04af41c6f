"""The Python module does what the commands do; the page about it is run as it stands."""

import inspect
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import typer

import surf2vec
from surf2vec.flows.cli import app
from surf2vec.tasks.config import IngestConfig, PublishConfig
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.trainer.events import ignore_event
from tests.flows.test_nightly import write_logs
from tests.roots.ingest import write_log
from tests.roots.serving import make_served
from tests.roots.trail_releases import make_trail_root
from tests.roots.training import MEMORY_BYTES
from tests.servers.python import run_python

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.fixture(scope="module", params=["float32", "float16", "int8"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_served(tmp_path_factory.mktemp("root"), PublishConfig(), dtype=request.param)


def test_vectors_are_lazy_frames_of_floats(served: Root) -> None:
    release = surf2vec.open_release(served.path)
    users, items = release.user_vectors(), release.item_vectors()
    assert isinstance(users, pl.LazyFrame)
    size = release.manifest["vector_size"]
    assert dict(users.collect_schema()) == {"user_id": pl.String, "vector": pl.Array(pl.Float32, size)}
    assert dict(items.collect_schema()) == {"url": pl.String, "count": pl.Int64, "vector": pl.Array(pl.Float32, size)}
    assert users.collect().height == release.manifest["num_users"]
    assert items.collect().height == release.manifest["num_items"]
    vectors = users.collect()["vector"].to_numpy()
    assert 0.01 < abs(vectors[:, :-1]).mean() < 10  # int8 is scaled


def test_neighbours_and_items_are_those_of_the_command(served: Root) -> None:
    release = surf2vec.open_release(served.path)
    user = release.user_vectors().collect()["user_id"][0]
    similar, ranked = release.similar(user, 3), release.rank(user, 4)
    assert similar.columns == ["user_id", "score"]
    assert similar.height == 3
    assert user not in similar["user_id"]
    assert ranked.height == 4
    assert ranked["score"].is_sorted(descending=True)
    with pytest.raises(surf2vec.SurfError, match="not among the"):
        release.rank("nobody")


def test_a_url_is_made_an_item_by_the_rules_of_a_root_or_a_release(served: Root, tmp_path: Path) -> None:
    release = surf2vec.open_release(served.path)
    for place in (served.path, str(release.folder), release):
        assert surf2vec.make_item("https://www.shop.example/sofas/?utm_source=x", place) == "https://shop.example/sofas"
        assert surf2vec.make_item("mailto:me@shop.example", place) is None
    log = write_log(tmp_path / "log.csv", "u,https://shop.example/a?id=3,2026-01-01T00:00:00Z")
    root, config = open_root(tmp_path / "root"), IngestConfig(granularity="prefix:1")
    ingest(root, [str(log)], config, 4, MEMORY_BYTES, 1, ignore_event)
    assert surf2vec.make_item("https://shop.example/a/b?id=4", root.path) == "https://shop.example/a"
    with pytest.raises(surf2vec.SurfError, match="is not a surf2vec root"):
        surf2vec.make_item("/a", tmp_path)


def test_urls_renew_a_trail_and_unknown_pages_are_counted(tmp_path: Path) -> None:
    release = surf2vec.Release(make_trail_root(tmp_path / "root").export("whole"))
    nobody = np.zeros((2, 16), np.float32)
    vectors, is_renewed, unknown = release.renew(nobody, [["/page/1?utm_source=x", "/elsewhere"], []])
    expected, *_ = release.renew(nobody, [["/page/1"], []])
    np.testing.assert_array_equal(vectors, expected)
    assert (is_renewed.tolist(), unknown.tolist()) == ([True, False], [1, 0])


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(surf2vec.SurfError, match="is not a surf2vec root"):
        surf2vec.open_release(tmp_path)
    with pytest.raises(surf2vec.SurfError, match=r"train\.epoch: unknown setting; did you mean train\.epochs"):
        surf2vec.run("logs/*.csv", tmp_path / "root", train__epoch=3)
    assert not (tmp_path / "root").exists()


def test_every_command_is_a_function_with_types() -> None:
    for command in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert command.replace("-", "_") in surf2vec.__all__
        parameters = inspect.signature(getattr(surf2vec, command.replace("-", "_"))).parameters.values()
        assert all(one.annotation is not inspect.Parameter.empty for one in parameters), command


def test_everything_that_is_named_is_there() -> None:
    assert [name for name in surf2vec.__all__ if not hasattr(surf2vec, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        surf2vec.runn  # noqa: B018


def test_settings_come_one_by_one_or_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(surf2vec.SurfError, match=r"either a config or single settings \(train__epochs\), not both"):
        surf2vec.run("*.csv", tmp_path / "root", config=surf2vec.PipelineConfig(), train__epochs=3)


@pytest.mark.slow
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    write_logs(tmp_path / "logs" / "day.csv")
    code, ranker = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    infer = """
import json, polars as pl
events = pl.DataFrame({"user_id": ["new"] * 3, "url": items["url"].head(3), "ts": ["2026-01-02T10:00:00Z"] * 3})
shown = users.select("user_id", ts=pl.lit("2027-01-02T10:00:00Z")).join(items.select("url").head(5), how="cross")
shown.with_columns(clicked=pl.int_range(pl.len()) % 2).write_parquet("shown.parquet")
"""
    check = """
assert len(rows) == len(shown)
print(json.dumps(release.infer(events)["user_id"].to_list()))
"""
    printed = run_python("-c", code + infer + ranker + check, cwd=tmp_path)
    assert json.loads(printed.splitlines()[-1]) == ["new"]
