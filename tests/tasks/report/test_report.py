"""The report: what it shows, that it stands alone, and that a gap in the record is a gap on the page."""

import copy
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.release.folder import FORMAT_VERSION
from surf2vec.tasks.report.report import render_report, write_report
from surf2vec.tasks.report.tables import STEPS
from surf2vec.tasks.root.records import RunRecord
from surf2vec.trainer.system.files import describe_file, write_json
from tests.data.corpora import RULES

VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}
RECORD: dict[str, Any] = {
    "run_id": "run-7",
    "created_at": "2026-11-21T04:02:11+00:00",
    "command": "surf2vec run --logs /data/*.csv",
    "config": {"train": {"vector_size": 8, "epochs": 2}, "publish": {"tracking_uri": None}},
    "steps": {
        "ingest": {
            "seconds": 0.5, "sources_new": 2, "sources_replaced": 0, "sources_known": 1, "lines": 1_234_567,
            "events": 1_200_000, "left_out": {"static_asset": 30_000}, "rejected": {"bad_time": 4_567},
            "num_rejected": 4_567, "formats": {"csv": 2}, "times": {"epoch seconds": 2},
        },
        "corpus": {
            "seconds": 2.5, "window_id": "w-1", "num_users": 54_321, "num_items": 40, "num_tokens": 1_100_000,
            "num_held_out": 9_000, "partitions": 8, "since": "2026-11-01", "until": "2026-11-20", "bytes": 5_000_000,
            "funnel": [
                ["events in the window", 1_200_000], ["events without bots", 1_150_000], ["tokens", 1_100_000],
                ["items in the window", 90], ["items in the vocabulary", 40],
            ],
        },
        "choose": {"seconds": 1.0, "trail_weight": 0.6, "popularity": 0.0},
        "train": {
            "seconds": 90.0, "generation": 4, "kernel": "cpu", "kernel_reason": "cpu: no GPU", "tokens": 2_200_000,
            "plan": {
                "num_chunks": 1, "num_blocks": 1, "peak_bytes": 320_000_000, "budget_bytes": 400_000_000, "num_commits": 1,
                "read_bytes": 0, "written_bytes": 4_500_000, "seconds": 2.5, "reasons": ["all users fit"],
            },
            "train_seconds": 2.7, "stall": 0.012, "commit_stall": 0.1, "peak_bytes": 310_000_000, "bytes_read": 0,
            "tokens_per_second": 812_000.0, "loss": 2.5, "heldout_loss": 2.625, "bytes_written": 9_000_000, "num_commits": 2,
            "curve": [
                {"epoch": 1.0, "seconds": 1.4, "tokens_per_second": 800_000.0, "loss": 3.0, "heldout_loss": None, "alpha": 0.02},
                {"epoch": 2.0, "seconds": 2.7, "tokens_per_second": 812_000.0, "loss": 2.5, "heldout_loss": 2.625, "alpha": 0.0},
            ],
        },
        "evaluate": {
            "seconds": 3.0, "num_users": 9_000,
            "metrics": {
                "hit_at_10": 0.123, "hit_at_20": 0.2, "mrr_at_20": 0.05, "ndcg_at_20": 0.08, "coverage_at_20": 0.7,
                "popularity_hit_at_10": 0.05125, "popularity_hit_at_20": 0.09, "popularity_mrr_at_20": 0.02,
                "popularity_ndcg_at_20": 0.03, "popularity_coverage_at_20": 0.01,
            },
        },
        "refit": {"seconds": 1.0, "generation": 5, "num_users": 9_000},
        "export": {
            "seconds": 2.0, "release": "release-9", "export_dir": "/root/export/release-9", "num_users": 54_321,
            "num_items": 40, "bytes": 30_000_000, "index_kind": "flat-fp16", "index_seconds": 0.25,
        },
        "gate": {
            "seconds": 0.5, "passes": True, "verdict": "passed", "held_by": [], "champion": "release-8",
            "table": [
                {"rule": "users, of the champion's number", "tonight": "101.0 %", "limit": "≥ 80.0 %", "verdict": "passed"},
                {"rule": "drift", "tonight": "", "limit": "≥ 0.98", "verdict": "not checked",
                 "reason": "the spaces differ"},
            ],
        },
        "register": {
            "seconds": 4.0, "model_name": "surf2vec-users", "model_version": "3", "alias": "champion",
            "tracking_uri": "https://nobody:hunter2@mlflow.example/", "mlflow_run_id": "abc123",
        },
    },
}  # fmt: skip


class Page(HTMLParser):
    """Reads a page and keeps its text; fails on a tag that is not closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(html)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open_tags):
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def write_items(export_dir: Path, urls: list[str], dim: int = 8) -> Path:
    """An export with item vectors of three planted groups, and user vectors that nobody may look at."""
    rng = np.random.default_rng(0)
    groups = np.arange(len(urls)) % 3
    X = (rng.normal(size=(3, dim))[groups] + 0.3 * rng.normal(size=(len(urls), dim))).astype(np.float32)
    (export_dir / "user_vectors").mkdir(parents=True)
    users = pa.table({"user_id": [f"secret-user-{ix}" for ix in range(len(urls))], "vector": X.tolist()})
    pq.write_table(users, export_dir / "user_vectors" / "part-00000.parquet")
    return write_vectors(export_dir, urls, [1000 // (ix + 1) + 5 for ix in range(len(urls))], X)


def write_vectors(folder: Path, urls: list[str], counts: list[int], X: np.ndarray, **values: Any) -> Path:
    """An export that has nothing but these item vectors; with these values in its manifest."""
    (folder / "item_vectors").mkdir(parents=True)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.astype(np.float32).ravel()), X.shape[1])
    table = pa.table({"url": pa.array(urls, pa.string()), "count": pa.array(counts, pa.int64()), "vector": vectors})
    path = folder / "item_vectors" / "part-00000.parquet"
    pq.write_table(table, path, row_group_size=3)
    write_json(folder / "manifest.json", manifest_of({path.name: describe_file(path)}) | values)
    return folder


def manifest_of(item_files: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a release that has nothing but item vectors."""
    return {
        "release": "r1", "space_id": "r1", "created_from": {"window_id": "w1"}, "format_version": FORMAT_VERSION,
        "vector_size": 8, "num_users": 0, "num_items": 0, "partitions": 8, "user_files": {}, "item_files": item_files,
        "index": {"file": "index/users.faiss", "bytes": 0, "sha256": ""}, "rules": RULES,
        "parts": {}, "bias_columns": [],
    }  # fmt: skip


@pytest.fixture
def export_dir(tmp_path: Path) -> Path:
    return write_items(tmp_path / "export", [f"/wiki/Page_{chr(65 + ix % 26)}{chr(97 + ix // 26)}" for ix in range(40)])


def draw(record: dict[str, Any], export_dir: Path | None) -> str:
    return render_report(RunRecord.model_validate(record), export_dir)


def without(*steps: str) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    for step in steps:
        del record["steps"][step]
    return record


def changed(step: str, **values: Any) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    record["steps"][step] |= values
    return record


def test_who_comes_back_has_a_table_where_it_was_measured(export_dir: Path) -> None:
    assert "Who comes back" not in Page(draw(RECORD, export_dir)).text
    record = copy.deepcopy(RECORD)
    auc = {"all parts": [0.713, 0.691, 0.737], "without activity": [0.553, 0.53, 0.58]}
    record["steps"]["evaluate"] |= {
        "comparison": {"champion": "release-8", "num_users": 9},
        "returns": {"num_users": 5_000, "num_returned": 1_234, "auc": auc},
    }
    text = Page(draw(record, export_dir)).text
    for shown in (
        "events since release release-8",
        "all parts 0.71 0.69 to 0.74",
        "without activity 0.55",
        "1,234 of 5,000 users",
    ):
        assert shown in text, shown


def test_the_page_shows_the_figures(export_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run-7" / "report.html"
    write_report(RunRecord.model_validate(RECORD), export_dir, path)
    text = Page(path.read_text(encoding="utf-8")).text
    for shown in (
        "release-9", "Registered as champion, version 3", "hit@10 0.123, 2.4 × popularity", "For 12.3 % of 9,000 users",
        "54,321", "1,200,000", "from 1,234,567 lines", "20 days", "2026-11-01 to 2026-11-20", "1 min 44 s",
        "9,000 users fitted again",
        "Passed 1 rules; 1 not checked.", "Compared with release release-8", "≥ 80.0 %", "the spaces differ",
        "lines 1,200,000 97.2 % of 1,234,567: 30,000 static asset, 4,567 bad time",
        "812,000 tokens/s", "All 40 pages.", "Page Aa",
        "surf2vec-users version 3", "models:/surf2vec-users@champion", "/root/export/release-9", "320.0 MB", "all users fit",
    ):  # fmt: skip
        assert shown in text, shown
    assert "Time 2.50 s 2.97 s of training" in text
    assert draw(RECORD, export_dir) == path.read_text(encoding="utf-8")  # the same record is the same bytes
    assert path.stat().st_size < 3_000_000


def test_the_page_shows_what_a_smaller_release_loses() -> None:
    metrics = {
        "index_recall_at_10": 0.947, "export_explained_variance": 0.9312, "export_hit_at_10": 0.121,
        "export_hit_at_10_loss": 0.0021,
    }  # fmt: skip
    text = Page(draw(changed("export", dtype="int8", vector_size=64, metrics=metrics), None)).text
    found = "finds 94.7 % of the 10 nearest users · reduced to 64 dimensions, 93.1 % of the variance · stored as int8"
    assert f"{found} · hit@10 0.121, 0.0021 below that in full" in text


def test_the_page_loads_and_runs_nothing(export_dir: Path) -> None:
    html = draw(RECORD, export_dir)
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object", "embed", "img", "form", "base"}
    for _, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert (attrs.get(name) or "#").startswith(("#", "data:,"))
        assert not any(name.startswith("on") for name in attrs)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    policy = next(attrs for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    assert "default-src 'none'" in str(policy["content"])


def test_no_user_id_and_no_credential_is_shown(export_dir: Path) -> None:
    html = draw(RECORD, export_dir)
    assert "secret-user" not in html
    assert "hunter2" not in html
    assert "https://***@mlflow.example/" in html


def test_hostile_urls_are_text(tmp_path: Path) -> None:
    hostile = [
        "/<script>alert(1)</script>", '/"onmouseover="alert(2)', "https://x.example/%3Cimg%20src=x%20onerror=alert(3)%3E",
        "/</style></svg><b>out", "/%E2%80%AEgnp.exe", "/{{ 7 * 7 }}/{% raw %}", "/" + "very-long/" * 400 + "end",
        "/日本語/ページ", "/%FF%FE", "/a%00b", "/", "",
    ]  # fmt: skip
    html = draw(RECORD, write_items(tmp_path / "export", hostile))
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert all(not name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert "<script>alert(1)" in page.text
    assert "日本語" in page.text
    assert "\u202e" not in html
    assert "\x00" not in html
    assert len(html) < 100_000


@pytest.mark.parametrize(("num_items", "dim"), [(0, 8), (1, 1), (2, 2), (3, 8), (10, 2), (24, 1), (60, 8)])
def test_small_vocabularies(tmp_path: Path, num_items: int, dim: int) -> None:
    export_dir = write_items(tmp_path / "export", [f"https://site.example/page-{ix}" for ix in range(num_items)], dim)
    text = Page(draw(RECORD, export_dir)).text
    assert ("There are no item vectors" in text) == (num_items == 0)
    assert ("There are no two pages" in text) == (num_items <= 1)


def test_vectors_that_are_all_the_same_or_not_finite(tmp_path: Path) -> None:
    for name, X in {"same": np.ones((30, 4)), "zero": np.zeros((5, 4)), "nan": np.full((30, 4), np.nan)}.items():
        export_dir = write_vectors(tmp_path / name, [f"/p{ix}" for ix in range(len(X))], [3] * len(X), X)
        assert "There are no item vectors" in Page(draw(RECORD, export_dir)).text


@pytest.mark.parametrize("step", sorted(RECORD["steps"]))
def test_a_step_that_did_not_end(step: str) -> None:
    text = Page(draw(without(step), None)).text
    assert ("Exported, not registered" if step == "register" else f"Not finished: {step} did not end") in text
    assert ("The gate has not judged this run." in text) == (step == "gate")


def test_each_step_has_a_colour() -> None:
    page = render_report(RunRecord.model_validate(RECORD), None)
    for number in range(len(STEPS)):
        assert f".t{number} {{ --c: " in page


def test_a_release_that_was_held_says_so_and_why() -> None:
    row = {"rule": "newest day", "tonight": "50.0 %", "limit": "≥ 60.0 %"}
    row |= {"verdict": "held", "reason": "10.0 % past the limit"}
    record = changed("gate", passes=False, verdict="held", held_by=["newest_day_events"], table=[row])
    record["steps"]["register"]["alias"] = "challenger"
    html = draw(record, None)
    text, first_screen = Page(html).text, Page(html.partition("<main>")[0] + "</body></html>").text
    assert "Held by the gate; registered as challenger, version 3" in text
    assert "newest day: 50.0 %, limit ≥ 60.0 %, 10.0 % past the limit" in first_screen
    assert 'surf2vec promote 3 --override "WHY" --root /root' in first_screen
    assert "surf2vec run --logs 'LOGS' --root /root" in first_screen
    assert "Held by newest_day_events: the champion keeps serving." in text
    assert "held 10.0 % past the limit" in text
    record["steps"]["gate"]["overridden"] = "the shop was closed"
    text = Page(draw(record, None)).text
    assert "promoted by a person: the shop was closed" in text
    assert "Registered as challenger" in text


def test_control_characters_are_shown_as_escapes(tmp_path: Path) -> None:
    odd = "\x1b[31mred\x07\u202e"
    record = changed("gate", overridden=odd, held_by=["users"], passes=False)
    record["command"] = f"surf2vec {odd}"
    html = draw(record, write_items(tmp_path, [f"/{odd}{ix}" for ix in range(40)]))
    assert not any(char in html for char in "\x1b\x07\u202e")
    assert html.count(r"\x1b[31mred\x07\u202e") > 80


def test_a_run_that_only_began() -> None:
    text = Page(draw({"run_id": "r-1", "steps": {}}, None)).text
    assert "Not finished: ingest did not end" in text
    assert "Run the same command again to resume it." in text


def test_steps_that_recorded_almost_nothing() -> None:
    record = {"run_id": "r", "steps": {step: {"digest": "d", "seconds": 0.0} for step in RECORD["steps"]}}
    assert "Quality not measured" in Page(draw(record, None)).text


@pytest.mark.parametrize(
    ("hit", "popular", "num_users", "tone", "said"),
    [
        (0.3, 0.1, 1000, "good", "3.0 × popularity"),
        (0.05, 0.1, 1000, "bad", "0.5 × popularity"),
        (0.11, 0.1, 100, "warn", "within the error of measurement"),
        (0.2, 0.0, 1000, "good", "where popularity finds none"),
        (0.0, 0.0, 10, "warn", "within the error of measurement"),
    ],
)
def test_the_verdict_weighs_the_difference(hit: float, popular: float, num_users: int, tone: str, said: str) -> None:
    metrics = RECORD["steps"]["evaluate"]["metrics"] | {"hit_at_10": hit, "popularity_hit_at_10": popular}
    page = Page(draw(changed("evaluate", metrics=metrics, num_users=num_users), None))
    assert said in page.text
    assert ("p", {"class": f"lead {tone}"}) in page.tags


@pytest.mark.parametrize(
    "curve",
    [
        [],
        [{"epoch": 0.0, "seconds": 0.0, "tokens_per_second": 0.0, "loss": 4.0, "heldout_loss": None, "alpha": 0.05}],
        [{"epoch": 1.0, "loss": 4.0}],
        [{"epoch": 1.0, "seconds": 2.0, "tokens_per_second": None, "loss": None, "heldout_loss": None}],
        [{"epoch": ix, "seconds": 3600.0 * ix, "tokens_per_second": 1e9, "loss": 2.0} for ix in range(5)],
        [{"epoch": ix / 1000, "seconds": ix, "tokens_per_second": 5.0, "loss": -ix} for ix in range(5000)],
    ],
)
def test_curves_of_every_length(curve: list[dict[str, Any]]) -> None:
    html = draw(changed("train", curve=curve), None)
    Page(html)
    assert "nan" not in "".join(re.findall(r' points="[^"]*"', html))
    assert len(html) < 200_000


def test_a_log_without_dates_and_a_window_of_one_day() -> None:
    assert "All events" in Page(draw(changed("corpus", since=None, until=None), None)).text
    text = Page(draw(changed("corpus", since="2026-11-20", until="2026-11-20"), None)).text
    assert "1 day 2026-11-20" in text


def test_more_events_in_the_window_than_this_run_ingested() -> None:
    record = changed("ingest", lines=10, events=9, left_out={}, rejected={})
    text = Page(draw(record, None)).text
    assert "from 10 lines" in text
    assert "events 1,150,000 95.8 % of 1,200,000: bots" in text


def test_a_real_log_reads_well(data_dir: Path, tmp_path: Path) -> None:
    visits = pq.read_table(data_dir / "wikispeedia_unfinished.parquet", columns=["url"])["url"].to_pylist()
    urls = [url for url, _ in Counter(visits).most_common(300)]
    page = Page(draw(RECORD, write_items(tmp_path / "export", urls)))
    assert "United States" in page.text
    assert "All 300 pages." in page.text
