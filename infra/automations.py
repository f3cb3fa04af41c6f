"""What the Prefect server does by itself: ends runs that died or hang, and calls a webhook when a person should look.

A message names the alarm and the run; it has no user ids, no file names and no error texts: those are behind its link.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, CancelFlowRun, ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture

from flows.alarms import CHAMPION_OLD, GATE_HELD

BLOCK = "surf2vec-alarms"
ENDED = {f"prefect.flow-run.{name}" for name in ("Completed", "Failed", "Crashed", "Cancelled", "TimedOut")}
OURS = {"prefect.resource.id": "prefect.tag.surf2vec", "prefect.resource.role": "tag"}
RUN = "{{ labels['prefect.resource.name'] }}"


@dataclass(frozen=True)
class Patience:
    """How long the server waits.

    `silent_seconds` without a heartbeat, a run has crashed; `late_seconds` after it was due and did not start it is told;
    after `hours` it is cancelled (its training commits first, and the next run goes on).
    """

    silent_seconds: float = 90
    late_seconds: float = 600
    hours: float = 20


def list_automations(webhook: UUID | None, patience: Patience = Patience()) -> list[Automation]:
    """The automations; without a webhook (the id of its block) only those that end runs."""
    silent, hours = patience.silent_seconds, patience.hours

    def call(alarm: str, text: str, has_run: bool = False) -> list[Any]:
        message = {"alarm": alarm, "text": f"surf2vec: {text}"} | ({"link": "{{ flow_run|ui_url }}"} if has_run else {})
        return [CallWebhook(block_document_id=webhook, payload=json.dumps(message))] if webhook else []

    silence = _absent({"prefect.flow-run.heartbeat"}, {"prefect.flow-run.heartbeat"} | ENDED, silent)
    crash = ChangeFlowRunState(state=StateType.CRASHED, message=f"no heartbeat for {silent:g} s")
    made = [
        _automation("silent runs crash", silence, [crash]),
        _automation("long runs are cancelled", _absent({"prefect.flow-run.Running"}, ENDED, hours * 3600),
                    [CancelFlowRun(), *call("too_long", f"{RUN} did not end within {hours:g} hours and is cancelled")]),
    ]  # fmt: skip
    if webhook:
        failed = ENDED - {"prefect.flow-run.Completed", "prefect.flow-run.Cancelled"}
        begun = ENDED | {f"prefect.flow-run.{name}" for name in ("Pending", "Running", "AwaitingConcurrencySlot")}
        made += [
            _automation("alarm: a run failed", _present(failed),
                        call("run_failed", "{{ flow_run.name }} of {{ deployment.name }} is {{ flow_run.state.name }}", True)),
            _automation("alarm: a run did not start", _absent({"prefect.flow-run.Late"}, begun, patience.late_seconds),
                        call("not_started", f"{RUN} was due and did not start")),
            _automation("alarm: the gate held", EventTrigger(expect={GATE_HELD}),
                        call("gate_held", "release {{ event.payload.release }} was held back by {{ event.payload.held_by }}")),
            _automation("alarm: the champion is old", EventTrigger(expect={CHAMPION_OLD}),
                        call("champion_old", "{{ event.payload.release }} serves and is {{ event.payload.age_days }} days old")),
        ]  # fmt: skip
    return made


def apply_automations(url: str | None, patience: Patience = Patience()) -> list[str]:
    """Make or renew them on the server; returns their names. `url` is the webhook; without one, alarms stay as they are."""
    webhook = None
    if url:
        block = Webhook(method="POST", url=url, headers={"Content-Type": "application/json"})  # type: ignore[arg-type]
        webhook = block.save(BLOCK, overwrite=True)
    made = list_automations(webhook, patience)  # type: ignore[arg-type]
    for automation in made:
        try:
            there = Automation.read(name=automation.name)
        except ValueError:
            automation.create()
        else:
            automation.id = there.id  # type: ignore[attr-defined]
            automation.update()
    return [automation.name for automation in made]


def _automation(name: str, trigger: EventTrigger, actions: list[Any]) -> Automation:
    return Automation(name=f"surf2vec: {name}", trigger=trigger, actions=actions)


def _present(expect: set[str]) -> EventTrigger:
    """As soon as one of our runs has such an event."""
    return EventTrigger(expect=expect, match_related=OURS, posture=Posture.Reactive, threshold=1, within=timedelta(0))


def _absent(after: set[str], expect: set[str], seconds: float) -> EventTrigger:
    """When one of our runs, so long after such an event, has none of those that must follow."""
    return EventTrigger(
        after=after, expect=expect, match={"prefect.resource.id": "prefect.flow-run.*"}, match_related=OURS,
        for_each={"prefect.resource.id", "prefect.resource.name"}, posture=Posture.Proactive, threshold=1,
        within=timedelta(seconds=seconds),
    )  # fmt: skip
