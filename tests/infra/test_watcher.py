"""What the watcher does about the runs that it finds, on a server in memory."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.filters import EventFilter

from surf2vec.infra import watcher
from surf2vec.infra.watcher import NO_SLOT, RETRIED, RUN_FAILED, Watcher

PATIENCE_SECONDS = 100.0


class Server:
    """The runs, by the requests of the watcher: it changes states, and keeps events."""

    def __init__(self, *runs: FlowRun) -> None:
        self.runs, self.events = list(runs), list[tuple[str, str]]()
        self.history = {run.id: [run.state] for run in runs}

    def read_flow_runs(self, flow_filter: FlowFilter | None, flow_run_filter: FlowRunFilter) -> list[FlowRun]:
        assert flow_run_filter.state
        assert flow_run_filter.state.type
        types = flow_run_filter.state.type.any_ or []
        flows = flow_filter.name.any_ if flow_filter and flow_filter.name else None
        return [run for run in self.runs if run.state and run.state.type in types and (not flows or run.name in flows)]

    def set_flow_run_state(self, run_id: UUID, state: State[Any], force: bool = False) -> None:
        [run] = [run for run in self.runs if run.id == run_id]
        run.state = state
        self.history[run_id].append(state)

    def read_flow_run_states(self, run_id: UUID) -> Sequence[State[Any] | None]:
        return self.history[run_id]

    def read_events(self, filter: EventFilter, limit: int) -> SimpleNamespace:
        assert filter.event
        assert isinstance(filter.related, watcher.EventRelatedFilter)
        causes = filter.related.id or []
        found = [event for event, cause in self.events if cause in causes and event in (filter.event.name or [])]
        return SimpleNamespace(total=len(found))

    def emit(self, event: str, resource: dict[str, str], related: list[dict[str, str]]) -> None:
        self.events.append((event, related[-1]["prefect.resource.id"]))

    def sent(self, event: str) -> int:
        return sum(name == event for name, _ in self.events)


def make_run(kind: StateType, name: str | None = None, age_seconds: float = 0, flow: str = "nightly") -> FlowRun:
    """A run of a deployment; its name is that of its flow."""
    timestamp = datetime.now(UTC) - timedelta(seconds=age_seconds)
    state = State[Any](type=kind, name=name, timestamp=timestamp)
    return FlowRun(id=uuid4(), flow_id=uuid4(), deployment_id=DEPLOYMENT, name=flow, state=state)


DEPLOYMENT = uuid4()


def sweep(server: Server, monkeypatch: pytest.MonkeyPatch, watching: Watcher | None = None) -> None:
    monkeypatch.setattr(watcher, "emit_event", server.emit)
    (watching or Watcher(PATIENCE_SECONDS)).sweep(server)  # type: ignore[arg-type]


@pytest.mark.parametrize(("age_seconds", "kind"), [(90, StateType.PENDING), (110, StateType.CRASHED)])
def test_a_run_is_pending_for_so_long(age_seconds: float, kind: StateType, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(StateType.PENDING, age_seconds=age_seconds)
    sweep(Server(run), monkeypatch)
    assert run.state
    assert run.state.type == kind


def test_a_crashed_night_is_retried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback is not: it would roll back twice."""
    night, rollback = (make_run(StateType.CRASHED, age_seconds=110, flow=flow) for flow in ("nightly", "rollback"))
    server = Server(night, rollback)
    sweep(server, monkeypatch)
    assert night.state
    assert (night.state.type, night.state.message) == (StateType.SCHEDULED, RETRIED)
    assert rollback.state
    assert rollback.state.type == StateType.CRASHED
    again = State[Any](type=StateType.CRASHED, timestamp=datetime.now(UTC) - timedelta(seconds=110))
    server.set_flow_run_state(night.id, again)
    sweep(server, monkeypatch)
    assert night.state == again


def test_a_failure_raises_one_alarm_whoever_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The automation has a fifth of the patience to do so."""
    new, old, known = (make_run(StateType.FAILED, age_seconds=age) for age in (10, 30, 30))
    server = Server(new, old, known)
    assert known.state
    server.events.append(("prefect.automation.action.executed", f"prefect.event.{known.state.id}"))
    sweep(server, monkeypatch)
    sweep(server, monkeypatch)
    assert old.state
    assert server.events[1:] == [(RUN_FAILED, f"prefect.event.{old.state.id}")]


def test_a_slot_that_no_run_has_raises_one_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not between the end of a run and the start of the next, and not while a run has it."""
    waiting = make_run(StateType.SCHEDULED, "AwaitingConcurrencySlot", age_seconds=500)
    running = make_run(StateType.RUNNING, age_seconds=500)
    server, watching = Server(waiting, running), Watcher(PATIENCE_SECONDS)
    sweep(server, monkeypatch, watching)
    assert watching.free_since == {}
    server.runs.remove(running)
    sweep(server, monkeypatch, watching)
    assert server.sent(NO_SLOT) == 0
    watching.free_since[DEPLOYMENT] -= timedelta(seconds=110)
    sweep(server, monkeypatch, watching)
    sweep(server, monkeypatch, watching)
    assert server.sent(NO_SLOT) == 1
