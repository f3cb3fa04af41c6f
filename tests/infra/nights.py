"""Runs of the deployments: started, watched, killed and tried again, as a person would."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil

from surf2vec.infra.stack import CODE, POOL, Stack

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

    from surf2vec.infra.deploy import Patience


def patience(**others: float) -> "Patience":
    """Return how long the tests' server waits before an alarm."""
    from surf2vec.infra.deploy import Patience

    return Patience(**{"silent_seconds": 45, "late_seconds": 10} | others)


def make_bucket() -> None:
    """Make the bucket of MLflow's artifacts on the S3 server of the environment."""
    subprocess.run([sys.executable, "-m", "surf2vec.infra.bucket"], cwd=CODE, check=True)


@dataclass
class Nights:
    """The runs on a stack."""

    stack: Stack

    @property
    def client(self) -> "SyncPrefectClient":
        from prefect.client.orchestration import get_client

        return get_client(sync_client=True)

    def restart(self, name: str) -> None:
        """Start a server again that was stopped, at its port; the S3 server has lost its objects."""
        self.stack.services[name].start()
        self.stack.services[name].wait()
        if name == "s3":
            make_bucket()

    def start(self, deployment: str, queue: str | None = None, command: str = "", **parameters: Any) -> "FlowRun":
        """A run of the deployment with these parameters instead of its own; its process is that of the command."""
        with self.client as client:
            there = client.read_deployment_by_name(deployment)
            job = {"command": command} if command else None
            return client.create_flow_run_from_deployment(
                there.id, parameters=parameters, work_queue_name=queue, job_variables=job
            )

    def start_night(self, root: Path, logs: Path, deployment: str = "nightly", **train: Any) -> "FlowRun":
        """A run of `nightly` or `retrain` on these logs, registered at the stack's MLflow."""
        publish = {"tracking_uri": self.stack.client_environment["MLFLOW_TRACKING_URI"]}
        config = {"publish": publish, "train": {"threads": 1, "vector_size": 16} | train}
        return self.start(f"nightly/{deployment}", root=str(root), logs=[str(logs)], config=config)

    def newest(self, deployment_id: UUID) -> "FlowRun":
        """The deployment's run that a person made last."""
        from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

        with self.client as client:
            chosen = DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id]))
            found = client.read_flow_runs(deployment_filter=chosen)
        return max((run for run in found if not run.auto_scheduled), key=lambda run: str(run.created))

    def name_of(self, run: "FlowRun") -> str:
        """Its name by now: a night is named anew once its window is known."""
        with self.client as client:
            return client.read_flow_run(run.id).name

    def make_idle_queue(self) -> str:
        """A queue of the pool that no worker may take from."""
        with self.client as client:
            queue = client.create_work_queue("idle", work_pool_name=POOL)
            client.update_work_queue(queue.id, is_paused=True)
        return queue.name

    def state(self, run: "FlowRun") -> str:
        with self.client as client:
            state = client.read_flow_run(run.id).state
        return state.name if state else "none"

    def step_states(self, run: "FlowRun", step: str) -> list[str]:
        """The states of the runs of a step, oldest first: a retry of the night has its own."""
        from prefect.client.schemas.filters import FlowRunFilter

        with self.client as client:
            found = client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [run.id]}))
        named = [task for task in found if task.name.startswith(f"{step}-") and task.state]
        return [task.state.name for task in sorted(named, key=lambda task: str(task.created)) if task.state]

    def step_state(self, run: "FlowRun", step: str) -> str:
        return (self.step_states(run, step) or ["none"])[-1]

    def wait_for_state(self, run: "FlowRun", *names: str, seconds: float = 180) -> None:
        """Return when the run has one of these states; fail at once when it ended in another."""
        seen = [""]

        def there() -> bool:
            seen[0] = self.state(run)
            if seen[0] in {"Completed", "Failed", "Crashed", "Cancelled"} - set(names):
                raise AssertionError(f"the run is {seen[0]}, not {names}:\n{self.worker_log()}")
            return seen[0] in names

        wait_until(there, seconds, lambda: f"the run is {seen[0]}, not {names}:\n{self.worker_log()}")

    def wait_for_step(self, run: "FlowRun", step: str, *names: str, seconds: float = 120) -> None:
        wait_until(
            lambda: self.step_state(run, step) in names,
            seconds,
            lambda: f"{step} is {self.step_state(run, step)}, not {names}:\n{self.worker_log()}",
        )

    def find_processes(self, run: "FlowRun") -> list[psutil.Process]:
        """Those that a worker made for the run, the innermost last; none once the worker is done with it."""
        worker = self.stack.services["worker"].process
        assert worker
        there = psutil.Process(worker.pid).children(recursive=True)
        return [one for one in there if _environment(one).get("PREFECT__FLOW_RUN_ID") == str(run.id)]

    def kill(self, run: "FlowRun") -> None:
        """kill -9 of the process in which the flow runs."""
        os.kill(self.find_processes(run)[-1].pid, signal.SIGKILL)

    def kill_services(self, *names: str) -> None:
        """kill -9 of the servers and of all that they began, as when the machine loses power."""
        services = [self.stack.services[name] for name in names]
        first = [psutil.Process(service.process.pid) for service in services if service.process]
        for process in [*(below for one in first for below in one.children(recursive=True)), *first]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for service in services:
            service.stop()

    def remove(self, run: "FlowRun") -> None:
        """End the run and forget it, so that its slot is free."""
        from prefect.states import Cancelled

        with self.client as client:
            client.set_flow_run_state(run.id, Cancelled(), force=True)
            for process in self.find_processes(run):
                process.kill()
            client.delete_flow_run(run.id)

    def retry(self, run: "FlowRun") -> None:
        """As a person does at a terminal."""
        command = [sys.executable, "-m", "prefect", "flow-run", "retry", str(run.id)]
        subprocess.run(command, cwd=CODE, check=True, capture_output=True, timeout=60)

    def artifacts(self, run: "FlowRun") -> dict[str, Any]:
        """The newest artifact by key."""
        from prefect.client.schemas.filters import FlowRunFilter

        with self.client as client:
            found = client.read_artifacts(flow_run_filter=FlowRunFilter(id={"any_": [run.id]}))
        return {
            str(one.key).removeprefix("surf2vec-users-"): one for one in sorted(found, key=lambda one: str(one.created))
        }

    def worker_log(self) -> str:
        return "\n".join((self.stack.folder / "logs" / "worker.log").read_text().splitlines()[-40:])


def wait_until(there: Callable[[], bool], seconds: float, said: Callable[[], str]) -> None:
    """Return when `there` says yes; fail with what `said` says when it does not within `seconds`."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, said()
        time.sleep(0.3)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:  # gone in the meantime
        return {}
