"""Pages on a phone, a tablet and a desk: not wider than the window, no column of single letters, nothing overprinted."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.report.nights import write_nights_report
from surf2vec.tasks.report.report import write_report
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.run import Root
from tests.flows.test_backfill import night
from tests.infra.browser import PROGRAM, Browser
from tests.tasks.gate.test_figures import compare_with, judge, make_release
from tests.tasks.report.test_measured import LATE, LOAD
from tests.tasks.report.test_report import RECORD, write_items

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium (apt-get install chromium)")
CELLS = """
[...document.querySelectorAll('td, th')].filter(cell => cell.innerText.trim()).map(cell => {
  const text = document.createRange(); text.selectNodeContents(cell);
  const inner = text.getBoundingClientRect(), outer = cell.getBoundingClientRect();
  return {says: cell.innerText, lines: inner.height / parseFloat(getComputedStyle(cell).lineHeight),
          over: Math.max(inner.right - outer.right, outer.left - inner.left)};
})
"""
ADDRESS = "https://shop.example/" + "a-long-name-of-a-page-without-any-space/" * 3


def draw_night(folder: Path, gate: Callable[[Root], dict[str, Any]], **changes: Any) -> Path:
    """The report of a night with this verdict of the gate."""
    record = copy.deepcopy(RECORD) | changes
    record["steps"]["gate"] |= gate(Root(folder / "root"))
    assert record["steps"]["gate"]["verdict"] == gate.__name__
    record["steps"]["train"]["workers"] = [LOAD, LATE]
    record["steps"]["export"]["export_dir"] = str(folder / "export")
    pages = [f"{ADDRESS}{ix}.html" for ix in range(40)]
    write_report(RunRecord.model_validate(record), write_items(folder / "export", pages), folder / "report.html")
    return folder / "report.html"


def first(root: Root) -> dict[str, Any]:
    return judge(make_release(root, "tonight"), champion=None, days={})


def passed(root: Root) -> dict[str, Any]:
    make_release(root, "before")
    ranks = [1.0] * 300 + [30.0] * 300
    return judge(make_release(root, "tonight", evaluate=compare_with(root, ranks, [*ranks[1:], 1.0])))


def held(root: Root) -> dict[str, Any]:
    make_release(root, "before", settle={"kind": "full"})
    worse = compare_with(root, [50.0] * 400 + [1.0] * 200, [1.0] * 400 + [30.0] * 200)
    run = make_release(root, "tonight", evaluate=worse, settle={"kind": "incremental"}, export={"num_users": 100})
    return judge(run, kept=1, newest_day_events=3)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("pages")
    base = {"base": {"release": "fcd8d2e215fa", "window_id": "w", "space_id": "s"}}
    found = {
        "first": draw_night(made / "first", first),
        "passed": draw_night(made / "passed", passed, **base),
        "held": draw_night(made / "held", held, **base),
        "nights": made / "nights.html",
    }
    names = ["gate_cosine_p1", "gate_cosine_median"]
    big = {"events": 12_345_678, "users": 1_234_567, "items": 123_456, "metrics": dict.fromkeys(names, 0.99)}
    rules = ["hit_at_10", "mrr_at_20", "newest_day_events"]
    write_nights_report(
        [
            night("2026-01-01"),
            {"day": "2026-01-02", "events": 0, "skipped": "no user has the 5 events of ingest.min_user_events " * 3},
            night("2026-01-03", alias="challenger", gate={"held_by": rules}, **big),
        ],
        found["nights"],
    )
    return found


@pytest.fixture(scope="module", params=[390, 768, 1280])
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        size = {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        yield browser


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first", "passed", "held", "nights"])
def test_a_page_fits_its_window(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name].as_uri())
    browser.wait_for(f"document.readyState == 'complete' && location.href == {pages[name].as_uri()!r}")
    browser.ask("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert browser.ask("document.documentElement.scrollWidth") <= browser.ask("innerWidth")
    scrolled = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert browser.ask("innerWidth") < 1280 or not browser.ask(scrolled)
    cells = browser.ask(CELLS)
    assert len(cells) > 20
    assert [(cell["says"], cell["lines"]) for cell in cells if cell["lines"] > 3.05] == []
    assert [(cell["says"], cell["over"]) for cell in cells if cell["over"] > 1] == []
