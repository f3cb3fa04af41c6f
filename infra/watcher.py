"""Watches the runs of the deployments as the Prefect server has them: `python -m surf2vec.infra.watcher`.

Automations follow events, and a server that restarts misses some. So the watcher reads the runs again and again:

* A run that stays Pending was taken by a worker that died. It ends as Crashed, and frees its slot for the next.
* A night that crashed is retried, once.
* A run that failed without an alarm, and a run that waits for a slot that no run has, become an event. An automation of
  `infra/deploy.py` sends the alarm.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events import emit_event
from prefect.events.filters import EventFilter, EventNameFilter, EventRelatedFilter
from prefect.states import Scheduled

from surf2vec.infra import PATIENCE_SECONDS

RUN_FAILED = "surf2vec.run.failed"
NO_SLOT = "surf2vec.run.no-slot"
OURS = {"prefect.resource.id": "prefect.tag.surf2vec", "prefect.resource.role": "tag"}
SWEEP_SECONDS = 15.0
LOOK_BACK = timedelta(days=1)
NIGHTS = ["nightly", "backfill"]
"""The flows that resume. A rollback that is run twice rolls back twice."""
WATCHING, RETRIED = "watching", "Retried by the watcher, as it crashed"

Found = list[tuple[FlowRun, State[Any]]]


@dataclass
class Watcher:
    """What `patience_seconds` limits: being Pending, a slot that no run has, and the time from a crash to its retry.

    An alarm of a run that failed is sent after a fifth of it: by then an automation has sent one, unless it missed the event.
    """

    patience_seconds: float = PATIENCE_SECONDS
    free_since: dict[UUID, datetime] = field(default_factory=dict)

    def sweep(self, client: SyncPrefectClient) -> None:
        """Read the runs once, and act."""
        now, patience = datetime.now(UTC), timedelta(seconds=self.patience_seconds)
        due = filters.FlowRunFilterExpectedStartTime(before_=now)
        busy = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
        unfinished = read_runs(client, (*busy, StateType.SCHEDULED), expected_start_time=due)
        for run, state in unfinished:
            if state.type == StateType.PENDING and now - state.timestamp > patience:
                why = f"Pending for {self.patience_seconds:g} s: the worker that took it has died"
                client.set_flow_run_state(run.id, State[Any](type=StateType.CRASHED, message=why))
        waiting = {run.deployment_id: run for run, state in unfinished if state.name == "AwaitingConcurrencySlot"}
        free = waiting.keys() - {run.deployment_id for run, state in unfinished if state.type in busy}
        self.free_since = {deployment: self.free_since.get(deployment, now) for deployment in free if deployment}
        for deployment, since in self.free_since.items():
            if now - since > patience:
                run = waiting[deployment]
                raise_alarm(client, NO_SLOT, run, f"surf2vec.no-slot.{run.id}")

        recent = filters.FlowRunFilterEndTime(after_=now - LOOK_BACK)
        for run, state in read_runs(client, (StateType.FAILED, StateType.CRASHED), end_time=recent):
            if now - state.timestamp > patience / 5:
                raise_alarm(client, RUN_FAILED, run, f"prefect.event.{state.id}")
        for run, state in read_runs(client, (StateType.CRASHED,), NIGHTS, end_time=recent):
            if now - state.timestamp > patience:
                retry_once(client, run)


def read_runs(
    client: SyncPrefectClient, states: Sequence[StateType], flows: list[str] | None = None, **limits: Any
) -> Found:
    """Return the runs of our deployments in these states, with their states. `flows`: only of these flows."""
    chosen = filters.FlowRunFilter(
        tags=filters.FlowRunFilterTags(all_=["surf2vec"]),
        state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=[*states])),
        **limits,
    )
    flow = filters.FlowFilter(name=filters.FlowFilterName(any_=flows)) if flows else None
    found = client.read_flow_runs(flow_filter=flow, flow_run_filter=chosen)
    return [(run, run.state) for run in found if run.deployment_id and run.state]


def raise_alarm(client: SyncPrefectClient, event: str, run: FlowRun, cause: str) -> None:
    """Send an event about the run, unless an alarm of this cause was sent before, by this or by an automation.

    An automation names its cause by the id of an event; that of a change of state is the id of the state.
    """
    sent = EventNameFilter(name=[event, "prefect.automation.action.executed"])
    if client.read_events(EventFilter(event=sent, related=EventRelatedFilter(id=[cause])), limit=1).total:
        return
    deployment = {
        "prefect.resource.id": f"prefect.deployment.{run.deployment_id}",
        "prefect.resource.role": "deployment",
    }
    related = [OURS, deployment, {"prefect.resource.id": cause, "prefect.resource.role": "cause"}]
    resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name}
    emit_event(event, resource, related=related)


def retry_once(client: SyncPrefectClient, run: FlowRun) -> None:
    """Schedule the run again, unless it was before. It resumes from its last commit."""
    if all(state.message != RETRIED for state in client.read_flow_run_states(run.id)):
        client.set_flow_run_state(run.id, Scheduled(message=RETRIED), force=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m surf2vec.infra.watcher", description=__doc__)
    parser.add_argument("--patience-seconds", type=float, default=PATIENCE_SECONDS, help="see docs/stack.md (300)")
    watcher = Watcher(**vars(parser.parse_args()))
    print(WATCHING, flush=True)
    while True:
        try:
            with get_client(sync_client=True) as client:
                watcher.sweep(client)
        except Exception as error:  # the server restarts, or a run was deleted: the next sweep sees what there is
            print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} a sweep failed: {error!r}", file=sys.stderr, flush=True)
        time.sleep(SWEEP_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
