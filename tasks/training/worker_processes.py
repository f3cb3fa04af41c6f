"""Chooses the device and the number of workers, and trains a job with several worker processes on this machine.

torchrun's agent starts the workers, and restarts them if one dies. This process reads their reports. If it is stopped or
killed, the workers commit before they end. Sockets listen on loopback only (tasks/training/loopback_agent.py).
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, ResourceError, SurfError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.system.memory import private_bytes
from surf2vec.trainer.system.units import parse_bytes, size
from surf2vec.trainer.training.job import Job, write_job
from surf2vec.trainer.training.loop import StoppedError
from surf2vec.trainer.workers.event_file import ERROR, RESULT, EventReader, error_of
from surf2vec.trainer.workers.group import WorkerLostError

MAX_RESTARTS = 3
STOP_SECONDS = 600
"""The time limit for the last commit of the workers."""
POLL_SECONDS = 0.2
AGENT_STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)  # its exit codes
AGENT_BYTES = 200 * 10**6
"""The memory of torchrun's agent."""
WORKER_BYTES = 250 * 10**6
"""The memory of a worker before it begins to train."""


@dataclass(frozen=True)
class Device:
    """The kernel's name, the budgets on the GPUs in bytes (one for all, or one for each), and a reason for the choice."""

    kernel: str
    budgets: tuple[int, ...] = ()
    reason: str = ""

    @property
    def memory_bytes(self) -> int | None:
        """The smallest budget of the GPUs."""
        return min(self.budgets, default=None)


def pick_device(config: TrainConfig, resources: ResourcesConfig) -> Device:
    """Return the device for these settings on this machine: the GPU if a trial of its kernel succeeds."""
    if not resources.device_memory:
        return Device("cpu")
    from surf2vec.trainer.kernels import import_gpu
    from surf2vec.trainer.training.warm_up import try_apart

    try:
        gpu = import_gpu()
        gpu.check_supported(config)
        gpu.find_device()
        try_apart(config)
    except (ConfigError, ResourceError) as error:
        return Device("cpu", reason=f"resources.device_memory is not used: {error}")
    return Device("gpu", tuple(parse_bytes(text) for text in resources.device_memory.split(",")))


def count_workers(device: Device, resources: ResourcesConfig) -> int:
    """Return the number of workers here. Raises ConfigError if there are too few GPUs, or not one budget for each."""
    num_devices = 1
    if device.kernel == "gpu":
        import torch  # takes seconds

        num_devices = max(1, torch.cuda.device_count())  # it may run without a GPU, in Triton's interpreter
    num_workers = resources.workers or num_devices
    if device.kernel == "gpu" and num_workers > num_devices:
        raise ConfigError(
            f"resources.workers is {num_workers}, one for each GPU, and {num_devices} are here: lower it, or set 0 to take all"
        )
    if num_workers > 1 and find_spec("torch") is None:
        raise ConfigError(
            f"resources.workers is {num_workers}, and several workers need torch, which is not installed: install the extra "
            "surf2vec[torch], or set 1"
        )
    if len(device.budgets) > 1 and len(device.budgets) != num_workers:
        raise ConfigError(
            f"resources.device_memory has {len(device.budgets)} budgets for {num_workers} workers: give one, or one for each"
        )
    return num_workers


@dataclass(frozen=True)
class WorkerProcesses:
    """The number of workers, their device, and the folder for their job, their events and their log."""

    num_workers: int
    device: Device
    folder: Path

    @property
    def log(self) -> Path:
        """The output of torchrun and its workers."""
        return self.folder / "torchrun.log"


@dataclass
class Reported:
    """The reports of the workers so far: their result, and the errors that ended some of them."""

    result: dict[str, Any] | None = None
    errors: list[SurfError] = field(default_factory=list)

    @property
    def final_errors(self) -> list[SurfError]:
        """The errors that a restart of the workers would not remove. torchrun stops the others when a worker died."""
        return [error for error in self.errors if not isinstance(error, WorkerLostError | StoppedError)]

    def last(self, kind: type[SurfError]) -> SurfError | None:
        """Return the newest error of this kind."""
        return next((error for error in reversed(self.errors) if isinstance(error, kind)), None)


def train_together(job: Job, crew: WorkerProcesses, on_event: OnEvent, stop: threading.Event) -> dict[str, Any]:
    """Do as `surf2vec.trainer.training.loop.train`, with several workers. The job's host memory is for all of them together.

    Raises the error of a worker; WorkerLostError if a worker still died after MAX_RESTARTS restarts.
    """
    crew.folder.mkdir(parents=True, exist_ok=True)
    job_path, events_path = crew.folder / "job.json", crew.folder / "events.jsonl"
    write_job(job, job_path)
    events_path.write_bytes(b"")
    arguments = ["--job", str(job_path), "--events", str(events_path), "--resume", *_resources(job, crew)]
    with start_agent(crew, arguments) as agent:
        reported = follow(agent, EventReader(events_path), on_event, stop)
    if reported.result is None:
        raise explain_failure(reported, crew, is_stopped=stop.is_set() or agent.returncode in AGENT_STOPPED)
    for path in (job_path, events_path):
        path.unlink()
    return reported.result


@contextmanager
def start_agent(crew: WorkerProcesses, arguments: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start torchrun's agent, whose workers get these arguments. If the block ends early, they commit and end."""
    command = [
        sys.executable, "-m", "surf2vec.tasks.training.loopback_agent", str(os.getpid()),
        "--nproc-per-node", str(crew.num_workers), "--max-restarts", str(MAX_RESTARTS),
        "--shutdown-timeout", str(STOP_SECONDS), "--log-dir", os.devnull, "-m", "surf2vec.trainer", *arguments,
    ]  # fmt: skip
    modules = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(filter(None, modules)),
        "PYTHONSAFEPATH": "1",  # a folder `trainer` in the current directory must not be imported
    }
    with open(crew.log, "wb") as log:
        # In its own session: only this process gets Ctrl-C, and then ends the agent.
        agent = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield agent
    finally:
        agent.terminate()
        try:
            agent.wait(STOP_SECONDS + 60)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


def follow(agent: "subprocess.Popen[bytes]", reader: EventReader, on_event: OnEvent, stop: threading.Event) -> Reported:
    """Pass on the workers' events until the agent ends. Ends it if `stop` is set or a worker has a final error."""
    reported, is_ending = Reported(), False
    while True:
        has_ended = agent.poll() is not None  # checked before reading, so that the last events are read
        for name, values in reader.read():
            if name == RESULT:
                reported.result = values
            elif name == ERROR:
                reported.errors.append(error_of(values))
                if values["code"] == WorkerLostError.code:
                    log(on_event, values["message"])
            else:
                on_event(name, values)
        if has_ended:
            return reported
        if not is_ending and (stop.is_set() or reported.final_errors):
            agent.terminate()
            is_ending = True
        with suppress(subprocess.TimeoutExpired):
            agent.wait(POLL_SECONDS)


def explain_failure(reported: Reported, crew: WorkerProcesses, *, is_stopped: bool) -> SurfError:
    """Return the error to raise without a result: preferably a worker's own, not one that reports a lost worker."""
    errors = sorted(reported.final_errors, key=lambda error: error.code == "resources")
    if errors:
        return errors[0]
    if is_stopped:
        early = "stopped before the workers began to train: run the same command to resume"
        return reported.last(StoppedError) or StoppedError(early)
    error = reported.last(WorkerLostError)
    lost = f" (at last: {error})" if error else ""
    return WorkerLostError(
        f"{crew.num_workers} workers were started and ended without a result, again and again{lost}; their output is in "
        f"{crew.log}. Run the same command to resume"
    )


def _resources(job: Job, crew: WorkerProcesses) -> list[str]:
    """Return the arguments for device and budgets. Workers share the host memory that this process and the agent leave."""
    held_bytes = private_bytes() + AGENT_BYTES
    host_bytes = (job.host_memory_bytes - held_bytes) // crew.num_workers
    if host_bytes < WORKER_BYTES:
        most = max(0, job.host_memory_bytes - held_bytes) // WORKER_BYTES
        raise ConfigError(
            f"resources.host_memory is {size(job.host_memory_bytes)}; this process and torchrun hold {size(held_bytes)} of it, "
            f"too little for {crew.num_workers} workers, each of which takes {size(WORKER_BYTES)} before it begins: raise it, or "
            f"lower resources.workers to {max(1, most)}"
        )
    on_device = ["--device-memory", ",".join(map(str, crew.device.budgets))] if crew.device.budgets else []
    device = "cuda" if crew.device.kernel == "gpu" else "cpu"
    return ["--device", device, *on_device, "--host-memory", str(host_bytes)]
