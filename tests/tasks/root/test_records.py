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
from tests.tasks.report.test_report import RECORD as REPORTED

BASE = {
    "full_until": "2026-01-01",
    "release": "5295cab8534a",
    "space_id": "5295cab8534a",
    "window_id": "53e2a88c3fad6a0e",
}
STEPS: dict[str, Any] = REPORTED["steps"]
RECORD: dict[str, Any] = REPORTED | {
    "request": "fce759bd5bae956c", "base": BASE, "space": BASE, "champion": "5295cab8534a", "full_because": None,
    "config": {"publish": {"tracking_uri": None, "model_name": "surf2vec-users"}}, "full_until": "2026-01-01",
    "retained": None, "start": "after release 5295cab8534a, decay 0.9, epochs 2", "window_id": "827e035517eca820",
    "steps": STEPS | {
        "ingest": STEPS["ingest"] | {"digest": "", "many_queries": []},
        "corpus": STEPS["corpus"] | {"base": "53e2a88c3fad6a0e", "num_changed": 40, "num_left": 0, "undated": False},
        "evaluate": STEPS["evaluate"] | {"comparison": {
            "champion": "5295cab8534a", "champion_coverage": 1.0, "coverage": 1.0, "num_items": 30, "num_users": 40,
            "ranks": "runs/b820c389cc63/ranks.npy",
        }},
        "settle": {"digest": "b820c389cc63", "generation": 6, "kind": "incremental", "seconds": 5.409, "space_id": "s"},
        "gate": STEPS["gate"] | {"days": {"2026-01-01": 320}, "metrics": {"gate_champion": 1.0}},
        "register": {"digest": "625f6c", "mlflow_page": None, "mlflow_run_id": "0fcd", "model_name": "surf2vec-users",
                     "model_version": 2, "seconds": 31.033, "storage": "copy", "tracking_uri": "sqlite:////data/mlflow.db"},
        "report": {"digest": "625f6c", "report": "/data/root/runs/b820c389cc63/report.html", "seconds": 9.88},
    },
}  # fmt: skip
"""The second night of a root."""


def read_example(tmp_path: Path) -> Run:
    run = Run(Root(tmp_path), "b820c389cc63")
    write_json(run.record_path, RECORD)
    return run


def test_a_record_is_read(tmp_path: Path) -> None:
    record = read_example(tmp_path).record()
    assert record.base
    assert (record.base.release, record.start[:5], record.champion) == ("5295cab8534a", "after", "5295cab8534a")
    assert record.require(IngestStep).formats == {"csv": 2}
    assert (record.require(CorpusStep).num_changed, record.require(CorpusStep).funnel[2]) == (40, ("tokens", 1_100_000))
    assert record.require(TrainStep).plan["num_chunks"] == 1
    comparison = record.require(EvaluateStep).comparison
    assert comparison
    assert (comparison.champion, comparison.num_users) == ("5295cab8534a", 40)
    assert (record.require(SettleStep).kind, record.require(ExportStep).num_items) == ("incremental", 40)
    assert (record.require(GateStep).is_held, record.require(RegisterStep).model_version) == (False, 2)
    assert record.setting("publish", "model_name") == "surf2vec-users"
    assert record.setting("publish", "of_a_later_version") is None


def test_a_record_that_is_written_again_has_what_was_recorded(tmp_path: Path) -> None:
    run, old = read_example(tmp_path), json.loads(json.dumps(RECORD))
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
