"""MLflow's pages of the demo's three nights at three widths: each shows what a person looks for, in words and round numbers.

The third night was held back. With $SURF2VEC_SCREENSHOTS naming a folder, the pictures of docs/ are made there.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surf2vec.tasks.registry.mlflow_runs import VIEW
from surf2vec.tasks.root.run import Root, read_run_records
from tests.infra.browser import PROGRAM, Browser
from tests.servers.mlflow import serve_mlflow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium: on Debian, apt-get install chromium"),
]
RELEASE = "[0-9a-f]{12}"
PAGES = {  # what each must say, as regular expressions
    "experiment": [
        r"2026-01-14 · incremental · [0-9a-f]{6}", r"2026-01-12 · full · [0-9a-f]{6}", "3 matching runs",
    ],
    "run": [
        r"2026-01-14 · incremental · [0-9a-f]{6}", r"Users [\d,]+, [\d,]+ changed since [0-9a-f]{12}",
        r"hit@10 0\.\d{3}, popularity 0\.\d{3}", r"Gate Held by newest_day_events: the champion keeps serving\.",
        r"Version 3 of surf2vec-users, registered as challenger",
        r"Metrics \((2\d|30)\)", r"quality/hit_at_10\s+0\.\d{1,4}\n",
    ],
    "model": [
        "Who may use it", r'load_model\("models:/surf2vec-users@champion"\)', "hit@10 is the share of users", "Not in it",
        "Whom to ask", r"@\schampion", r"@\schallenger",
    ],
    "version": [
        rf"Release {RELEASE}: a vector of 156 dimensions for each of [\d,]+ users", r"hit@10 0\.\d{3}, popularity 0\.\d{3}",
        "Window 14 days, 2026-01-01 to 2026-01-14", rf"Origin run {RELEASE}, corpus .*, after release {RELEASE}",
        rf"Space {RELEASE}", "Privacy noise 0, trails exact, activity exact; pages of fewer than 3 people are left out",
        r"events of the newest day, in\s%\sof the usual\s+[\d.]+\s%\s+≥\s60\.0\s%\s+held: [\d.]+\s% past the limit",
        r"gate\s+held\s", r"window_until\s+2026-01-14\s", r"Inputs \(3\)", r"Outputs \(7\)",
    ],
}  # fmt: skip
OURS = "[...document.querySelectorAll('.note-editor-preview-content')]"  # descriptions
MENU = "document.querySelector('[aria-label=\"Toggle sidebar\"]')"
ASSISTANT = "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1"  # opens by itself on a browser's first page only


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of each page, on a server with the demo's registry."""
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "surf2vec.flows.demo", "--root", str(folder), "--users", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    root = Root(folder / "root")
    newest = max(read_run_records(root), key=lambda record: record.created_at).steps.registered
    assert newest
    with serve_mlflow(folder, root.tracking_uri) as server:
        places = (
            {"": "/health", "experiment": "/#/experiments/1"}
            | {"run": f"/#/experiments/1/runs/{newest.mlflow_run_id}", "model": "/#/models/surf2vec-users"}
            | {"version": "/#/models/surf2vec-users/versions/3"}
        )
        yield {name: f"{server.name}{place}{VIEW if name else ''}" for name, place in places.items()}


@pytest.fixture(scope="module", params=[390, 768, 1280])
def browser(
    request: pytest.FixtureRequest, addresses: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """With MLflow's assistant closed, and below 1000 pixels its menu, too: they leave no room for the page."""
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        size = {"width": request.param, "height": 1250, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.open(addresses[""])
        browser.wait_for("location.pathname == '/health'")
        browser.ask(f"localStorage.setItem('{ASSISTANT}', 'true')")
        browser.open(addresses["model"])
        if request.param < 1000:
            browser.click(MENU)
        yield browser


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SURF2VEC_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_a_person_looks_for(
    browser: Browser, addresses: dict[str, str], pictures: Path, name: str
) -> None:
    browser.open(addresses[name])
    browser.wait_for(f"location.href.startsWith({addresses[name].partition('?')[0]!r})")
    for words in PAGES[name]:
        browser.wait_for(f"new RegExp({words!r}).test(document.body?.innerText ?? '')", seconds=120)
    described = browser.ask(f"{OURS}.map(e => e.innerText).join('\\n')")
    assert bool(described) == (name != "experiment")
    assert re.findall(r"\*\*|```|&[lg]t;|\\[<>|_]|</?\w+>", described) == []  # marks of Markdown and HTML
    assert re.findall(r"\d\.\d{5,}", described) == []  # raw numbers
    width = browser.ask("innerWidth")
    assert width < 1000 or "Show more" not in browser.text()  # nothing is folded
    code = f"{OURS}.flatMap(e => [...e.querySelectorAll('pre')])"
    for boxes in [OURS] + [code] * (width >= 768):  # on a phone code scrolls in its own box
        assert browser.ask(f"{boxes}.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)") == []
    browser.screenshot(pictures / f"mlflow-{name}{'' if width == 1280 else f'-{width}'}.png")
