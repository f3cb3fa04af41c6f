"""Nights on the real thing: PostgreSQL, a Prefect server and its worker, an MLflow server, S3; killed, cut off, told of, and
started from Prefect's page as a person starts them.

With $SURF2VEC_SCREENSHOTS naming a folder, the pictures of docs/ are made there. One file, since all servers start for it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prefect import flow
from prefect.client.schemas.objects import FlowRun

from surf2vec.flows.report import PrefectReporter
from surf2vec.infra.stack import Stack
from surf2vec.tasks.night.reporter import GATE_HELD
from tests.flows.test_nightly import write_logs
from tests.infra.browser import PROGRAM, Browser, field, saying
from tests.infra.listener import SECRET_PATH, Listener
from tests.infra.nights import Nights, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Prefect's and MLflow's own


@pytest.mark.parametrize(
    ("server", "path", "status"),
    [
        ("mlflow", "/", 403),
        ("mlflow", "/api/2.0/mlflow/experiments/search", 403),
        ("prefect", "/api/flows/filter", 401),
    ],
)
def test_a_page_of_somebody_else_that_leads_here_learns_nothing(
    stack: Stack, server: str, path: str, status: int
) -> None:
    """DNS rebinding: MLflow refuses the name; Prefect takes any, but a browser has no password for this one."""
    address = f"http://127.0.0.1:{stack.ports[server]}{path}"
    assert httpx.post(address, headers={"Host": "evil.example"}, json={}).status_code == status


@pytest.fixture(scope="module")
def wikispeedia(data_dir: Path) -> Path:
    return data_dir / "wikispeedia_unfinished.parquet"


@pytest.fixture(scope="module")
def abandoned(nights: Nights, wikispeedia: Path, tmp_path_factory: pytest.TempPathFactory) -> FlowRun:
    """A night whose worker and process were killed together, as when a machine dies; then there is a worker again."""
    run = nights.start_night(tmp_path_factory.mktemp("abandoned"), wikispeedia, epochs=10_000)
    nights.wait_for_step(run, "train", "Running")
    worker = nights.stack.services["worker"]
    assert worker.process
    processes = nights.find_processes(run)
    assert processes
    worker.process.kill()
    for process in processes:
        process.kill()
    worker.stop()
    nights.restart("worker")
    return run


@pytest.fixture(scope="module")
def queued(nights: Nights, abandoned: FlowRun, tmp_path_factory: pytest.TempPathFactory) -> FlowRun:
    """The next night, which finds no logs; it has to wait, as the server still takes the abandoned one for running."""
    assert nights.state(abandoned) == "Running"
    run = nights.start_night(tmp_path_factory.mktemp("queued"), Path("/nowhere/*.csv"))
    nights.wait_for_state(run, "AwaitingConcurrencySlot")
    return run


@pytest.fixture(scope="module")
def never_started(nights: Nights) -> FlowRun:
    """A run that is due and that no worker takes."""
    return nights.start("watch/watch", queue=nights.make_idle_queue())


@pytest.mark.long
@pytest.mark.usefixtures("queued", "never_started")
def test_a_night_that_was_killed_goes_on_even_while_mlflow_is_away(
    nights: Nights, listener: Listener, wikispeedia: Path, tmp_path: Path
) -> None:
    """kill -9 after its first commit: the retry goes on from there. MLflow dies meanwhile: what was made arrives later."""
    run = nights.start_night(tmp_path / "root", wikispeedia, "retrain", epochs=60, commit_seconds=1)
    manifest = tmp_path / "root" / "store" / "MANIFEST.json"
    wait_until(manifest.exists, 120, lambda: f"no commit: {nights.worker_log()}")
    nights.kill(run)
    nights.wait_for_state(run, "Crashed")
    assert "is Crashed" in listener.wait_for("run_failed", nights.name_of(run))["text"]
    wait_until(lambda: not nights.find_processes(run), 60, lambda: "the worker still looks after the run that crashed")

    nights.retry(run)
    wait_until(
        lambda: len(nights.step_states(run, "train")) == 2, 120, lambda: f"it does not go on: {nights.worker_log()}"
    )
    mlflow = nights.stack.services["mlflow"]
    assert mlflow.process
    mlflow.process.kill()
    mlflow.stop()
    nights.wait_for_step(run, "gate", "AwaitingRetry")  # which asks for the champion
    assert [nights.step_state(run, step) for step in ("train", "evaluate", "export")] == ["Completed"] * 3
    nights.restart("mlflow")
    nights.wait_for_state(run, "Completed")
    artifacts = nights.artifacts(run)
    assert "resumed" in str(artifacts["training"].description)

    record = json.loads(next((tmp_path / "root" / "runs").glob("*/run.json")).read_text())
    registered = record["steps"]["register"]
    loaded = load_version(nights.stack, tmp_path, registered["model_version"])
    assert loaded["aliases"] == ["challenger", "champion"]
    assert loaded["version"] == str(registered["model_version"])
    assert str(loaded["location"]).startswith("mlflow-artifacts:/")
    assert loaded["metrics"]["quality/hit_at_10"] == round(record["steps"]["evaluate"]["metrics"]["hit_at_10"], 4)
    assert loaded["curve_points"] > 10
    assert {"manifest.json", "run.json", "report.html"} <= set(loaded["files"])
    assert loaded["vector_numbers"] == 16
    text = str(artifacts["night"].data)
    page = f"{nights.stack.client_environment['MLFLOW_TRACKING_URI']}/#/experiments/"
    assert f"]({page}" in text
    assert f"/runs/{registered['mlflow_run_id']}/artifacts/report.html?workflowType=machine_learning)" in text


@pytest.mark.long
def test_a_night_outlasts_s3(nights: Nights, wikispeedia: Path, tmp_path: Path) -> None:
    """MLflow answers and S3 behind it does not: all is made, and arrives when there is S3 again."""
    s3 = nights.stack.services["s3"]
    assert s3.process
    s3.process.kill()
    s3.stop()
    try:
        run = nights.start_night(tmp_path / "root", wikispeedia, "retrain")
        # MLflow and its S3 client try again and again.
        nights.wait_for_step(run, "register", "AwaitingRetry", seconds=400)
        steps = ("ingest", "corpus", "train", "evaluate", "export", "gate")
        assert [nights.step_state(run, step) for step in steps] == ["Completed"] * len(steps)
    finally:
        nights.restart("s3")  # the other tests of the stack need it, too
    nights.wait_for_state(run, "Completed")
    record = json.loads(next((tmp_path / "root" / "runs").glob("*/run.json")).read_text())
    loaded = load_version(nights.stack, tmp_path, record["steps"]["register"]["model_version"])
    assert {"manifest.json", "run.json", "report.html"} <= set(loaded["files"])
    assert loaded["vector_numbers"] == 16


def load_version(stack: Stack, folder: Path, number: int) -> dict[str, Any]:
    """A version as a process sees it that has only the registry's address and its password."""
    code = """
import json, sys, mlflow, pandas as pd
client = mlflow.MlflowClient()
version = client.get_model_version("surf2vec-users", sys.argv[2])
model = mlflow.pyfunc.load_model(f"models:/surf2vec-users/{sys.argv[2]}")
user = sys.argv[1]
run = client.get_run(version.run_id)
print(json.dumps({
    "version": version.version, "aliases": sorted(version.aliases),
    "location": client.get_logged_model(version.source.split("/")[-1]).artifact_location,
    "metrics": run.data.metrics, "curve_points": len(client.get_metric_history(version.run_id, "train/loss")),
    "files": [file.path for file in client.list_artifacts(version.run_id)],
    "vector_numbers": len(model.predict(pd.DataFrame({"user_id": [user]}))["vector"][0]),
}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "0103123e56070099", str(number)], env=os.environ | stack.client_environment, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_runs_that_died_or_did_not_start_are_told_and_none_is_lost(
    nights: Nights, listener: Listener, abandoned: FlowRun, queued: FlowRun, never_started: FlowRun
) -> None:
    nights.wait_for_state(abandoned, "Crashed")
    assert "is Crashed" in listener.wait_for("run_failed", nights.name_of(abandoned))["text"]
    nights.wait_for_state(queued, "Failed")
    message = listener.wait_for("run_failed", nights.name_of(queued))
    assert str(queued.id) in message["link"]
    assert "nowhere" not in json.dumps(message)
    assert never_started.name in listener.wait_for("not_started", never_started.name)["text"]


def test_an_old_champion_and_a_held_night_are_told(nights: Nights, listener: Listener, tmp_path: Path) -> None:
    """The watch asks the registry; the version is made old there."""
    log = write_logs(tmp_path / "log.csv")
    nights.wait_for_state(nights.start_night(tmp_path / "root", log, "retrain"), "Completed", seconds=400)
    make_versions_old(nights.stack, days=10)
    config = {"publish": {"tracking_uri": nights.stack.client_environment["MLFLOW_TRACKING_URI"]}}
    watched = nights.start("watch/watch", root=str(tmp_path), config=config)
    nights.wait_for_state(watched, "Completed")
    assert "is 10.0 days old" in listener.wait_for("champion_old", "serves and")["text"]

    @flow
    def hold() -> None:
        PrefectReporter().raise_alarm(GATE_HELD, "0badf00d", held_by="hit_at_10, drift")

    hold()
    assert listener.wait_for("gate_held", "0badf00d")["text"].endswith("was held back by hit_at_10, drift")


def make_versions_old(stack: Stack, days: int) -> None:
    import psycopg2

    address = f"dbname=mlflow host=127.0.0.1 port={stack.ports['postgres']} user=surf2vec"
    with psycopg2.connect(address, password=stack.passwords["postgres"]) as connection, connection.cursor() as cursor:
        cursor.execute("update model_versions set creation_time = creation_time - %s", [days * 86_400_000])
    connection.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SURF2VEC_SCREENSHOTS", tmp_path / "pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def log_in(page: Browser, address: str, password: str) -> None:
    page.open(f"{address}/login")
    page.fill("document.querySelector('input[type=password]')", password)
    page.click(saying("Login"))
    page.wait_for("!document.querySelector('input[type=password]')")


@pytest.mark.skipif(PROGRAM is None, reason="no chromium: on Debian, apt-get install chromium")
def test_a_night_is_started_from_the_form(nights: Nights, data_dir: Path, pictures: Path, tmp_path: Path) -> None:
    """The deployment and its form, a refusal, the run on real logs, and what it leaves to read."""
    with nights.client as client:
        deployment = client.read_deployment_by_name("nightly/nightly").id
    address = nights.stack.client_environment["PREFECT_API_URL"].removesuffix("/api")
    with Browser(tmp_path / "chromium") as page:
        log_in(page, address, nights.stack.client_environment["PREFECT_API_AUTH_STRING"])
        page.open(f"{address}/deployments/deployment/{deployment}")
        page.wait_for_text("Schedules")
        page.screenshot(pictures / "deployment.png")
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
        page.wait_for(f"!!{saying('Completed')}", seconds=400)  # a kernel may have to be compiled, beside other tests
        page.open(f"{address}/runs/flow-run/{run.id}")  # drawn anew, of the whole run
        page.wait_for(r"/\d+ Task runs/.test(document.body?.innerText)")
        page.screenshot(pictures / "run.png")
        artifacts = nights.artifacts(run)
        page.open(f"{address}/artifacts/artifact/{artifacts['training'].id}")
        page.wait_for_text("of the process at most")
        page.screenshot(pictures / "training.png")
        page.open(f"{address}/artifacts/artifact/{artifacts['night'].id}")
        page.wait_for_text("The run in MLflow")
        page.screenshot(pictures / "night.png")
    record = json.loads(next((tmp_path / "root" / "runs").glob("*/run.json")).read_text())
    assert (record["config"]["train"]["epochs"], record["config"]["train"]["vector_size"]) == (3, 16)
    assert record["steps"]["export"]["num_users"] > 0


def test_no_password_is_where_it_does_not_belong(nights: Nights, listener: Listener) -> None:
    """Not in logs, parameters, artifacts, metrics and tags, on S3, in the roots, or on a command line; nor the webhook."""
    stack = nights.stack
    secrets = stack.passwords | {"webhook": SECRET_PATH}
    places = read_everything(stack) | {"messages": json.dumps(listener.messages)}
    assert min(len(places[name]) for name in ("s3", "prefect", "mlflow", "commands", "messages")) > 100
    found = [
        f"{name} in {place}: {text[max(at - 200, 0) : at]}"
        for place, text in places.items()
        for name, secret in secrets.items()
        if (at := text.find(secret)) >= 0
    ]
    assert found == []


def read_everything(stack: Stack) -> dict[str, str]:
    """What people and other processes may read, by place."""
    import boto3

    s3 = boto3.client(
        "s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"], region_name="us-east-1",
        aws_access_key_id="any", aws_secret_access_key="any",
    )  # fmt: skip
    names = [one["Key"] for one in s3.list_objects_v2(Bucket="surf2vec")["Contents"]]
    objects = {name: s3.get_object(Bucket="surf2vec", Key=name)["Body"].read() for name in names}
    readable = [body.decode("latin-1") for body in objects.values()]
    dumps = [dump_database(stack, name) for name in ("prefect", "mlflow")]
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return {path.name: path.read_text(errors="replace") for path in (stack.folder / "logs").iterdir()} | {
        "s3": "\n".join(readable),
        "prefect": dumps[0],
        "mlflow": dumps[1],
        "commands": "\n".join(commands),
    }


def dump_database(stack: Stack, name: str) -> str:
    """All that a server has in its database: flow runs, parameters, logs, artifacts, events; runs, params, tags."""
    return subprocess.run(
        [stack.binaries / "pg_dump", "-h", "127.0.0.1", "-p", str(stack.ports["postgres"]), "-U", "surf2vec", "-d", name],
        env=os.environ | {"PGPASSWORD": stack.passwords["postgres"]}, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
