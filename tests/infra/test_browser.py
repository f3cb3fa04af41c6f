"""A night from Prefect's page, as a person starts it: the form, a refusal, the run on real logs, and what it leaves to read.

With $SURF2VEC_SCREENSHOTS naming a folder, the pictures of docs/ are made there.
"""

import json
import os
from pathlib import Path

import pytest

from tests.infra.browser import PROGRAM, Browser
from tests.infra.nights import Nights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # Prefect's own
    pytest.mark.skipif(PROGRAM is None, reason="no chromium: on Debian, apt-get install chromium"),
]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SURF2VEC_SCREENSHOTS", tmp_path / "pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_night_is_started_from_the_form(nights: Nights, data_dir: Path, pictures: Path, tmp_path: Path) -> None:
    with nights.client as client:
        deployment = client.read_deployment_by_name("nightly/nightly").id
    address = nights.stack.client_environment["PREFECT_API_URL"].removesuffix("/api")
    with Browser(tmp_path / "chromium") as page:
        page.open(f"{address}/login")
        page.fill(
            "document.querySelector('input[type=password]')", nights.stack.client_environment["PREFECT_API_AUTH_STRING"]
        )
        page.click(saying("Login"))
        page.wait_for("!document.querySelector('input[type=password]')")

        page.open(f"{address}/deployments/deployment/{deployment}/run")
        page.wait_for_text("Passes over all tokens.")  # a description
        assert page.ask(f"{field('Vector size')}.value") == "128"  # a default
        page.fill(field("root"), str(tmp_path / "root"))
        page.fill(field("logs"), str(data_dir / "wikispeedia_unfinished.parquet"))
        page.fill(field("Vector size"), "16")
        page.fill(field("Epochs"), "0")
        page.screenshot(pictures / "form.png")
        page.click(saying("Submit"))
        page.wait_for_text(
            "Validation failed for field 'config.train.epochs'. Failure reason: 0 is less than the minimum of 1"
        )
        page.screenshot(pictures / "refused.png")
        page.click(saying("Close"))
        page.wait_for("!document.body.innerText.includes('Validation failed')")

        page.fill(field("Epochs"), "3")
        page.click(saying("Submit"))
        page.wait_for("!location.pathname.endsWith('/run')")
        run = nights.newest(deployment)
        page.open(f"{address}/runs/flow-run/{run.id}")
        page.wait_for(f"!!{saying('Completed')}", seconds=150)
        page.open(f"{address}/runs/flow-run/{run.id}")  # drawn anew, of the whole run
        page.wait_for(r"/\d+ Task runs/.test(document.body?.innerText)")
        page.screenshot(pictures / "run.png")
        artifacts = nights.artifacts(run)
        page.open(f"{address}/artifacts/artifact/{artifacts['training'].id}")
        page.wait_for_text("of the process at most")
        page.screenshot(pictures / "training.png")
        page.open(f"{address}/artifacts/artifact/{artifacts['report'].id}")
        page.wait_for_text("The run in MLflow")
    story = json.loads(next((tmp_path / "root" / "runs").glob("*/run.json")).read_text())
    assert (story["config"]["train"]["epochs"], story["config"]["train"]["vector_size"]) == (3, 16)
    assert story["steps"]["export"]["num_users"] > 0


def saying(text: str) -> str:
    """The innermost element that says this and nothing else."""
    return f"[...document.querySelectorAll('*')].filter(e => e.innerText?.trim() == {json.dumps(text)}).pop()"


def field(title: str) -> str:
    """The input of the form's field with this title."""
    names = json.dumps([title, f"{title} (Optional)"])
    return (
        "(() => { const has = e => e.querySelector('input, textarea');"
        f" let e = [...document.querySelectorAll('*')].filter(e => {names}.includes(e.innerText?.trim()) && !has(e)).pop();"
        " while (e && !has(e)) e = e.parentElement; return e && has(e) })()"
    )
