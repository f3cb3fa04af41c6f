"""The command line as a person or a script calls it: help, exit codes, and what goes to standard output."""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).with_name("surf2vec"))]
README = Path(__file__).parents[2] / "README.md"
COMMANDS = [
    "run", "plan", "similar", "explain", "infer", "tune", "pull", "restore", "forget", "word2vec", "repartition", "gc", "doctor",
    "sample-logs", "backfill", "promote", "rollback", "rejects",
]  # fmt: skip


def call(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


def kill_once(is_so: Callable[[], bool], *arguments: str) -> None:
    """Start a command and kill -9 it once it is so."""
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while not is_so():
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
        process.kill()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_stands_in_the_readme(command: str) -> None:
    result = call(command, "--help")
    assert result.returncode == 0
    assert "--root" in result.stdout
    assert "--json" in result.stdout
    assert f"surf2vec {command}" in README.read_text()


def test_the_readme_names_no_command_that_there_is_not() -> None:
    named = set(re.findall(r"bin/surf2vec ([a-z0-9-]+)", README.read_text()))
    assert named == set(COMMANDS)


def test_unknown_options_and_settings_exit_2_with_the_way_out() -> None:
    result = call("run", "--rot")
    assert (result.returncode, "--root" in result.stderr) == (2, True)
    result = call("run", "--set", "train.epoch=2", "--json")
    assert result.returncode == 2
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "bad_config"
    assert "train.epochs" in error["message"]


@pytest.mark.parametrize(
    "command",
    [
        ["similar", "ann"],
        ["explain", "ann"],
        ["forget"],
        ["doctor"],
        ["repartition"],
        ["gc"],
        ["rollback"],
        ["rejects"],
    ],
)
def test_a_folder_that_is_no_root_exits_2(command: list[str], tmp_path: Path) -> None:
    result = call(*command, "--root", str(tmp_path / "nothing"), "--json")
    assert result.returncode == 2
    assert "no surf2vec root" in json.loads(result.stdout)["error"]["message"]
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "nothing").exists()


def test_credentials_in_a_url_are_refused_before_anything_keeps_them(tmp_path: Path) -> None:
    result = call("run", "--root", str(tmp_path / "root"), "--logs", "s3://me:hunter2@bucket/*.csv", "--json")
    assert result.returncode == 2
    assert "has credentials in it" in json.loads(result.stdout)["error"]["message"]
    assert "hunter2" not in result.stdout + result.stderr
    assert not (tmp_path / "root").exists()


def test_missing_columns_are_told_at_once_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("host,page,when\nu,/a,1\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = call("run", "--root", str(tmp_path / "root"), "--logs", str(tmp_path / "a.csv"), "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 2
    settings = "--set ingest.columns.user=host --set ingest.columns.url=page --set ingest.columns.time=when"
    assert settings in json.loads(result.stdout)["error"]["message"]
    assert (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    )  # seconds of work: others use the machine
    assert not (tmp_path / "root").exists()


def test_sample_logs_prints_one_object(tmp_path: Path) -> None:
    result = call(
        "sample-logs", "--users", "50", "--days", "2", "--items", "40", "--out", str(tmp_path / "logs"), "--json"
    )
    assert result.returncode == 0
    assert json.loads(result.stdout)["users"] == 50
    assert len(list((tmp_path / "logs").glob("*.csv"))) == 2


def test_a_format_that_there_is_not_exits_2(tmp_path: Path) -> None:
    result = call("sample-logs", "--out", str(tmp_path), "--format", "xml")
    assert result.returncode == 2
    assert "csv, jsonl, parquet, combined" in result.stderr
