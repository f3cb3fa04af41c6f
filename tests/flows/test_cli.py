"""The command line as a person or a script calls it: help, exit codes, and what goes to standard output."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from surf2vec.flows.cli import app
from surf2vec.flows.cli.command import print_result
from surf2vec.flows.cli.show import show_result
from surf2vec.tasks.night.reporter import print_event

COMMAND = [str(Path(sys.executable).with_name("surf2vec"))]
ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ODD = "\x1b[31mred\x07\u202e :cow: [bold]"
SHOWN = r"\x1b[31mred\x07\u202e :cow: [bold]"


def call(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


def as_options(settings: Iterable[str]) -> list[str]:
    """The options of a command for these settings."""
    return [part for setting in settings for part in ("--set", setting)]


def kill_once(is_so: Callable[[], bool], *arguments: str) -> None:
    """Start a command and kill -9 it once it is so."""
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while not is_so():
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
        process.kill()


def test_the_help_of_every_command_has_its_options_and_an_example_that_parses() -> None:
    for name, command in COMMANDS.items():
        program, own_name, *arguments = shlex.split((command.epilog or "").removeprefix("Example: "))
        assert (program, own_name, len(arguments) > 0) == ("surf2vec", name, True)
        command.make_context(name, arguments)  # raises for options that there are not, and where one is missing
        told = CliRunner().invoke(app, [name, "--help"]).stdout
        assert "--root" in told
        assert "--json" in told


def test_the_command_alone_prints_its_help_and_exits_0() -> None:
    alone, short, version = call(), call("-h"), call("--version")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert all(f" {command} " in alone.stdout for command in COMMANDS)
    assert "Example: surf2vec run --logs" in alone.stdout
    assert (short.returncode, short.stdout) == (0, alone.stdout)
    assert (version.returncode, re.fullmatch(r"\d+\.\d+\.\d+\n", version.stdout) is not None) == (0, True)
    short = call("gc", "-h")
    assert (short.returncode, "Example: surf2vec gc --dry-run" in short.stdout) == (0, True)


def test_a_bug_has_a_code_and_its_traceback() -> None:
    program = "from surf2vec.flows import cli; cli.app = lambda **options: 1 / 0; cli.main()"
    command = [sys.executable, "-c", program, "gc", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    error = json.loads(result.stdout)["error"]
    assert (result.returncode, error["code"]) == (1, "failed")
    assert error["message"].startswith("ZeroDivisionError: division by zero: this is a bug")
    assert "Traceback" in result.stderr


def test_completion_installs_and_completes(tmp_path: Path) -> None:
    def ask(script: str, **environment: str) -> str:
        environment |= {"HOME": str(tmp_path), "PATH": f"{Path(COMMAND[0]).parent}:/usr/bin:/bin"}
        done = subprocess.run(
            ["bash", "-c", f"{script}; exit $?"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    ask("surf2vec --install-completion")
    assert "surf2vec" in (tmp_path / ".bashrc").read_text()
    assert ask("surf2vec", _SURF2VEC_COMPLETE="complete_bash", COMP_WORDS="surf2vec do", COMP_CWORD="1") == "doctor\n"


@pytest.mark.parametrize("arguments", [["--rot"], ["nonsense"], ["similar"], ["similar", "ann", "-k", "0"]])
def test_a_usage_error_is_one_json_object(arguments: list[str]) -> None:
    result = call(*arguments, "--json")
    assert (result.returncode, json.loads(result.stdout)["error"]["code"]) == (2, "bad_call")


def test_the_documents_name_no_command_that_there_is_not() -> None:
    named = {
        name for path in DOCUMENTS for name in re.findall(r"(?:bin/|`)surf2vec ([a-z][a-z0-9-]*)", path.read_text())
    }
    assert named == set(COMMANDS)


def test_unknown_options_and_settings_exit_2_with_the_way_out() -> None:
    assert "--root" in call("run", "--rot").stderr
    result = call("run", "--set", "train.epoch=2", "--json")
    assert result.returncode == 2
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "bad_config"
    assert "train.epochs" in error["message"]


@pytest.mark.parametrize(
    "command", ["similar ann", "explain ann", "forget", "doctor", "repartition", "gc", "rollback", "rejects"]
)
def test_a_folder_that_is_no_root_exits_2(command: str, tmp_path: Path) -> None:
    result = call(*command.split(), "--root", str(tmp_path / "nothing"), "--json")
    assert result.returncode == 2
    assert "not a surf2vec root" in json.loads(result.stdout)["error"]["message"]
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("logs", "code", "message"),
    [
        ("s3://me:hunter2@bucket/*.csv", "bad_input", "has credentials in it"),
        ("/none*.csv", "bad_input", "no file matches"),
    ],
)
def test_logs_that_cannot_be_read_are_refused_before_anything_is_kept(
    tmp_path: Path, logs: str, code: str, message: str
) -> None:
    result = call("run", "--root", str(tmp_path / "root"), "--logs", logs, "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.returncode, error["code"], message in error["message"]) == (2, code, True)
    assert not any(word in result.stdout + result.stderr for word in ("hunter2", "Traceback"))
    assert not (tmp_path / "root").exists()


def test_missing_columns_are_told_at_once_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("visitor,page,when\nu,/a,1\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = call("run", "--root", str(tmp_path / "root"), "--logs", str(tmp_path / "a.csv"), "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 2
    settings = "--set ingest.columns.user=visitor --set ingest.columns.url=page --set ingest.columns.time=when"
    assert settings in json.loads(result.stdout)["error"]["message"]
    # Seconds of work: others use the machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
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


def test_an_error_shows_control_characters_as_escapes_and_json_has_them_as_they_are(tmp_path: Path) -> None:
    result = call("doctor", "--root", str(tmp_path / ODD), "--json")
    assert (result.returncode, ODD in json.loads(result.stdout)["error"]["message"]) == (2, True)
    assert SHOWN in result.stderr
    result = call("doctor", "--root", str(tmp_path / ODD))
    assert SHOWN in result.stderr
    assert "\x1b" not in result.stderr


def test_ids_and_pages_are_shown_with_their_control_characters_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"score": 0.5, "url": ODD}
    result = {
        "items": [row],
        "seen": [ODD],
        "corpus": {"rows": 1_234, "item": ODD},
        "releases": [{"pages": [row], "bytes": 2_000}],
    }
    print_result(result, False, show_result)
    print_event("log", {"message": f"{ODD}\nerror: forged"})
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "items", "  score  url", f"  0.5    {SHOWN}", "seen", f"  {SHOWN}", "corpus", "  rows  1,234", f"  item  {SHOWN}",
        "releases", "  bytes  2.0 kB", "  pages", "    score  url", f"    0.5    {SHOWN}",
    ]  # fmt: skip
    assert rf"{SHOWN}\nerror: forged" in err.replace("\n", "")
    assert not any(char in out + err for char in "\x1b\x07\u202e")
    print_result({"findings": [ODD]}, True, show_result)
    assert json.loads(capsys.readouterr().out) == {"findings": [ODD]}


@pytest.mark.parametrize(
    ("arguments", "logs"),
    [
        (["--logs", "a.csv", "b.csv", "c.csv"], ["a.csv", "b.csv", "c.csv"]),
        (["--logs", "a.csv", "b.csv", "--root", "r", "--logs", "*.tsv"], ["a.csv", "b.csv", "*.tsv"]),
        (["--full", "--logs", "a.csv"], ["a.csv"]),
    ],
)
def test_a_glob_that_the_shell_resolved_gives_all_its_files(arguments: list[str], logs: list[str]) -> None:
    assert COMMANDS["run"].make_context("run", arguments).params["logs"] == logs


@pytest.mark.parametrize("arguments", [["a.csv"], ["--root", "r", "a.csv"], ["--logs", "a.csv", "--full", "b.csv"]])
def test_an_argument_elsewhere_is_refused(arguments: list[str]) -> None:
    with pytest.raises(Exception, match="unexpected extra argument"):
        COMMANDS["run"].make_context("run", arguments)
