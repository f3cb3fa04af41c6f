"""Tries the disks that a power loss may leave: doctor looks, the same command runs again, and what comes of it is compared."""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surf2vec.tasks.root.run import Root, use_temporary_folder
from surf2vec.tasks.upkeep.doctor import examine
from surf2vec.trainer.errors import SurfError
from surf2vec.trainer.store.writer import examine_store
from surf2vec.trainer.system import files
from tests.faults.faulty_trainer import SAYS_END
from tests.faults.power_loss.commands import COMMANDS, Command, check_commits
from tests.faults.power_loss.disk import Disk, Tree, put_on_disk
from tests.faults.power_loss.losses import Loss, draw_losses, lose_power
from tests.faults.power_loss.recorder import record
from tests.faults.power_loss.worlds import logs_of

PATIENCE_SECONDS = 240
SAME, REFUSED = "same", "refused"
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.faults.power_loss.preload"])


@dataclass
class Recorded:
    """A command's undisturbed run: its world before, every step, and what came of it."""

    name: str
    command: Command
    world: Path
    disk: Disk
    expected: Any
    expected_held: Any

    def count_reported(self, point: int) -> int:
        """The commits that a trainer had reported by then."""
        return sum(SAYS_END in text for at, text in self.disk.marks if at <= point)


@dataclass
class Tally:
    """losses: those drawn; disks: different ones of them; outcomes: of the disks; faults: what should never be, with its loss."""

    losses: int = 0
    disks: int = 0
    steps: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


def record_command(name: str, world: Path) -> Recorded:
    """Prepare the world, and run the command in it under the recorder."""
    command = COMMANDS[name]
    world.mkdir(parents=True)
    way = in_process if command.has_registry else _call  # MLflow keeps the database open
    way(_call, command.prepare, world)
    arguments = [sys.executable, "-m", "tests.faults.power_loss.commands", name, str(world)]
    (world / "tmp").mkdir()
    with tempfile.TemporaryDirectory() as folder:
        disk = record(arguments, world, Path(folder) / "log", TMPDIR=str(world / "tmp"))
    held, expected = (way(_call, read, world) for read in (command.held, command.read))
    return Recorded(name, command, world, disk, expected, held)


def try_losses(recorded: Recorded, losses: Iterable[Loss], keep: Path | None = None, run_every: int = 1) -> Tally:
    """Try the disk after each loss; those that are the same are tried once.

    keep: a folder for disks that show a fault. run_every: the command runs again on one of so many disks; on all of them
    doctor looks, and commits are checked.
    """
    tally, seen = Tally(steps=len(recorded.disk.steps)), set()
    started = time.monotonic()
    for loss in losses:
        tally.losses += 1
        tree = lose_power(recorded.disk, loss)
        key = hash(tuple((path, node.kind, node.content) for path, node in tree.items()))
        is_over, num_reported = loss.point == len(recorded.disk.steps), recorded.count_reported(loss.point)
        if (key, is_over, num_reported) in seen:
            continue
        seen.add((key, is_over, num_reported))
        tally.disks += 1
        outcome = try_disk(recorded, tree, is_over, num_reported, runs=tally.disks % run_every == 0)
        kind = outcome.split(":", 1)[0]
        tally.outcomes[kind] += 1
        if kind == REFUSED:
            tally.refusals[outcome[:200]] += 1
        elif kind != SAME:
            tally.faults.append(f"{recorded.name} {loss}: {outcome}")
            if keep:
                folder = keep / f"{recorded.name}-{loss}".replace(" ", "-").replace(":", "-")
                folder.mkdir(parents=True, exist_ok=True)
                put_on_disk(tree, folder)
    tally.seconds = time.monotonic() - started
    return tally


def try_disk(recorded: Recorded, tree: Tree, is_over: bool, num_reported: int = 0, *, runs: bool = True) -> str:
    """`same`, `refused: MESSAGE`, or what is wrong. is_over: the command had said that it is done."""
    put_on_disk(tree, recorded.world)
    way = in_process if recorded.command.has_registry else _call
    kind, found, held = way(_try, recorded.command, recorded.world, is_over, num_reported, runs)
    if kind != SAME:
        return f"{kind}: {found}"
    if is_over and held != recorded.expected_held:
        return f"lost: though it was done: {describe_difference(held, recorded.expected_held)}"
    return (
        SAME
        if found == recorded.expected or not runs
        else f"different: {describe_difference(found, recorded.expected)}"
    )


def _try(command: Command, world: Path, is_over: bool, num_reported: int, runs: bool) -> tuple[str, Any, Any]:
    """(`same`, what came of it, what was held before), or what went wrong, and how."""
    files._verify_bytes.cache_clear()
    with use_temporary_folder(world / "tmp"):
        return _look_and_run(command, world, is_over, num_reported, runs)


def _look_and_run(command: Command, world: Path, is_over: bool, num_reported: int, runs: bool) -> tuple[str, Any, Any]:
    step = "doctor"
    try:
        look(world)
        step = "reading what was held"
        held = command.held(world) if is_over else None
        if command is COMMANDS["commit"]:
            check_commits(world, num_reported)
        if not runs:
            return SAME, None, held
        step = "command"
        command.run(world)
        step = "doctor afterwards"
        if damage := look(world):
            return "damaged", damage[:3], None
        step = "reading"
        return SAME, command.read(world), held
    except SurfError as error:
        return REFUSED, f"{type(error).__name__} of {step}: {error}", None
    except Exception:
        return f"traceback of {step}", traceback.format_exc()[-1500:], None


def look(world: Path) -> list[str]:
    """What doctor calls damage: in the root, and in a store beside it."""
    found: list[tuple[str, str, str]] = []
    if (world / "store").exists():
        found += examine_store(world / "store")
    if (world / "root").exists():
        found += [(one.level, one.place, one.message) for one in examine(Root(world / "root"))]
    return [f"{place}: {message}" for level, place, message in found if level == "damage"]


def describe_difference(found: Any, expected: Any, place: str = "") -> str:
    """Where two results first differ."""
    if type(found) is type(expected):
        if isinstance(found, dict):
            for key in sorted(found.keys() | expected.keys(), key=str):
                if found.get(key) != expected.get(key):
                    return describe_difference(found.get(key), expected.get(key), f"{place}/{key}")
        if isinstance(found, list | tuple) and len(found) == len(expected):
            for number, (one, other) in enumerate(zip(found, expected, strict=True)):
                if one != other:
                    return describe_difference(one, other, f"{place}/{number}")
    return f"at {place or '/'}: {str(found)[:400]} instead of {str(expected)[:400]}"


def _call(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns in a process of its own, forked where all modules are loaded and nothing was done yet."""
    here, there = processes.Pipe(duplex=False)
    process = processes.Process(target=_answer, args=(there, work, arguments))
    process.start()
    there.close()
    try:
        if not here.poll(PATIENCE_SECONDS):
            process.kill()
            return "hangs", f"{PATIENCE_SECONDS} seconds", None
        answer, error = here.recv()
    except EOFError:
        process.join()
        return "died", f"exit code {process.exitcode}", None
    process.join()
    if error:
        raise RuntimeError(error)
    return answer


def _answer(pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    warnings.simplefilter("ignore")
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    try:
        pipe.send((work(*arguments), None))
    except BaseException:
        pipe.send((None, traceback.format_exc()))


def try_command(name: str, world: Path, num: int, seed: int, keep: Path | None = None) -> Tally:
    """Record a command in a new world and try `num` losses of power, drawn by the seed. The world is removed."""
    try:
        recorded = record_command(name, world)
        return try_losses(recorded, draw_losses(recorded.disk, num, seed), keep)
    finally:
        for folder in (world, logs_of(world)):
            shutil.rmtree(folder, ignore_errors=True)
