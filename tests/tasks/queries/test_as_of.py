"""Vectors as of a time: those of a night at that time, whatever came later. On nights of a real log, made by `backfill`."""

import dataclasses
import json
import shutil
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import surf2vec
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.queries import as_of as module
from surf2vec.tasks.queries.as_of import find_served
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.registry.versions import Registered
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.tombstones import add_tombstones
from surf2vec.trainer.errors import InputError
from tests.flows.test_cli import call
from tests.roots.ingest import snapshot, take_in, write_log

FIRST, LAST = date(1996, 10, 29), date(1996, 10, 31)
FAST: dict[str, Any] = {"train__epochs": 2, "train__vector_size": 16, "train__threads": 1, "window_days": 30}
UNKNOWN, MIDNIGHT = "nobody", datetime.combine(LAST + timedelta(days=1), time())


@pytest.fixture(scope="module")
def events(data_dir: Path) -> pl.DataFrame:
    return pl.read_parquet(data_dir / "entree.parquet").filter(pl.col("ts").dt.date() <= LAST + timedelta(days=7))


def make_root(events: pl.DataFrame, folder: Path) -> Root:
    """Nights of three days, each of the thirty days before, and the events of a week more."""
    events.write_parquet(folder / "log.parquet")
    surf2vec.backfill(str(folder / "log.parquet"), folder / "root", FIRST, LAST, **FAST)
    return Root(folder / "root")


@pytest.fixture(scope="module")
def root(events: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_root(events, tmp_path_factory.mktemp("as-of"))


def ask(root: Root, requests: pl.DataFrame, folder: Path, **settings: Any) -> pl.DataFrame:
    """The rows with their vectors; one that is missing has NaN."""
    requests.write_parquet(folder / "requests.parquet")
    told = surf2vec.as_of(folder / "requests.parquet", folder / "out.parquet", root.path, **settings)
    found = pl.read_parquet(folder / "out.parquet")
    assert told["rows_without_vector"] == found["vector"].null_count()
    assert found.drop("release", "vector").equals(requests)
    return found


def stack(vectors: pl.Series) -> np.ndarray:
    missing = np.full(vectors.dtype.shape, np.nan, np.float32)  # type: ignore[attr-defined]
    return np.stack([missing if one is None else np.array(one, np.float32) for one in vectors.to_list()])


def list_released(root: Root) -> pl.DataFrame:
    """All users of all releases at the end of the window of each: user_id, ts, release, vector."""
    ends = [
        (one.release, datetime.fromisoformat(one.until) + timedelta(days=1))
        for one in find_served(root, PublishConfig())
    ]
    releases = [(folder.manifest["release"], end) for folder, end in ends]
    return pl.concat(
        surf2vec.open_release(root.path, name).user_vectors().collect().with_columns(ts=pl.lit(end), release=pl.lit(name))
        for name, end in releases
    )  # fmt: skip


def test_rows_at_the_end_of_a_night_are_what_it_exported(root: Root, tmp_path: Path) -> None:
    """Trails are summed up by other code than a night's, with rounding of its own; all else has the same bits."""
    released = list_released(root).sample(fraction=1, shuffle=True, seed=1)
    found = ask(root, released.select("user_id", "ts"), tmp_path)
    assert released["release"].n_unique() == 3
    assert found["release"].to_list() == released["release"].to_list()
    own, exported = stack(found["vector"]), stack(released["vector"])
    manifest = find_served(root, PublishConfig())[-1].release.manifest
    trail = slice(*manifest["parts"]["trail"])
    np.testing.assert_allclose(own[:, trail], exported[:, trail], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.delete(own, trail, axis=1), np.delete(exported, trail, axis=1))


def draw_requests(events: pl.DataFrame) -> pl.DataFrame:
    """For each of 60 users a time between two nights, or after all: that of an event, or a moment later."""
    late = events.filter(pl.col("ts") >= datetime.combine(FIRST + timedelta(days=1), time()))
    drawn = late.sample(fraction=1, shuffle=True, seed=2).unique("user_id", maintain_order=True).head(60)
    return drawn.with_columns(pl.col("ts") + pl.duration(microseconds=pl.int_range(pl.len()) % 2)).select(
        "user_id", "ts"
    )


def test_what_comes_at_the_time_or_later_changes_nothing(root: Root, events: pl.DataFrame, tmp_path: Path) -> None:
    requests, pages = draw_requests(events), events["url"].unique(maintain_order=True).to_list()
    before, copies = ask(root, requests, tmp_path), {}
    for name, us in {"later": (0, 1, 10**6, 10**10), "earlier": (-1, -2)}.items():
        shutil.copytree(root.path, tmp_path / name)
        lines = [
            f"{user},{pages[n + k]},{ts + timedelta(microseconds=delay)}"
            for n, (user, ts) in enumerate(requests.iter_rows()) for k, delay in enumerate(us)
        ]  # fmt: skip
        take_in(tmp_path / name, write_log(tmp_path / f"{name}.csv", *lines), partitions=None)
        copies[name] = stack(ask(Root(tmp_path / name), requests, tmp_path)["vector"])
    np.testing.assert_array_equal(copies["later"], stack(before["vector"]))
    assert (copies["earlier"] != copies["later"]).any(axis=1).all()


def test_rows_are_kept_as_they_are_and_null_says_who_has_no_vector(root: Root, tmp_path: Path) -> None:
    known = list_released(root).filter(pl.col("ts") == MIDNIGHT)["user_id"][0]
    early = datetime.combine(FIRST + timedelta(days=1), time()) - timedelta(microseconds=1)
    rows = [(known, MIDNIGHT, 1), (UNKNOWN, MIDNIGHT, 2), (known, early, 3), (None, MIDNIGHT, 4), (known, MIDNIGHT, 5)]
    requests = pl.DataFrame(rows, {"user_id": pl.String, "ts": pl.Datetime("us"), "label": pl.Int8}, orient="row")
    found = ask(root, requests, tmp_path)
    newest = find_served(root, PublishConfig())[-1].release.manifest
    name = newest["release"]
    assert found["release"].to_list() == [name, name, None, name, name]
    assert found["vector"].is_null().to_list() == [False, True, True, True, False]
    assert found["vector"][0].to_list() == found["vector"][4].to_list()
    assert found["vector"].dtype == pl.Array(pl.Float32, newest["vector_size"])
    requests.with_columns(pl.col("ts").dt.strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00")).write_csv(tmp_path / "requests.csv")
    surf2vec.as_of(tmp_path / "requests.csv", tmp_path / "csv.parquet", root.path)
    of_csv = pl.read_parquet(tmp_path / "csv.parquet")
    np.testing.assert_array_equal(stack(of_csv["vector"]), stack(found["vector"]))
    assert of_csv["label"].to_list() == [1, 2, 3, 4, 5]


def test_a_user_who_came_after_the_release_has_trail_and_activity_alone(
    root: Root, events: pl.DataFrame, tmp_path: Path
) -> None:
    before = events.filter(pl.col("ts") < MIDNIGHT)["user_id"].unique().to_list()
    came = events.filter(~pl.col("user_id").is_in(before)).group_by("user_id").len().sort("len")["user_id"].tail(20)
    requests = pl.DataFrame({"user_id": came, "ts": [MIDNIGHT + timedelta(days=7)] * 20})
    vectors = stack(ask(root, requests, tmp_path)["vector"].drop_nulls())
    parts = find_served(root, PublishConfig())[-1].release.manifest["parts"]
    assert len(vectors) > 3
    assert (vectors[:, slice(*parts["interest"])] == 0).all()
    for part in ("trail", "activity"):
        assert (vectors[:, slice(*parts[part])] != 0).any(axis=1).all()


def test_neither_what_was_rolled_back_nor_what_is_gone_counts(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(root.path, tmp_path / "copy")
    copy, registered = Root(tmp_path / "copy"), read_registry(root, PublishConfig())
    oldest, older, newest = registered.versions
    back = dataclasses.replace(newest, tags=newest.tags | {"rolled_back_at": "1996-11-02"})
    requests = pl.DataFrame({"user_id": ["anyone"], "ts": [MIDNIGHT]})
    assert ask(copy, requests, tmp_path)["release"].to_list() == [newest.tags["release"]]
    monkeypatch.setattr(module, "read_registry", lambda *_: Registered([oldest, older, back], registered.aliases))
    assert ask(copy, requests, tmp_path)["release"].to_list() == [older.tags["release"]]
    shutil.rmtree(copy.export(older.tags["release"]))
    assert ask(copy, requests, tmp_path)["release"].to_list() == [oldest.tags["release"]]
    monkeypatch.setattr(module, "read_registry", lambda *_: Registered([], {}))
    with pytest.raises(InputError, match="no release of events with times that serves"):
        ask(copy, requests, tmp_path)


@pytest.mark.slow
def test_who_is_forgotten_has_no_vector(events: pl.DataFrame, tmp_path: Path) -> None:
    root = make_root(events, tmp_path)
    users = list_released(root).filter(pl.col("ts") == MIDNIGHT)["user_id"][:4].to_list()
    requests = pl.DataFrame({"user_id": users, "ts": [MIDNIGHT] * 4})
    assert not ask(root, requests, tmp_path)["vector"].null_count()
    add_tombstones(root, users[:1])  # as a call does first, before it is killed
    assert ask(root, requests, tmp_path)["vector"].is_null().to_list() == [True, False, False, False]
    (tmp_path / "ids.txt").write_text(f"{users[1]}\n")
    surf2vec.forget(tmp_path / "ids.txt", root.path)
    assert ask(root, requests, tmp_path)["vector"].is_null().to_list() == [True, True, False, False]


def test_the_command_says_what_it_wrote_and_what_is_missing(root: Root, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "out.parquet"
    rows.write_text("user_id,ts,label\nanyone,1996-10-31,1\nanyone,1996-01-01,0\n")
    arguments = ["as-of", "--requests", str(rows), "--out", str(out), "--root", str(root.path), "--json"]
    told = json.loads(call(*arguments).stdout)
    assert {name: told[name] for name in told if name.startswith("rows")} == {
        "rows": 2, "rows_without_release": 1, "rows_without_vector": 2, "rows_without_interest": 0,
    }  # fmt: skip
    assert pl.read_parquet(out).columns == ["user_id", "ts", "label", "release", "vector"]
    rows.write_text("user_id,label\nanyone,1\n")
    refused = call(*arguments)
    assert refused.returncode == 2
    assert "rows.csv has no column ts, only user_id, label" in json.loads(refused.stdout)["error"]["message"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.csv", "user,time\nann,1\n", r"rows.csv has no column ts and no user_id, only user, time"),
        ("rows.csv", "user_id,ts\n", "rows.csv has no rows"),
        ("rows.csv", "", "rows.csv"),
        ("rows.csv", "user_id,ts,vector\nann,1996-11-01,1\n", "has a column vector, as --out gets: rename it"),
        (
            "rows.csv",
            "user_id,ts\nann,1996-11-01\neve,soon\nann,\n",
            "has 2 times ts that cannot be read, the first in row 2",
        ),
        ("gone.parquet", None, "cannot read .*gone.parquet"),
    ],
)
def test_files_that_cannot_be_used(root: Root, tmp_path: Path, name: str, text: str | None, message: str) -> None:
    out, before = tmp_path / "out.parquet", snapshot(root.path)
    out.write_bytes(b"kept")
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        surf2vec.as_of(tmp_path / name, out, root.path)
    assert "soon" not in str(raised.value)
    assert out.read_bytes() == b"kept"
    assert snapshot(root.path) == before


def test_releases_that_do_not_go_together(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sizes, or reduced."""
    requests = list_released(root).select("user_id", "ts")
    served = find_served(root, PublishConfig())
    folders = [open_folder(one.release.folder) for one in served]
    folders[0].manifest["vector_size"] += 1
    changed = [one._replace(release=folder) for one, folder in zip(served, folders, strict=True)]
    monkeypatch.setattr(module, "find_served", lambda *_: changed)
    with pytest.raises(InputError, match="of releases with vectors of .* and of .* dimensions"):
        ask(root, requests, tmp_path)
    folders[1].manifest["projection"] = {}
    with pytest.raises(InputError, match=r"export.pca_dim"):
        ask(root, requests, tmp_path)
