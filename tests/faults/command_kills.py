"""`kill -9` of whole commands, as a shell starts them, at random moments: the process tree, or the main process alone.

Afterwards the same command again must end as an undisturbed one, in the same world: the same bytes, aliases and records. No
process of the world may be left, and no temporary file or folder that is older than the command that went on.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.faults.power_loss import registry
from tests.faults.power_loss.commands import prepare_repartition, read_push, read_repartition
from tests.faults.power_loss.trial import describe_difference, in_process
from tests.faults.power_loss.worlds import logs_of

HERE = Path(__file__).parents[2]
PATIENCE_SECONDS = 600
GONE_WITHIN_SECONDS = 30  # a child notices within seconds that its parent has ended
FOREIGN = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")


@dataclass(frozen=True)
class Command:
    """prepare: makes the world; arguments: of the command line in it; read: what must come of it."""

    prepare: Callable[[Path], Any]
    arguments: Callable[[Path], list[str]]
    read: Callable[[Path], Any]


@dataclass
class Tally:
    """kills: those that met a command at work; of_trees: those of all its processes; faults: what should never be."""

    kills: int = 0
    of_trees: int = 0
    faults: list[str] = field(default_factory=list)
    undisturbed_seconds: float = 0.0
    slowest_seconds: float = 0.0
    seconds: float = 0.0


def set_all(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def run_push(world: Path) -> None:
    subprocess.run(command_line("push", world), env=environment(world), check=True, capture_output=True)


prepare_push = partial(registry.make_nights, gates=("FIRST", "PASSED"), between=run_push)
"""A release was pushed, and another serves by now."""


def prepare_backfill(world: Path) -> None:
    for day in (1, 2):
        registry.write_night(world, day)


def read_backfill(world: Path) -> Any:
    told, aliases, steps, *rest = registry.read_night(world)
    return told, aliases, len(steps), rest


def prepare_forget(world: Path) -> None:
    registry.prepare_forget(world)
    (world / "ids.txt").write_text(f"{registry.GONE}\n")


def in_root(world: Path, *arguments: str) -> list[str]:
    return [*arguments, "--root", str(world / "root")]


def backfill_arguments(world: Path) -> list[str]:
    days = ["--since", "2026-01-01", "--until", "2026-01-02", *set_all(registry.NIGHT)]
    return in_root(world, "backfill", "--logs", f"{logs_of(world)}/*.csv", *days)


KEPT = set_all(["publish.keep_releases=1"])
COMMANDS = {
    "run": Command(
        registry.prepare_second_night,
        lambda world: in_root(world, "run", "--logs", f"{logs_of(world)}/*.csv", *set_all(registry.NIGHT)),
        registry.read_night,
    ),
    "backfill": Command(prepare_backfill, backfill_arguments, read_backfill),
    "forget": Command(
        prepare_forget,
        lambda world: in_root(world, "forget", "--ids-file", str(world / "ids.txt")),
        registry.read_forget,
    ),
    "rollback": Command(
        registry.prepare_rollback, lambda world: in_root(world, "rollback", *KEPT), registry.read_registry
    ),
    "promote": Command(
        registry.prepare_promote,
        lambda world: in_root(world, "promote", "--override", "the data is right", *KEPT),
        registry.read_registry,
    ),
    "restore": Command(
        registry.prepare_restore,
        lambda world: in_root(
            world, "restore", "--from", registry.MODEL, "--tracking-uri", f"sqlite:///{world}/lost/mlflow.db"
        ),
        registry.read_restore,
    ),
    "pull": Command(
        registry.prepare_pull,
        lambda world: in_root(world, "pull", registry.MODEL, "--out", str(world / "out")),
        registry.read_pull,
    ),
    "push": Command(prepare_push, lambda world: in_root(world, "push", f"parquet://{world}/serving"), read_push),
    "gc": Command(registry.prepare_gc, lambda world: in_root(world, "gc", *KEPT), registry.read_gc),
    "repartition": Command(
        prepare_repartition, lambda world: in_root(world, "repartition", "--partitions", "8"), read_repartition
    ),
}


def command_line(name: str, world: Path) -> list[str]:
    return [sys.executable, "-m", "surf2vec.flows.cli", *COMMANDS[name].arguments(world)]


def environment(world: Path) -> dict[str, str]:
    """The world's own folder for temporary files also marks the processes that work in it."""
    (world / "tmp").mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return kept | {"TMPDIR": str(world / "tmp"), "PYTHONPATH": str(HERE)}


def list_processes(world: Path) -> Iterator[psutil.Process]:
    """Those that were started for a world, by any of its commands."""
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get("TMPDIR") == str(world / "tmp") and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if is_ours:
            yield process


def list_leftovers(world: Path, began_at: float) -> list[str]:
    """Temporary files and folders that are older than the command that went on."""
    places = [*(world / "tmp").iterdir(), *world.rglob("*.tmp"), *(world / "root" / ".tmp").glob("*")]
    return [
        str(path.relative_to(world)) for path in set(places) if path.name != ".tmp" and path.lstat().st_mtime < began_at
    ]


class World:
    """A folder that is put back as it was before each command; logs lie beside it, as a root knows them by their inodes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.path, self.kept = name, folder / "world", folder / "kept"
        self.path.mkdir(parents=True)
        in_process(COMMANDS[name].prepare, self.path)
        shutil.rmtree(self.path / "tmp", ignore_errors=True)
        self.path.rename(self.kept)

    def put_back(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.kept, self.path, symlinks=True)

    def start(self) -> "subprocess.Popen[bytes]":
        line = command_line(self.name, self.path)
        with open(self.path.with_name("told.txt"), "wb") as told:
            return subprocess.Popen(
                line,
                cwd=HERE,
                env=environment(self.path),
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
            )

    def read(self) -> Any:
        return in_process(COMMANDS[self.name].read, self.path)

    def told(self) -> str:
        return self.path.with_name("told.txt").read_text(errors="replace")


def kill_command(world: World, delay: float, of_tree: bool) -> bool:
    """Start the command and kill it so many seconds later; returns False if it had ended by then."""
    process = world.start()
    time.sleep(delay)
    if process.poll() is not None:
        return False
    ours = psutil.Process(process.pid)
    children = ours.children(recursive=True) if of_tree else []
    process.send_signal(signal.SIGKILL)
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    return True


def go_on(world: World, expected: Any) -> tuple[list[str], float]:
    """Run the same command again; returns what is wrong, and the seconds it took."""
    began_at = time.time()
    process = world.start()
    try:
        code = process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        for one in list_processes(world.path):
            one.kill()
        return [f"hangs: {PATIENCE_SECONDS} seconds; {world.told()[-300:]}"], PATIENCE_SECONDS
    seconds, faults = time.time() - began_at, []
    if code != 0 or "Traceback" in world.told():
        faults.append(f"exit code {code}: {world.told()[-600:]}")
    end = time.monotonic() + GONE_WITHIN_SECONDS
    while (left := list(list_processes(world.path))) and time.monotonic() < end:
        time.sleep(0.2)
    faults += [f"a process is left: {describe_process(one)}" for one in left]
    for one in left:
        one.kill()
    if leftovers := list_leftovers(world.path, began_at):
        faults.append(f"left over: {leftovers}")
    try:
        found = world.read()
    except RuntimeError as error:  # of the process that read
        return [*faults, f"cannot be read: {str(error)[-600:]}"], seconds
    if found != expected:
        faults.append(f"different: {describe_difference(found, expected)}")
    return faults, seconds


def describe_process(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error as error:
        return repr(error)


def try_kills(name: str, num: int, seed: int, folder: Path) -> Tally:
    """Kill a command `num` times, every second time the main process alone, each in the world as it was before."""
    started, tally, rng = time.monotonic(), Tally(), np.random.default_rng(seed)
    world = World(name, folder)
    world.put_back()
    expected, tally.undisturbed_seconds = observe(world)
    while tally.kills < num:
        of_tree, delay = tally.kills % 2 == 0, float(rng.uniform(0, tally.undisturbed_seconds))
        world.put_back()
        if not kill_command(world, delay, of_tree):
            continue
        tally.kills += 1
        tally.of_trees += of_tree
        faults, seconds = go_on(world, expected)
        tally.slowest_seconds = max(tally.slowest_seconds, seconds)
        what = "tree" if of_tree else "main process"
        tally.faults += [f"{name}, {what} killed after {delay:.2f} s: {fault}" for fault in faults]
    tally.seconds = time.monotonic() - started
    return tally


def observe(world: World) -> tuple[Any, float]:
    """What comes of the command undisturbed, and the seconds it takes."""
    began = time.monotonic()
    process = world.start()
    assert process.wait(PATIENCE_SECONDS) == 0, world.told()
    seconds = time.monotonic() - began
    return world.read(), seconds
