"""A run's record: what is written is what was recorded, and damage is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.root.records import (
    CorpusStep,
    EvaluateStep,
    ExportStep,
    GateStep,
    IngestStep,
    RegisterStep,
    RunRecord,
    SettleStep,
    Steps,
    TrainStep,
    parse_run_record,
)
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.errors import DamageError
from surf2vec.trainer.system.files import read_json, write_json

RECORD = r"""
{
"request": "fce759bd5bae956c",
"base": {"full_until": "2026-01-01", "release": "5295cab8534a", "space_id": "5295cab8534a",
"window_id": "53e2a88c3fad6a0e"},
"champion": "5295cab8534a",
"command": "surf2vec run --logs /data/day0.csv --logs /data/day1.csv",
"config": {"publish": {"tracking_uri": null, "model_name": "surf2vec-users"}},
"created_at": "2026-11-25T02:45:52+00:00",
"full_because": null,
"full_until": "2026-01-01",
"retained": null,
"run_id": "b820c389cc63",
"space": {"full_until": "2026-01-01", "release": "5295cab8534a", "space_id": "5295cab8534a",
"window_id": "53e2a88c3fad6a0e"},
"start": "after release 5295cab8534a, decay 0.9, epochs 2",
"window_id": "827e035517eca820",
 "steps": {
  "corpus": {"base": "53e2a88c3fad6a0e", "bytes": 12129, "digest": "827e035517eca820",
  "funnel": [["users in the window", 40], ["users kept", 40]], "num_changed": 40, "num_held_out": 40, "num_items": 30,
  "num_left": 0, "num_new_items": 0, "num_new_users": 0, "num_tokens": 615, "num_users": 40, "partitions": 8,
  "seconds": 25.727, "since": "2026-01-01", "undated": false, "until": "2026-01-02", "window_id": "827e035517eca820"},
  "evaluate": {"comparison": {"champion": "5295cab8534a", "champion_coverage": 1.0, "coverage": 1.0,
  "num_items": 30, "num_users": 40, "ranks": "runs/b820c389cc63/ranks.npy"},
  "digest": "b820c389cc63", "metrics": {"coverage_at_20": 1.0, "hit_at_10": 0.45, "hit_at_20": 1.0,
  "mrr_at_20": 0.1596}, "num_users": 40, "seconds": 8.156},
  "export": {"bytes": 13141, "digest": "b820c389cc63", "dtype": "float32",
  "export_dir": "/data/root/export/b820c389cc63", "index_kind": "flat-fp16", "index_seconds": 0.503, "metrics": {},
  "num_items": 30, "num_users": 40, "release": "b820c389cc63", "seconds": 17.251, "vector_size": 16},
  "gate": {"champion": "5295cab8534a", "days": {"2026-01-01": 320, "2026-01-02": 320},
  "digest": "c02ded6dc11f477b4385435f2dc898de9c3162a82d21ad297a1a5e6378faa08d", "held_by": [],
  "metrics": {"gate_champion": 1.0, "gate_items": 1.0}, "passes": true, "seconds": 11.844, "table": [{"limit": ">= 1",
  "rule": "the champion is the one that the night began with (1: yes)", "tonight": "1", "verdict": "passed"}],
  "verdict": "passed"},
  "ingest": {"digest": "", "events": 640, "formats": {"csv": 2}, "left_out": {}, "lines": 640, "many_queries": [],
  "num_rejected": 0, "rejected": {}, "seconds": 23.667, "sources_known": 1, "sources_new": 1, "sources_replaced": 0,
  "times": {"text with zone": 2}},
  "register": {"digest": "625f6cd29b76d4385fbd4ebe92e985c843014f279ee44f90a4294b97055568e5",
  "mlflow_page": null, "mlflow_run_id": "0fcddef737854a3184908ef39f574914", "model_name": "surf2vec-users",
  "model_version": 2, "seconds": 31.033, "storage": "copy", "tracking_uri": "sqlite:////data/root/mlflow.db"},
  "report": {"digest": "625f6cd29b76d4385fbd4ebe92e985c843014f279ee44f90a4294b97055568e5",
  "report": "/data/root/runs/b820c389cc63/report.html", "seconds": 9.88},
  "settle": {"digest": "b820c389cc63", "generation": 6, "kind": "incremental", "seconds": 5.409,
  "space_id": "5295cab8534a"},
  "train": {"best": null, "bytes_read": 41624, "bytes_written": 41624, "commit_stall": 0.2016,
  "compile_seconds": 0.0149, "curve": [{"alpha": 0.0391, "epoch": 0.125, "heldout_loss": 3.9163, "loss": 3.2705,
  "seconds": 1.52, "tokens": 42, "tokens_per_second": 27.6247}], "digest": "b820c389cc63", "generation": 4,
  "heldout_loss": 3.98, "kernel": "cpu", "kernel_reason": "numba on 1 thread, deterministic", "loss": 3.3448,
  "num_commits": 1, "num_processes": 1, "peak_bytes": 434954240, "plan": {"num_chunks": 1,
  "reasons": ["all users fit"]}, "seconds": 21.282, "stall": 0.1648, "stopped_after_epoch": null, "tokens": 1102,
  "tokens_per_second": 387.25, "train_seconds": 2.8457}
 }
}
"""
"""The second night of a root; some lists are shortened."""


def read_example(tmp_path: Path) -> Run:
    run = Run(Root(tmp_path), "b820c389cc63")
    write_json(run.record_path, json.loads(RECORD))
    return run


def test_a_record_is_read(tmp_path: Path) -> None:
    record = read_example(tmp_path).record()
    assert record.base
    assert (record.base.release, record.start[:5], record.champion) == ("5295cab8534a", "after", "5295cab8534a")
    assert record.require(IngestStep).formats == {"csv": 2}
    assert (record.require(CorpusStep).num_changed, record.require(CorpusStep).funnel[-1]) == (40, ("users kept", 40))
    assert record.require(TrainStep).plan["num_chunks"] == 1
    comparison = record.require(EvaluateStep).comparison
    assert comparison
    assert (comparison.champion, comparison.num_users) == ("5295cab8534a", 40)
    assert (record.require(SettleStep).kind, record.require(ExportStep).num_items) == ("incremental", 30)
    assert (record.require(GateStep).is_held, record.require(RegisterStep).model_version) == (False, 2)
    assert record.setting("publish", "model_name") == "surf2vec-users"
    assert record.setting("publish", "of_a_later_version") is None


def test_a_record_that_is_written_again_has_what_was_recorded(tmp_path: Path) -> None:
    run, old = read_example(tmp_path), json.loads(RECORD)
    run.update(command="another")
    assert read_json(run.record_path) == old | {"command": "another"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"run_id": "r"}, "steps: field required; it was altered"),
        ([], "it: input should be a valid dictionary"),
        ({"run_id": "r", "steps": {"fly": {}}}, "steps.fly is not known: it was altered, or is of a newer version"),
        ({"run_id": "r", "steps": {"train": {"wings": 2}}}, "steps.train.wings is not known"),
        (
            {"run_id": "r", "steps": {"train": {"tokens": "many"}}},
            "steps.train.tokens: input should be a valid integer",
        ),
        ({"run_id": "r", "steps": {"gate": {}}, "mood": "good"}, "mood is not known"),
        (
            {"run_id": "r", "steps": {"evaluate": [], "settle": {}}},
            "steps.evaluate: input should be a valid dictionary",
        ),
    ],
)
def test_what_is_no_record_is_damage_and_named(tmp_path: Path, values: Any, told: str) -> None:
    run = Run(Root(tmp_path), "r")
    write_json(run.record_path, values)
    with pytest.raises(
        DamageError, match=f"run.json is not the record of a run: {told}.*; remove {run.folder} and run again"
    ):
        run.record()


def test_a_record_from_elsewhere_says_where_from() -> None:
    with pytest.raises(DamageError, match="^run.json of run r in the registry is not the record of a run: "):
        parse_run_record({}, "run.json of run r in the registry")


def test_a_step_that_has_to_be_there(tmp_path: Path) -> None:
    record = RunRecord(run_id="r", steps=Steps(train=TrainStep(tokens=3)))
    assert record.require(TrainStep).tokens == 3
    with pytest.raises(DamageError, match="the record of run r has no step 'register'"):
        record.require(RegisterStep)


def test_steps_that_are_gone_are_kept_apart(tmp_path: Path) -> None:
    run = read_example(tmp_path)
    run.forget_steps()
    record = run.record()
    assert list(record.steps.ended()) == ["ingest"]
    assert "train" in record.gone_steps.ended()
    run.record_steps(TrainStep(tokens=1))
    run.forget_steps()
    assert run.record().gone_steps.train == TrainStep(tokens=1)
