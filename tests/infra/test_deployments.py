"""infra/prefect.yaml and the automations, without a server: what they say fits the flows."""

import asyncio
import json
from importlib import import_module
from uuid import uuid4

import pytest
import yaml

from surf2vec.infra import CODE, PATIENCE_SECONDS
from surf2vec.trainer.errors import SurfError
from tests.infra.listener import SECRET_PATH, Listener

FILE = yaml.safe_load((CODE / "infra" / "prefect.yaml").read_text())
DEPLOYMENTS = {one["name"]: one for one in FILE["deployments"]}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_fits_its_flow(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    module, _, function = deployment["entrypoint"].rpartition(".")
    schema = getattr(import_module(module), function).parameters.model_dump()
    assert set(deployment["parameters"]) <= set(schema["properties"])
    assert set(schema.get("required", [])) <= set(deployment["parameters"])
    assert deployment["enforce_parameter_schema"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_runs_queue_and_none_is_lost(name: str) -> None:
    limit = DEPLOYMENTS[name]["concurrency_limit"]
    assert (limit["limit"], limit["collision_strategy"]) == (1, "ENQUEUE")
    assert limit["grace_period_seconds"] > PATIENCE_SECONDS  # else a run that is ended frees the slot of another
    assert "surf2vec" in DEPLOYMENTS[name]["tags"]
    assert DEPLOYMENTS[name]["work_pool"]["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"


def test_schedules_have_a_time_zone() -> None:
    schedules = [schedule for one in DEPLOYMENTS.values() for schedule in one.get("schedules", [])]
    assert len(schedules) == 2
    assert all(schedule["timezone"] and schedule["cron"] for schedule in schedules)


def test_deploying_says_where_to_log_in_and_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from surf2vec.infra import deploy

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:5000")
    monkeypatch.setattr(deploy, "deploy", lambda *_: None)
    monkeypatch.setattr(deploy, "apply_automations", lambda url: ["surf2vec: one"])
    monkeypatch.setattr("sys.argv", ["deploy", "--root", "r", "--logs", "*.csv"])
    assert deploy.main() == 0
    told = capsys.readouterr().out
    assert "log in as admin, with the passwords of client.env: http://127.0.0.1:4200  http://***@127.0.0.1:5000" in told


def test_without_a_webhook_runs_are_ended_and_nobody_is_called() -> None:
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import Posture

    from surf2vec.infra.deploy import list_automations

    made = list_automations(None)
    assert [one.name for one in made] == ["surf2vec: silent runs crash", "surf2vec: long runs are cancelled"]
    assert not any(isinstance(action, SendNotification) for one in made for action in one.actions)
    assert all(one.trigger.posture == Posture.Proactive for one in made)  # type: ignore[union-attr]
    assert made[0].trigger.within.total_seconds() == 90  # type: ignore[union-attr]


def test_a_run_has_started_once_it_runs() -> None:
    """Not once a worker took it, which may die, nor while it waits for a slot, which may never be free."""
    from surf2vec.infra.deploy import list_automations

    [late] = [one for one in list_automations(uuid4()) if one.name == "surf2vec: alarm: a run did not start"]
    names = {"Running", "Completed", "Failed", "Crashed", "Cancelled", "TimedOut"}
    assert late.trigger.expect == {f"prefect.flow-run.{name}" for name in names}  # type: ignore[union-attr]


def test_every_alarm_is_a_json_message_of_its_own() -> None:
    """Whatever the texts have in them."""
    from prefect.events.actions import SendNotification
    from prefect.server.utilities.user_templates import register_user_template_filters, render_user_template_sync

    from surf2vec.infra.deploy import Patience, list_automations

    register_user_template_filters({"ui_url": lambda run: f"https://prefect/{run['name']}"})
    hostile = dict.fromkeys(
        ("release", "held_by", "age_days", "store", "reason"), '"quoted" {{ x }} \\ \n \u2028 </script>'
    )
    run = {"name": 'a "night"', "state": {"name": "Failed"}}
    context = {
        "event": {"payload": hostile},
        "flow_run": run,
        "deployment": run,
        "labels": {"prefect.resource.name": 'a "b"'},
    }
    calls = [
        action
        for one in list_automations(uuid4(), Patience(hours=1))
        for action in one.actions
        if isinstance(action, SendNotification)
    ]
    messages = [json.loads(render_user_template_sync(call.body, context)) for call in calls]
    assert messages[-1]["text"] == "surf2vec: {store} did not get what serves: {reason}".format(**hostile)
    assert messages[1]["link"] == 'https://prefect/a "night"'
    assert [message["alarm"] for message in messages] == [
        "too_long",
        "run_failed",
        "not_started",
        "no_slot",
        "gate_held",
        "champion_old",
        "push_failed",
    ]
    assert all("parameters" not in call.body and "message" not in call.body for call in calls)
    runbook = (CODE / "docs" / "runbook.md").read_text()
    assert [message["alarm"] for message in messages if f"`{message['alarm']}`" not in runbook] == []


def test_alarms_of_the_same_moment_all_arrive() -> None:
    """The webhook takes its time, as those on the internet do: a call begins while others are under way, and ends before them."""
    from surf2vec.infra.deploy import make_alarm_block

    waits = [0.6, 0.4, 0.2, 0.1]

    async def send(number: int) -> None:
        await asyncio.sleep(number / 50)
        await make_alarm_block(listener.url).notify(json.dumps({"alarm": "run_failed", "text": str(number)}))

    async def send_all() -> None:
        await asyncio.gather(*(send(number) for number in range(4)))

    with Listener(wait_seconds=waits.pop) as listener:
        asyncio.run(send_all())
        assert sorted(message["text"] for message in listener.messages) == ["0", "1", "2", "3"]


def test_the_address_of_the_webhook_is_a_secret_of_its_block() -> None:
    from surf2vec.infra.deploy import make_alarm_block

    block = make_alarm_block(f"https://hooks.example{SECRET_PATH}")
    assert SECRET_PATH not in repr(block)
    assert SECRET_PATH not in block.model_dump_json()


def test_the_runbook_has_every_error() -> None:
    def classes(kind: type[SurfError]) -> list[type[SurfError]]:
        return [kind, *(below for one in kind.__subclasses__() for below in classes(one))]

    import_module("surf2vec.trainer.training.loop")  # has an error of its own
    runbook = (CODE / "docs" / "runbook.md").read_text()
    found = {kind.code: kind.__name__ for kind in classes(SurfError)}
    assert len(found) > 8
    assert [code for code in found if f"`{code}`" not in runbook] == []
    assert [name for name in found.values() if name not in runbook and name != "SurfError"] == []
