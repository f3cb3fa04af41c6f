"""Runs the parts of a step on a Ray cluster, if `resources.ray_address` names one.

A part is one Ray task; a step has a few dozen at most. Ray passes arguments and results (paths, ranges, settings, counts)
between processes with cloudpickle, and repeats a part whose worker or machine died. Only this process commits, so a part that
died leaves no committed files. Ray is imported when the first part is sent.
"""

import hashlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import ResourcesConfig
from surf2vec.tasks.root.run import Root, private_files
from surf2vec.tasks.root.wording import install_command
from surf2vec.trainer.errors import ConfigError, ResourceError, SurfError
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.system.fan_out import HERE, FanOut, Part, Result
from surf2vec.trainer.system.units import parse_bytes, size

MOST_PARTS = 64
TRIES = 4  # of a part whose worker died
CONNECT_SECONDS = 5.0


@contextmanager
def open_fan_out(resources: ResourcesConfig, root: Root) -> Iterator[FanOut]:
    """Yield the executor for the parts of a step: this process, or the cluster in the settings, connected at the first part."""
    if not resources.ray_address:
        yield HERE
        return
    with ExitStack() as stack:
        yield RayCluster(resources.ray_address, parse_bytes(resources.host_memory), root, stack)


@dataclass
class RayCluster(FanOut):
    """A `FanOut` whose parts are Ray tasks. Each reserves `memory_bytes` and some CPUs of a node."""

    address: str
    memory_bytes: int
    root: Root
    stack: ExitStack

    @property
    def num_parts(self) -> int:
        """Twice as many as can run at once, so that no node waits long for another."""
        return min(MOST_PARTS, 2 * self._shape[0])

    def choose_threads(self, threads: int) -> int:
        return self._shape[1]

    def run(
        self, work: Callable[[Part, OnEvent], Result], parts: Sequence[Part], on_event: OnEvent
    ) -> Iterator[Result]:
        """See `FanOut`. Raises ResourceError if the cluster cannot run a part, ConfigError if its nodes are not set up."""
        cpus = self._shape[1]  # connects
        import ray

        each = f"each with {cpus} CPU and {size(self.memory_bytes)}, on {len(self._nodes)} nodes of Ray"
        log(on_event, f"{work.__name__}: {len(parts)} parts, {each}")
        caller = {"root": self.root.path.resolve(), "code": digest_code()}
        task: Any = ray.remote(num_cpus=cpus, memory=self.memory_bytes, max_retries=TRIES - 1)(do_part)
        futures = [task.remote(work, part, **caller) for part in parts]
        for number, future in enumerate(futures, start=1):
            yield self._wait_for(future)
            log_progress(on_event, work.__name__, number, len(parts), "parts")

    def _connect(self) -> None:
        """Connect to the cluster until the stack closes. Raises ConfigError if it cannot be used."""
        try:
            import ray
        except ImportError:
            raise ConfigError(
                f"resources.ray_address is {self.address}, but Ray is not installed: {install_command('ray')}, "
                "or leave the setting out"
            ) from None
        check_address(self.address)
        check_tokens()
        self.stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints worker deaths on stdout, kept for results
        try:
            ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise ConfigError(
                f"cannot use the Ray cluster {self.address}: {lines[0][:300]}; see that it runs, that RAY_AUTH_MODE=token is set "
                "and the token is that of its nodes (docs/machines.md), or leave resources.ray_address out"
            ) from None
        self.stack.callback(ray.shutdown)
        self.root.temporary.mkdir(exist_ok=True)

    @cached_property
    def _nodes(self) -> list[tuple[int, int]]:
        """CPUs and bytes of memory of each node."""
        self._connect()
        import ray

        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return [(int(one.get("CPU", 0)), int(one.get("memory", 0))) for one in resources]

    @cached_property
    def _shape(self) -> tuple[int, int]:
        """The number of parts that can run at once, and the CPUs of each. Raises ConfigError if no node has memory for one."""
        able = [(cpus, n) for cpus, memory in self._nodes if (n := min(cpus, memory // self.memory_bytes))]
        if not able:
            most = max((memory for _, memory in self._nodes), default=0)
            raise ConfigError(
                f"a part may take {size(self.memory_bytes)}, but of the {len(self._nodes)} nodes of {self.address} none has a "
                f"CPU and that much memory (at most {size(most)}): lower --host-memory, or give `ray start` more --memory"
            )
        all_cpus, at_once = [cpus for cpus, _ in able], sum(n for _, n in able)
        return at_once, min(*all_cpus, max(1, sum(all_cpus) // min(MOST_PARTS, at_once)))

    def _wait_for(self, future: Any) -> Any:
        import ray

        try:
            return ray.get(future)
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, SurfError) else error from None
        except ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[-1:])[:300]}"
            raise ResourceError(
                f"the Ray cluster {self.address} failed at a part ({reason}); if workers die, it is tried {TRIES} times: check "
                "`ray status` and the nodes' memory, then run the same command again; what was committed is whole"
            ) from error


def do_part(work: Callable[[Any, OnEvent], Any], part: Any, root: Path, code: str) -> Any:
    """Run a part in a Ray worker. Raises ConfigError if its machine is not set up for it."""
    check_node(root, code)
    with private_files(Root(root)):
        return work(part, ignore_event)


def check_node(root: Path, code: str) -> None:
    """Raise ConfigError unless Ray requires a token here, `code` is the digest of this code, and the root exists here."""
    check_tokens()
    where = socket.gethostname()
    if digest_code() != code:
        raise ConfigError(
            f"{where} has another version of surf2vec: bring all machines to the same one, then start Ray again"
        )
    if not (root / ".tmp").is_dir():
        raise ConfigError(
            f"{where} does not see the root {root}: it must be on a file system that all machines share, by the same path"
        )


def check_tokens() -> None:
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        raise ConfigError(
            f"on {socket.gethostname()} Ray requires no token: anyone who reaches its ports can run any code there. Make one "
            "with `ray get-auth-token --generate`, and set RAY_AUTH_MODE=token for `ray start` and for this command"
        )


@cache
def digest_code() -> str:
    """Return a digest of all our modules and SQL files: 16 hex digits."""
    home, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(path for name in ("flows", "tasks", "trainer", "sql") for path in (home / name).rglob("*")):
        if path.suffix in (".py", ".sql"):
            digest.update(f"{path.relative_to(home)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def check_address(address: str) -> None:
    """Raise ConfigError unless a server listens at the address; Ray would retry for minutes. "auto": this machine's cluster."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        if "://" in address:
            raise ValueError("the command is given on a machine of the cluster, not through a Ray client")
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"nothing answers at resources.ray_address {address} ({error}): write auto or HOST:6379, and start the cluster as "
            "docs/machines.md says"
        ) from None
