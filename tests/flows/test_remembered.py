"""A root that was given its settings once: no later command, nor the schedule, is given them again."""

import json
from pathlib import Path

import pytest

from surf2vec.flows.nightly import nightly, watch
from surf2vec.tasks.night.config import load_config
from tests.flows.test_cli import as_options, call
from tests.flows.test_nightly import FAST, run, write_logs

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]
GIVEN = (
    "ingest.columns.user=who",
    "ingest.columns.url=page",
    "ingest.timezone=Europe/Berlin",
    "publish.model_name=shop",
)


@pytest.mark.usefixtures("_prefect")
def test_no_command_after_the_first_needs_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, log, later = tmp_path / "root", write_logs(tmp_path / "a.csv"), tmp_path / "b.csv"
    log.write_text(log.read_text().replace("user_id,url", "who,page"))
    later.write_text("who,page,ts\n" + "".join(f"new,/page/{n},2026-01-05T00:00:{n:02d}Z\n" for n in range(5)))
    config = load_config(None, [setting for setting in FAST if "=" in setting])
    with monkeypatch.context() as without:
        without.delenv("PREFECT_API_URL")
        made = run(root, "--logs", str(log), *as_options(GIVEN))
        assert made["model_name"] == "shop"
        assert run(root)["run_id"] == run(root, "--logs", str(log))["run_id"] == made["run_id"]
        for command in (
            ("run", "--dry-run", "--logs", str(later), *FAST),
            ("infer", "--logs", str(later), "--out", str(tmp_path / "v.parquet")),
            ("similar", log.read_text().split("\n")[1].split(",")[0]),
            ("rejects",),
            ("gc", "--dry-run"),
            ("backfill", "--since", "2026-01-02", "--until", "2026-01-02", *FAST),
            ("run", "--logs", str(log), str(later), *FAST),
        ):
            done = call(*command, "--root", str(root), "--json")
            assert done.returncode in (0, 3), (command, done.stderr)
        newest = json.loads(done.stdout)
    assert newest["run_id"] != made["run_id"]
    assert (
        nightly(root=root, logs=[str(log)], config=config)["run_id"] == newest["run_id"]
    )  # of the schedule and the form
    assert watch(root=root)["model_name"] == "shop"
    done = call("run", "--root", str(root), "--logs", str(log), *FAST, "--json")  # a flow run, as a server is named
    assert json.loads(done.stdout)["run_id"] == newest["run_id"], done.stderr
