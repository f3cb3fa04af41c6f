"""Forgetting by the real command on a real log, killed on the way, with a late file, and beside copies that others registered."""

import json
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from surf2vec import commands
from surf2vec.commands import explain, forget
from surf2vec.flows.cli import app
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.pseudonyms import pseudonym
from surf2vec.trainer.errors import ConfigError, LeftElsewhereError
from surf2vec.trainer.events import ignore_event
from tests.flows.test_cli import COMMAND, call
from tests.roots.ingest import MEMORY_BYTES, read_events, write_log
from tests.roots.releases import read_users

SETTINGS = ["--set", "train.epochs=1", "--set", "train.vector_size=16", "--set", "train.threads=2"]
NUM_GOING = 40


def surf2vec(*arguments: str) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return json.loads(result.stdout)


def test_pseudonyms_are_what_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURF2VEC_TEST_KEY", "a key of 16 bytes")
    root, config = Root(tmp_path / "root"), load_config(None, ["ingest.user_key_env=SURF2VEC_TEST_KEY"])
    root.path.mkdir()
    log = write_log(tmp_path / "a.csv", *(f"{user},/a,2026-01-01" for user in ("ann", "bob", "bob")))
    ingest(root, [str(log)], config.ingest, 8, MEMORY_BYTES, 1, ignore_event)
    (tmp_path / "ids.txt").write_text("bob\n bob\nzoe\n")
    lines: list[tuple[str, str]] = []
    told = forget(
        tmp_path / "ids.txt", root.path, config=config, on_event=lambda name, values: lines.append((name, str(values)))
    )
    assert (told["events"], told["found"]) == (2, 0)
    assert (told["users_found"], told["users_not_found"]) == (1, 2)
    assert not any(name in json.dumps(told) for name in ("bob", "zoe"))
    [(_, message)] = [line for line in lines if line[0] == "private"]
    assert "' bob', 'zoe'; some have spaces or quotes around them" in message
    assert not any("zoe" in text for name, text in lines if name != "private")
    assert [user_id for user_id, *_ in read_events(root.path)] == [pseudonym("ann", b"a key of 16 bytes")]
    assert explain("bob", root.path, config=config)["forgotten_on"] is not None
    late = write_log(tmp_path / "late.csv", "bob,/a,2026-01-02")
    told = ingest(root, [str(late)], config.ingest, None, MEMORY_BYTES, 1, ignore_event)
    assert told["left_out"] == {"forgotten": 1}
    with pytest.raises(ConfigError, match="name the environment variable with the key"):
        forget(tmp_path / "ids.txt", root.path, on_event=ignore_event)


@pytest.mark.slow
def test_users_of_a_real_log_are_forgotten_though_it_is_killed(data_dir: Path, tmp_path: Path) -> None:
    root, log = str(tmp_path / "root"), tmp_path / "log.parquet"
    pl.read_parquet(data_dir / "wikispeedia_unfinished.parquet").sort("ts").head(30_000).write_parquet(log)
    before = surf2vec("run", "--root", root, "--logs", str(log), *SETTINGS)
    vectors = read_users(Path(before["export_dir"]))
    going = sorted(vectors)[:: len(vectors) // NUM_GOING][:NUM_GOING]
    (tmp_path / "ids.txt").write_text("\n".join([*going, "a stranger"]))
    forget = ["forget", "--root", root, "--ids-file", str(tmp_path / "ids.txt")]
    for seconds in (2.5, 6.0):
        with subprocess.Popen([*COMMAND, *forget], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
    told = surf2vec(*forget)
    assert (told["found"], told["users"]) == (0, NUM_GOING + 1)
    assert not any(user_id in json.dumps(told) for user_id in going)
    champion = surf2vec("pull", "models:/surf2vec-users@champion", "--root", root, "--out", str(tmp_path / "out"))
    after = read_users(tmp_path / "out")
    assert after.keys() == vectors.keys() - set(going)
    assert all((after[user_id] == vectors[user_id]).all() for user_id in after)
    assert champion["release"] != before["release"]
    assert surf2vec("doctor", "--root", root)["damage"] == 0
    num_events = len(read_events(Path(root)))

    rows = [f"{user},/late,2020-01-01T00:00:00Z" for user in (*going, "a newcomer")]
    late = write_log(tmp_path / "late.csv", *rows)
    night = surf2vec("run", "--root", root, "--logs", str(late), *SETTINGS, "--set", "gate.missing_days=3000")
    assert night["events"] == 1
    assert len(read_events(Path(root))) == num_events + 1
    assert not set(going) & read_users(Path(night["export_dir"])).keys()


LEFT = {
    "place": "registry: s3://bucket/1/m-7",
    "rows": 57,
    "found": 2,
    "used_by": ["models:/theirs/1"],
    "is_here": True,
}
RESULT: dict[str, Any] = {
    "users": 3, "events": 9, "found": 0, "release": "r2", "model_version": 2, "places": [], "remains": [], "elsewhere": [LEFT]
}  # fmt: skip


@pytest.mark.parametrize(("elsewhere", "code"), [([LEFT], 1), ([], 0)])
def test_it_is_no_clean_success_and_the_proof_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, elsewhere: list[Any], code: int
) -> None:
    result = RESULT | {"elsewhere": elsewhere}
    monkeypatch.setattr("surf2vec.tasks.forgetting.forget.forget", lambda *asked: result)
    (tmp_path / "sources.json").write_text("{}")
    told = CliRunner().invoke(app, ["forget", "--root", str(tmp_path), "--json"])
    assert (told.exit_code, json.loads(told.stdout)) == (code, result)
    named = "registry: s3://bucket/1/m-7 (not ours, still has 2 of these users, used by models:/theirs/1)"
    assert (named in told.stderr) == bool(elsewhere)
    told = CliRunner().invoke(app, ["forget", "--root", str(tmp_path)])
    assert ("registry: s3://bucket/1/m-7" in told.stdout) == bool(elsewhere)


def test_the_deployments_run_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from surf2vec.flows import nightly

    monkeypatch.setattr(commands, "forget", lambda *asked, **named: RESULT)
    monkeypatch.setattr(nightly.PrefectReporter, "step", lambda self, name: nullcontext())
    with pytest.raises(LeftElsewhereError, match="not ours, still has 2 of these users"):
        nightly.forget.fn(tmp_path, tmp_path / "ids.txt")
