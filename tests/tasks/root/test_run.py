"""The root, its lock, and a run's record: a step that ended is answered, not done again."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from surf2vec.tasks.registry.promotion import lock_aliases
from surf2vec.tasks.root.records import GateStep, IngestStep, TrainStep
from surf2vec.tasks.root.run import Root, Run, lock_root, open_root
from surf2vec.trainer.errors import DamageError, ResourceError


class Counter:
    """A step that counts how often it is done."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> TrainStep:
        self.calls += 1
        return TrainStep(generation=self.calls)


def test_a_step_is_done_once_for_its_inputs(tmp_path: Path) -> None:
    run, step = Run(Root(tmp_path), "r1"), Counter()
    first = run.step(TrainStep, "inputs-1", step)
    before = run.record_path.read_bytes()
    assert run.step(TrainStep, "inputs-1", step) == first
    assert run.record_path.read_bytes() == before
    assert run.step(TrainStep, "inputs-2", step).generation == 2
    assert (run.record().require(TrainStep).seconds or 0) >= 0


def test_a_step_that_failed_is_done_again(tmp_path: Path) -> None:
    run = Run(Root(tmp_path), "r1")
    with pytest.raises(ResourceError):
        run.step(TrainStep, "x", mock.Mock(side_effect=ResourceError("disk full")))
    assert run.record().steps.ended() == {}
    assert run.step(TrainStep, "x", Counter()).generation == 1


def test_a_step_may_say_its_own_seconds(tmp_path: Path) -> None:
    assert Run(Root(tmp_path), "r1").step(IngestStep, "", lambda: IngestStep(seconds=12.5)).seconds == 12.5


def test_compiling_is_no_part_of_a_steps_seconds(tmp_path: Path) -> None:
    def compile_and_train() -> TrainStep:
        time.sleep(0.3)
        return TrainStep(compile_seconds=0.3)

    started = time.monotonic()
    step = Run(Root(tmp_path), "r1").step(TrainStep, "", compile_and_train)
    assert step.seconds is not None
    assert 0 <= step.seconds <= time.monotonic() - started - 0.3


def test_a_verdict_that_is_the_same_again_changes_no_byte(tmp_path: Path) -> None:
    """So that what was sent of the record is still what would be sent: a night that was cut off judges again."""
    run, verdicts = Run(Root(tmp_path), "r1"), ["passed", "passed", "held"]

    def judge() -> GateStep:
        time.sleep(0.01 * len(verdicts))
        return GateStep(verdict=verdicts.pop(0), days={"2026-01-01": 3}, metrics={"gate_users": 1.0})

    first = run.step(GateStep, "x", judge)
    before = run.record_path.read_bytes()
    run.reopen(GateStep)
    assert run.step(GateStep, "x", judge) == first
    assert run.record_path.read_bytes() == before
    run.reopen(GateStep)
    assert run.step(GateStep, "x", judge).verdict == "held"


def test_a_torn_record_is_named(tmp_path: Path) -> None:
    run = Run(Root(tmp_path), "r1")
    run.update(created_at="2026-01-01")
    run.record_path.write_text('{"run_id": "r')
    with pytest.raises(DamageError, match=r"run.json is not readable as JSON"):
        run.record()


def test_a_root_where_a_file_is_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "root"):
        with pytest.raises(ResourceError, match="use another --root"):
            open_root(path)


def test_writers_wait_for_each_other_and_a_dead_ones_lock_is_free(tmp_path: Path) -> None:
    child = (
        "import sys; from pathlib import Path; from surf2vec.tasks.root.run import Root, lock_root\n"
        f"with lock_root(Root(Path({str(tmp_path)!r})), 'run'): print('locked', flush=True); sys.stdin.read()"
    )
    waited: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"locked\n"

        def kill(message: str) -> None:
            waited.append(message)
            process.kill()

        started = time.monotonic()
        with lock_root(Root(tmp_path), "run", kill):
            assert time.monotonic() - started < 10
    assert f"process {process.pid}, run" in waited[0]


@pytest.mark.parametrize(
    ("folder", "umask", "expected"),
    [(None, 0o022, 0o600), (0o700, 0o022, 0o600), (0o750, 0o022, 0o640), (0o755, 0o077, 0o600), (0o2770, 0o007, 0o660)],
)
def test_files_of_a_root_are_open_to_whom_its_folder_is(
    tmp_path: Path, folder: int | None, umask: int, expected: int
) -> None:
    path = tmp_path / "above" / "root"
    before = os.umask(umask)
    try:
        if folder is not None:
            path.mkdir(parents=True)
            path.chmod(folder)
        root = open_root(path)
        assert stat.S_IMODE(path.stat().st_mode) == (folder or 0o700)
        with lock_root(root, "run"), lock_aliases(root):
            Run(root, "r").update(command="x")
            subprocess.run([sys.executable, "-c", f"open({str(path / 'child')!r}, 'w')"], check=True)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    files = [one for one in path.rglob("*") if one.is_file()]
    assert {one.name: stat.S_IMODE(one.stat().st_mode) for one in files} == dict.fromkeys(
        (".lock", ".aliases.lock", "run.json", "child"), expected
    )
