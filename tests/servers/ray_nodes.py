"""A Ray cluster of two nodes on this machine, with ports, a token and a folder of its own, that never outlives its test."""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from surf2vec.infra.services import find_port

MARK = "SURF2VEC_TEST_CLUSTER"
RAY = str(Path(sys.executable).with_name("ray"))
NODE = ("--num-cpus=1", "--memory=6000000000", "--object-store-memory=100000000", "--disable-usage-stats")
START_SECONDS = 90


@dataclass(frozen=True)
class Cluster:
    """address: for `resources.ray_address`; env: what whoever uses it needs in the environment; mark: of its processes."""

    address: str
    env: dict[str, str]
    mark: str

    def processes(self) -> list[psutil.Process]:
        """All processes of the cluster: its nodes, their agents, which write their titles over their environment, and workers."""
        found: set[psutil.Process] = set()
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found |= {process, *process.children(recursive=True)}
            except (psutil.Error, OSError):
                continue
        return list(found)

    def workers(self) -> list[psutil.Process]:
        """Workers that do a part just now."""
        return [process for process in self.processes() if "ray::do_part" in "".join(tell_command(process)[:1])]


@contextmanager
def open_cluster() -> Iterator[Cluster]:
    """Start two nodes of one CPU each as docs/machines.md says; end them, whatever happens."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="s2v-ray.") as name:  # short: it has sockets
        token = Path(name) / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), MARK: mark}
        port = find_port(None)
        head = (
            "--head",
            f"--port={port}",
            f"--temp-dir={name}",
            "--include-dashboard=false",
            f"--ray-client-server-port={find_port(None)}",
        )
        try:
            told = start_node(env, *head, *NODE)
            found = re.search(r"Local node IP\S*: (?:\x1b\[\d+m)*([\d.]+)", told)
            assert found, told
            address = f"{found[1]}:{port}"  # not 127.0.0.1, whatever it is told
            start_node(env, f"--address={address}", *NODE)
            yield Cluster(address, {key: value for key, value in env.items() if key != MARK}, mark)
        finally:
            end(Cluster("", env, mark))


def start_node(env: dict[str, str], *options: str) -> str:
    done = subprocess.run(
        [RAY, "start", *options], env=os.environ | env, capture_output=True, text=True, timeout=START_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def end(cluster: Cluster) -> None:
    """Kill all processes of the cluster, and those that they were about to start."""
    for _ in range(20):
        left = cluster.processes()
        if not left:
            return
        for process in left:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1)
        time.sleep(0.1)
    raise AssertionError(f"{len(cluster.processes())} processes of the cluster are still there")


def tell_command(process: psutil.Process) -> list[str]:
    """The command line of a process, empty once it is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
