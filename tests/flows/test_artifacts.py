"""What a person finds in Prefect after a night: the flow, its steps, and artifacts that can be read."""

import inspect
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.night import night
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.errors import UnavailableError
from tests.flows.test_cli import call
from tests.flows.test_nightly import write_logs

pytestmark = pytest.mark.filterwarnings("default")  # Prefect's and MLflow's own


@pytest.mark.slow
@pytest.mark.usefixtures("_prefect")
def test_a_command_where_a_server_is_named_leaves_artifacts_and_finished_steps(tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client

    logs = write_logs(tmp_path / "logs" / "day.csv")
    settings = ["--set", "train.epochs=3", "--set", "train.vector_size=8", "--set", "train.threads=1"]
    done = call("run", "--root", str(tmp_path / "root"), "--logs", str(logs), "--json", *settings)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    with get_client(sync_client=True) as client:
        artifacts = {str(one.key).removeprefix("surf2vec-users-"): one for one in client.read_artifacts()}
        tasks = {run.name.rsplit("-", 1)[0]: run for run in client.read_task_runs()}
        [flow_run] = client.read_flow_runs()
    assert {"funnel", "training", "quality", "gate", "night"} <= set(artifacts)
    assert flow_run.name == f"2026-01-02 · full · {result['run_id'][:6]}"
    told = str(artifacts["night"].data)
    assert told.startswith(f"# {flow_run.name}")
    for words in (
        "**Users** ",
        "**hit@10** ",
        "**Gate** The first release serves",
        "**Time** ",
        "champion",
        "report.html",
    ):
        assert words in told
    assert "planned" in str(artifacts["training"].data)
    assert "resumed" not in str(artifacts["training"].description)
    assert "hit_at_10" in str(artifacts["quality"].data)
    assert "The first release serves" in str(artifacts["gate"].description)
    assert {"ingest", "corpus", "train", "evaluate", "refit", "settle", "export", "gate", "register", "report"} <= set(
        tasks
    )
    assert all(run.state and run.state.is_completed() for run in tasks.values())
    assert flow_run.parameters["config"]["train"]["vector_size"] == 8
    assert not any("user-" in str(artifact.data) for artifact in artifacts.values())
    assert result["alias"] == "champion"
    open_to_others = [path.name for path in (tmp_path / "root").rglob("*") if path.stat().st_mode & 0o077]
    # Our code, which MLflow copies with its mode.
    assert set(open_to_others) == {"user_vectors_model.py", "release_reader.py", "trail_sums.py", "url_rules.py"}


@pytest.mark.slow
@pytest.mark.usefixtures("_prefect")
def test_a_line_is_printed_as_it_is_whatever_brackets_are_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    from prefect import flow

    from surf2vec.flows.report import PrefectReporter

    message = "lost touch ([/builds/gloo/pair.cc:537] closed by peer [127.0.0.1]:43763, [bold]x) :cow: "

    @flow
    def tell() -> None:
        with PrefectReporter().step("train") as on_event:
            on_event("log", {"message": f"{message}\x1b[31m\x07\u202e"})

    tell()
    assert rf"{message}\x1b[31m\x07\u202e" in capsys.readouterr().err


def test_the_tasks_are_the_steps_of_the_night_in_order_and_those_that_need_a_server_are_retried() -> None:
    from surf2vec.flows.nightly import TASKS

    source = inspect.getsource(night.make_night)
    order = re.findall(r"call\(steps\.(\w+)", source[source.index("steps.find_unchanged_base") :])
    before = re.findall(r"call\(steps\.(\w+)", source[: source.index("steps.find_unchanged_base")])
    assert [one.fn.__name__ for one in TASKS] == before + order[1:]
    for one in TASKS:
        assert one.retries == (6 if hasattr(one.fn, "needs_server") else 0), one.name


@pytest.mark.slow
@pytest.mark.usefixtures("_prefect")
def test_in_a_flow_a_step_is_a_task_that_prefect_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect import flow, task
    from prefect.context import TaskRunContext

    from surf2vec.flows import nightly as flows_nightly
    from surf2vec.flows.nightly import RETRIES, call_task

    retried: list[int] = []

    def register() -> int:
        context = TaskRunContext.get()
        assert context
        retried.append(context.task.retries)
        if len(retried) < 3:
            raise UnavailableError("MLflow did not respond")
        return 42

    @flow
    def one_step() -> int:
        return call_task(register)

    retries = RETRIES | {"retry_delay_seconds": 0}
    monkeypatch.setattr(flows_nightly, "TASKS", [task(name="register", **retries)(register)])
    assert one_step() == 42
    assert retried == [6, 6, 6]


@pytest.mark.slow
@pytest.mark.usefixtures("_prefect")
@pytest.mark.filterwarnings("error:Artifact creation outside:FutureWarning")
def test_a_prefect_server_that_is_away_ends_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training reports from a thread of its own, which has no context of the run."""
    from prefect import flow
    from prefect.artifacts import create_progress_artifact

    from surf2vec.flows import report
    from surf2vec.flows.report import PrefectReporter

    monkeypatch.setattr(report, "ARTIFACT_SECONDS", 0)
    made = []

    def create(*args: Any, **named: Any) -> Any:
        made.append(create_progress_artifact(*args, **named))
        return made[-1]

    def fail(*args: Any, **named: Any) -> Any:
        raise httpx.ConnectError("refused")

    @flow
    def train() -> None:
        with PrefectReporter().step("train") as on_event:
            for done, replacement in ((1, fail), (2, create), (3, fail)):
                name = "update_progress_artifact" if made else "create_progress_artifact"
                monkeypatch.setattr(report.artifacts, name, replacement)
                values = {"step": "train", "done": done, "total": 3, "unit": "epochs"}
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(on_event, "progress", values).result()

    train()
    assert len(made) == 1


def describe(folder: Path, **steps: dict[str, Any]) -> str:
    """What a person reads in Prefect of a run with these steps."""
    from surf2vec.flows.report import describe_night

    run = Run(Root(folder), "r1")
    run.update(steps=steps)
    return describe_night(run, PublishConfig())


def test_what_a_person_reads_in_prefect_makes_no_links_tables_or_html(tmp_path: Path) -> None:
    odd = "\x1b[31m|[click](http://evil.example)\n# <b>"
    told = describe(tmp_path, register={"model_name": odd, "model_version": 1, "tracking_uri": f"x`{odd}"})
    assert told.count(r"\\x1b\[31m\|\[click\]\(http://evil.example\)\\n\# &lt;b&gt;") == 2


def test_a_held_night_begins_with_the_rule_that_held_it(tmp_path: Path) -> None:
    row = {"rule": "users", "tonight": "68.9 %", "limit": "≥ 80.0 %", "reason": "11.1 % past the limit"}
    gate = {"passes": False, "verdict": "held", "held_by": ["users"], "table": [row | {"verdict": "held"}]}
    registered = {"model_name": "m", "model_version": 7, "tracking_uri": "x"}
    lines = describe(tmp_path, gate=gate, register=registered).splitlines()
    assert lines[2] == "**Held by the gate: the champion keeps serving.**"
    assert lines[4] == "* users: 68.9 %, limit ≥ 80.0 %, 11.1 % past the limit"
    assert "surf2vec promote 7 --override" in lines[5]


def test_links_to_mlflow_open_its_view_of_model_training(tmp_path: Path) -> None:
    page = "http://mlflow.example/#/experiments/1/runs/ab"
    registered = {"model_name": "m", "model_version": 1, "tracking_uri": "http://mlflow.example"}
    told = describe(tmp_path, register=registered | {"mlflow_page": f"{page}?workflowType=machine_learning"})
    assert f"[The run in MLflow]({page}?workflowType=machine_learning)" in told
    assert f"[The report]({page}/artifacts/report.html?workflowType=machine_learning)" in told


def test_the_form_in_prefects_ui_is_the_configuration() -> None:
    from surf2vec.flows.nightly import nightly

    schema = nightly.parameters.model_dump()
    assert all(one["description"].endswith(".") for one in schema["properties"].values())
    assert list(schema["properties"]) == ["root", "logs", "since", "until", "config", "full"]
    train = schema["definitions"]["TrainSettings"]["properties"]["epochs"]
    assert (train["title"], train["minimum"]) == ("Epochs", 1)
    assert train["description"]


def test_artifacts_of_two_models_have_keys_of_their_own() -> None:
    from surf2vec.flows.report import key_of

    assert key_of(PublishConfig(), "night") == "surf2vec-users-night"
    assert key_of(PublishConfig(model_name="Shop (EU)_users"), "night") == "shop-eu-users-night"
