"""Installs deployments, automations and alarms on a Prefect server: `python -m surf2vec.infra.deploy --root R --logs GLOB`.

Calling it again updates them. The server is that of PREFECT_API_URL. The webhook for alarms is $SURF2VEC_ALARM_URL; it is
stored only in a block on the server, encrypted.

By its automations, the server ends runs that died or hang, and calls the webhook when a person should look. A message has the
alarm and the run, but no user ids, no file names and no error texts: its link leads to those.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import available_timezones

from prefect.automations import Automation
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CancelFlowRun, ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture

from surf2vec.infra import CODE, POOL
from surf2vec.infra.watcher import NO_SLOT, OURS, RUN_FAILED
from surf2vec.tasks.night.reporter import CHAMPION_OLD, GATE_HELD, PUSH_FAILED
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.trainer.errors import ConfigError, ResourceError, SurfError

PREFECT_FILE = "infra/prefect.yaml"
BLOCK = "surf2vec-alarms"
ENDED = {f"prefect.flow-run.{name}" for name in ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")}
RUN = "{{ labels['prefect.resource.name'] }}"
RUN_ID = "{{ labels['prefect.resource.id'] }}"


@dataclass(frozen=True)
class Patience:
    """The server's time limits.

    After `silent_seconds` without a heartbeat, a run counts as crashed. If it starts more than `late_seconds` late, an alarm is
    sent. After `hours` it is cancelled; its training commits first, and the next run continues.
    """

    silent_seconds: float = 90
    late_seconds: float = 600
    hours: float = 20


def list_automations(webhook: UUID | None, patience: Patience = Patience()) -> list[Automation]:
    """Return the automations. Without a webhook (the id of its block), only those that end runs."""
    silent, hours, beat = patience.silent_seconds, patience.hours, "prefect.flow-run.heartbeat"
    automations: list[Automation] = []

    def add(name: str, trigger: EventTrigger, *actions: Any) -> None:
        automations.append(Automation(name=f"surf2vec: {name}", trigger=trigger, actions=[*actions]))

    def call(alarm: str, text: str, **link: str) -> list[SendNotification]:
        fields = {"alarm": alarm, "text": f"surf2vec: {text}"} | link
        quoted = (f'"{name}": {{% filter tojson %}}{value}{{% endfilter %}}' for name, value in fields.items())
        body = "{" + ", ".join(quoted) + "}"
        return [SendNotification(block_document_id=webhook, subject=alarm, body=body)] if webhook else []

    crash = ChangeFlowRunState(state=StateType.CRASHED, message=f"no heartbeat for {silent:g} s")
    add("silent runs crash", _absent({beat}, {beat} | ENDED, silent, names=False), crash)
    too_long = call("too_long", f"{RUN_ID} did not end within {hours:g} hours and is cancelled")
    running = _absent({"prefect.flow-run.Running"}, ENDED, hours * 3600, names=False)
    add("long runs are cancelled", running, CancelFlowRun(), *too_long)
    if not webhook:
        return automations
    failed = ENDED - {"prefect.flow-run.Completed", "prefect.flow-run.Cancelled"} | {RUN_FAILED}
    page = "{{ flow_run|ui_url }}"
    ended = call("run_failed", "{{ flow_run.name }} of {{ deployment.name }} is {{ flow_run.state.name }}", link=page)
    add("alarm: a run failed", EventTrigger(expect=failed, match_related=OURS), *ended)
    started = ENDED | {"prefect.flow-run.Running"}
    late = _absent({"prefect.flow-run.Late"}, started, patience.late_seconds)
    add("alarm: a run did not start", late, *call("not_started", f"{RUN} was due and did not start"))
    no_slot = call(
        "no_slot", "{{ flow_run.name }} of {{ deployment.name }} waits for a slot that no run has", link=page
    )
    add("alarm: no slot", EventTrigger(expect={NO_SLOT}, match_related=OURS), *no_slot)
    held = call("gate_held", "release {{ event.payload.release }} was held back by {{ event.payload.held_by }}")
    add("alarm: the gate held", EventTrigger(expect={GATE_HELD}), *held)
    old = call("champion_old", "{{ event.payload.release }} serves and is {{ event.payload.age_days }} days old")
    add("alarm: the champion is old", EventTrigger(expect={CHAMPION_OLD}), *old)
    unpushed = call("push_failed", "{{ event.payload.store }} did not get what serves: {{ event.payload.reason }}")
    add("alarm: a push failed", EventTrigger(expect={PUSH_FAILED}), *unpushed)
    return automations


def make_alarm_block(url: str) -> CustomWebhookNotificationBlock:
    """Not Prefect's Webhook: its calls share connections, and the first that ends cuts the others (prefect 3.8.8)."""
    headers = {"Content-Type": "application/json"}
    return CustomWebhookNotificationBlock(
        url="{{url}}", secrets={"url": url}, form_data="{{body}}", headers=headers, name=BLOCK
    )


def apply_automations(url: str | None, patience: Patience = Patience()) -> list[str]:
    """Create or update the automations on the server. Returns their names. `url`: the webhook; None leaves alarms unchanged."""
    webhook = make_alarm_block(url).save(BLOCK, overwrite=True) if url else None
    automations = list_automations(webhook, patience)  # type: ignore[arg-type]
    for automation in automations:
        try:
            existing = Automation.read(name=automation.name)
        except ValueError:
            automation.create()
        else:
            automation.id = existing.id  # type: ignore[attr-defined]
            automation.update()
    return [automation.name for automation in automations]


def _absent(after: set[str], expect: set[str], seconds: float, names: bool = True) -> EventTrigger:
    """Return a trigger: one of our runs has no `expect` event within `seconds` after an `after` event.

    names: an alarm names the run. A night gets a new name once its window is known, so use the id across that change.
    """
    labels = {"prefect.resource.id", "prefect.resource.name"} if names else {"prefect.resource.id"}
    return EventTrigger(
        after=after, expect=expect, match={"prefect.resource.id": "prefect.flow-run.*"}, match_related=OURS,
        for_each=labels, posture=Posture.Proactive, threshold=1, within=timedelta(seconds=seconds),
    )  # fmt: skip


def deploy(root: Path, logs: str, cron: str, timezone: str) -> None:
    """Create or update the deployments of infra/prefect.yaml.

    Raises ConfigError for an unknown time zone, ResourceError with Prefect's message if Prefect fails.
    """
    if timezone not in available_timezones():
        raise ConfigError(f"--timezone {timezone!r} is not a time zone: write for instance Europe/Berlin or UTC")
    values = {"ROOT": str(root.resolve()), "LOGS": logs, "CRON": cron, "TIMEZONE": timezone}
    environment = os.environ | {f"SURF2VEC_{name}": value for name, value in values.items()}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", PREFECT_FILE]
    done = subprocess.run(command, env=environment, cwd=CODE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ResourceError(
            f"prefect deploy failed; a worker of the pool {POOL}, which makes it, must have been started once:\n"
            f"{done.stdout}{done.stderr}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m surf2vec.infra.deploy", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the project root, on the worker's machine")
    parser.add_argument("--logs", required=True, help="glob of the log files there")
    parser.add_argument("--cron", default="30 2 * * *", help="when a night begins (30 2 * * *)")
    parser.add_argument("--timezone", default="UTC", help="the time zone of --cron, e.g. Europe/Berlin (UTC)")
    options = parser.parse_args()
    try:
        if "PREFECT_API_URL" not in os.environ:
            raise ConfigError("PREFECT_API_URL is not set: read the stack's client.env (set -a; . FOLDER/client.env)")
        deploy(options.root, options.logs, options.cron, options.timezone)
        names = apply_automations(os.environ.get("SURF2VEC_ALARM_URL"))
    except SurfError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"deployed; automations: {', '.join(names)}")
    places = [os.environ.get(name, "").removesuffix("/api") for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")]
    print(mask_credentials(f"log in as admin, with the passwords of client.env: {'  '.join(places).rstrip()}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
