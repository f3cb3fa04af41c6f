"""MLflow's pages of a release at three widths: each shows what a person looks for first, in words and round numbers.

With $SURF2VEC_SCREENSHOTS naming a folder, pictures of them are made there.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.services import Service, find_port, responds
from infra.stack import QUIET
from tasks.root.run import Root
from tests.infra.browser import PROGRAM, Browser
from tests.nights import FIRST, HELD, make_night

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="no chromium (apt-get install chromium)")]
RULES = [
    {"rule": "users, in % of the champion's", "tonight": "61.5 %", "limit": ">= 80.0 %", "verdict": "held back"},
    {"rule": "vectors longer than 5 times the median", "tonight": "0.00 %", "limit": "<= 1.00 %", "verdict": "passed"},
]
HELD_BY = "Held back by newest_day_events, users: the champion keeps serving."
PAGES = {
    "experiment": ["Model training", "2015-05-18 · full · r2", "2015-05-18 · full · r1"],
    "run": [HELD_BY, "hit@10 0.250, popularity 0.125", "quality/hit_at_10", "gate/", "train/loss", "cost/seconds"],
    "model": ["Who may use it", 'load_model("models:/surf2vec-users@champion")', "Not in it", "@ champion"],
    "version": [
        HELD_BY,
        "Window 2015-05-17 to 2015-05-18",
        "Privacy",
        "users, in % of the champion's",
        ">= 80.0 %",
        "passed",
    ],
}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of each page, on a server that has a release that serves and one that was held."""
    folder = tmp_path_factory.mktemp("pages")
    root, port = Root(folder / "root"), find_port(None)
    make_night(root, "r1", FIRST)
    run_id = make_night(root, "r2", HELD | {"table": RULES})["mlflow_run_id"]
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", root.tracking_uri,
    ]  # fmt: skip
    server = Service("mlflow", command, folder / "server.log", lambda: responds(f"{url}/health"), QUIET)
    server.start()
    try:
        server.wait()
        places = {
            "experiment": "experiments/1", "run": f"experiments/1/runs/{run_id}",
            "model": "models/surf2vec-users", "version": "models/surf2vec-users/versions/2",
        }  # fmt: skip
        yield {name: f"{url}/#/{place}?workflowType=machine_learning" for name, place in places.items()}
    finally:
        server.stop()


@pytest.fixture(scope="module", params=[390, 768, 1280])
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        size = {"width": request.param, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        yield browser


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_a_person_looks_for(
    browser: Browser, addresses: dict[str, str], tmp_path: Path, name: str
) -> None:
    browser.open(addresses[name])
    browser.wait_for(f"location.href.startsWith({addresses[name].partition('?')[0]!r})")
    for words in PAGES[name]:
        browser.wait_for_text(words, seconds=120)
    text = browser.text()
    assert re.findall(r"\d\.\d{6,}", text) == []  # raw numbers
    assert re.findall(r"\\[<>|_]", text) == []  # marks of Markdown
    pictures = Path(os.environ.get("SURF2VEC_SCREENSHOTS", tmp_path))
    pictures.mkdir(parents=True, exist_ok=True)
    browser.screenshot(pictures / f"mlflow-{name}-{browser.ask('innerWidth')}.png")
