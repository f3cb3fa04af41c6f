"""A search: its trials, what a killed one leaves, its runs in MLflow, and the file that a run takes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import surf2vec.tasks.tuning.study
import surf2vec.tasks.tuning.tune
from surf2vec import commands
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.corpus.folder import newest_corpus
from surf2vec.tasks.night.config import PipelineConfig, load_config
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.tuning.study import Search
from surf2vec.tasks.tuning.tune import tune
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, InputError, ResourceError, TrainingError
from tests.data.corpora import planted_histories, write_corpus
from tests.roots.ingest import write_log

TRAIN = TrainConfig(vector_size=8, epochs=3, threads=1, alpha=0.02, min_alpha=0.002, negative=5)
NUM_USERS = 800
WINDOW = "0123456789abcdef"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root with a corpus."""
    root = Root(tmp_path_factory.mktemp("made"))
    write_corpus(root.corpus(WINDOW), planted_histories(NUM_USERS), partitions=8)
    return root


@pytest.fixture
def root(tmp_path: Path, made: Root) -> Root:
    shutil.copytree(made.path, tmp_path / "root")
    return Root(tmp_path / "root")


def ask(root: Root, trials: int = 3, train: TrainConfig = TRAIN, **asked: Any) -> Search:
    settings = {"out": root.path / "tuned.toml", "command": "surf2vec tune"} | asked
    return Search(trials=trials, train=train, publish=PublishConfig(), memory_bytes=4 * 10**9, **settings)


def messages(lines: list[str]) -> Any:
    return lambda name, values: lines.append(values["message"]) if name == "log" else None


def record_of(root: Root) -> dict[str, Any]:
    [path] = (root.path / "tune").glob("tune-*.json")
    return json.loads(path.read_text())


def tried(root: Root) -> list[tuple[dict[str, Any], float]]:
    return [(trial["settings"], trial["metrics"]["mrr"]) for trial in record_of(root)["trials"]]


def runs_of(root: Root) -> list[Any]:
    client = tracking.MlflowClient(root.tracking_uri, root.tracking_uri)
    experiment = client.get_experiment_by_name("surf2vec")
    return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])


def test_a_search_from_trials_to_the_file(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surf2vec.tasks.tuning.tune, "MIN_TRIALS_FOR_IMPORTANCES", 7)
    lines: list[str] = []
    result = tune(root, WINDOW, ask(root, 7), messages(lines))
    trials = record_of(root)["trials"]
    assert result["trials"] == len(trials) == 7
    assert trials[0]["config"] | {"commit_seconds": 60.0} == vars(TRAIN)
    best = max(trials, key=lambda trial: trial["metrics"]["mrr"])
    assert result["best_trial"] == trials.index(best) + 1
    assert result["metrics"] == {"default": trials[0]["metrics"], "best": best["metrics"]}
    assert result["metrics"]["best"]["mrr"] > result["metrics"]["default"]["mrr"]
    assert result["gain"]["mrr"] == pytest.approx(best["metrics"]["mrr"] - trials[0]["metrics"]["mrr"])
    assert set(result["importances"]) == set(best["settings"])
    assert [row["mrr"] for row in result["best_trials"][:5]] == sorted((mrr for _, mrr in tried(root)), reverse=True)[
        :5
    ]
    config = load_config(Path(result["out"]), [])
    assert vars(config.train) == best["config"]
    text = (root.path / "tuned.toml").read_text()
    assert f"best, trial {result['best_trial']}" in text
    assert result["verdict"] in text
    assert [line for line in lines if line.startswith("trial 7 of 7: MRR ")]
    assert list(root.temporary.iterdir()) == []
    assert result["seconds"] > 0
    json.dumps(result, allow_nan=False)


def test_each_trial_is_a_run_below_that_of_the_search(root: Root) -> None:
    tune(root, WINDOW, ask(root))
    parent, *trials = runs_of(root)
    record = record_of(root)
    assert len(trials) == 3
    for run, trial in zip(trials, record["trials"], strict=True):
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.info.status == "FINISHED"
        assert run.data.metrics == trial["metrics"]
        assert run.data.params["train.alpha"] == str(trial["settings"]["alpha"])
        assert run.info.run_id == trial["mlflow_run_id"]
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["mrr"] == max(mrr for _, mrr in tried(root))
    assert parent.data.metrics["default_mrr"] == tried(root)[0][1]


@pytest.mark.slow
def test_the_same_command_repeats_no_trial_and_more_trials_go_on(
    root: Root, made: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surf2vec.tasks.tuning.study, "_STARTUP_TRIALS", 2)
    tune(root, WINDOW, ask(root, 2))
    first = tried(root)
    tune(root, WINDOW, ask(root, 5))
    whole = Root(tmp_path / "whole")
    shutil.copytree(made.path, whole.path)
    result = tune(whole, WINDOW, ask(whole, 5))
    assert tried(root)[:2] == first
    assert tried(root) == tried(whole)  # two are random; what was tried before says what comes next
    monkeypatch.setattr(surf2vec.tasks.tuning.tune, "train", None)
    again = tune(whole, WINDOW, ask(whole, 5))
    assert {**again, "seconds": 0} == {**result, "seconds": 0}
    assert len(runs_of(whole)) == 6


@pytest.mark.parametrize("place", ["train", "open_run"])
def test_a_search_that_was_ended_goes_on(root: Root, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Iterator[int] = iter(range(100))
    module = surf2vec.tasks.tuning.tune if place == "train" else surf2vec.tasks.tuning.study.mlflow_runs
    whole = getattr(module, place)

    def break_off(*arguments: Any) -> Any:
        if next(calls) == 2:  # of the third trial, or of the second one's run
            raise KeyboardInterrupt
        return whole(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, place, break_off)
        with pytest.raises(KeyboardInterrupt):
            tune(root, WINDOW, ask(root, 4))
    assert len(tried(root)) == 2
    assert not (root.path / "tuned.toml").exists()
    assert list(root.temporary.iterdir()) == []
    tune(root, WINDOW, ask(root, 4))
    assert len(tried(root)) == 4
    assert len(runs_of(root)) == 5
    assert all(run.info.status == "FINISHED" for run in runs_of(root))


def test_a_training_that_does_not_stay_finite_is_a_trial_that_reached_nothing(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = surf2vec.tasks.tuning.tune.train, iter(range(10))

    def fail_second(*arguments: Any) -> Any:
        if next(calls) == 1:
            raise TrainingError("vectors are no longer finite")
        return whole(*arguments)

    monkeypatch.setattr(surf2vec.tasks.tuning.tune, "train", fail_second)
    tune(root, WINDOW, ask(root))
    assert [trial["failure"] for trial in record_of(root)["trials"]] == [None, "vectors are no longer finite", None]
    assert tried(root)[1][1] == 0
    assert [run.info.status for run in runs_of(root)] == ["FINISHED", "FINISHED", "FAILED", "FINISHED"]


def test_when_no_training_stays_finite_it_says_so(root: Root) -> None:
    wild = TrainConfig(vector_size=8, optimizer="sgd", alpha=10, min_alpha=10, l2=10, item_l2=10, threads=1)
    with pytest.raises(TrainingError, match=r"no trial of 1 stayed finite; the last: .*lower train\.alpha"):
        tune(root, WINDOW, ask(root, 1, train=wild))
    assert not (root.path / "tuned.toml").exists()


def test_no_trial_begins_after_the_seconds_but_the_first(root: Root) -> None:
    lines: list[str] = []
    result = tune(root, WINDOW, ask(root, 9, seconds=0.0), messages(lines))
    assert (result["trials"], result["best_trial"], result["importances"]) == (1, 1, {})
    assert result["verdict"].startswith("no trial was better than what was given")
    assert "0 seconds have passed: no further trial begins" in lines
    assert vars(load_config(root.path / "tuned.toml", []).train) == vars(TRAIN)


def test_a_wrong_call_is_refused_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give --logs, or run `surf2vec run` first"):
        newest_corpus(Root(tmp_path))
    write_corpus(Root(tmp_path).corpus(WINDOW), {"a": [1], "b": [2], "c": [1, 1]}, partitions=8)
    with pytest.raises(InputError, match="no user of corpus .* has a second page"):
        tune(Root(tmp_path), WINDOW, ask(Root(tmp_path)))
    (tmp_path / "file").write_text("")
    for out, error in (("x.csv", ConfigError), (".", ConfigError), ("file/x.toml", ResourceError)):
        with pytest.raises(error, match="--out"):
            ask(Root(tmp_path), out=tmp_path / out)


def test_odd_characters_passwords_and_user_ids_stay_out_of_the_file(root: Root) -> None:
    command = "surf2vec tune --logs 'a\nb\x07\udcff' --set publish.tracking_uri=http://me:hunter2@mlflow.example"
    tune(root, WINDOW, ask(root, 1, command=command))
    assert load_config(root.path / "tuned.toml", []).train == TRAIN
    text = (root.path / "tuned.toml").read_text()
    assert r"'a\nb\x07\udcff'" in text
    assert "hunter2" not in text
    written = [path for path in root.path.rglob("*") if path.is_file() and root.path / "corpus" not in path.parents]
    assert len(written) >= 5
    assert not [path for path in written if b"user-1" in path.read_bytes()]


def test_with_logs_the_corpus_is_made_as_a_night_makes_it_and_else_the_newest_is_taken(
    made: Root, tmp_path: Path
) -> None:
    lines = [
        f"{user},/page/{item},2026-01-01T00:{n:02d}:00Z"
        for user, items in planted_histories(300).items()
        for n, item in enumerate(items)
    ]
    log = write_log(tmp_path / "log.csv", *lines)
    root = Root(tmp_path / "root")
    root.path.mkdir()
    search = partial(commands.tune, root=root.path, trials=1, config=PipelineConfig(train=TRAIN), on_event=messages([]))
    with pytest.raises(InputError, match="surf2vec run"):
        search([])
    result = search([str(log)])
    assert (result["trials"], len(list((root.path / "corpus").iterdir()))) == (1, 1)
    corpus = root.corpus(newest_corpus(root))
    built_at = (corpus / "manifest.json").stat().st_mtime_ns
    assert "recency" not in result["best_trials"][0]  # the log has times, but they say nothing of what comes next
    for logs in ([str(log)], []):
        assert search(logs)["trials"] == 1
    assert (corpus / "manifest.json").stat().st_mtime_ns == built_at
    assert len(runs_of(root)) == 2


@pytest.mark.slow
def test_the_command_shows_a_table_or_prints_one_object(root: Root) -> None:
    (root.path / "sources.json").write_text("{}")
    settings = [f"train.{name}={value}" for name, value in (("vector_size", 8), ("epochs", 2), ("threads", 1))]
    sets = [part for setting in settings for part in ("--set", setting)]
    call = [sys.executable, "-m", "surf2vec.flows.cli", "tune", "--trials", "2", "--root", str(root.path), *sets]
    shown = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    assert "ns exponent" in shown.stdout
    assert str(root.path / "tuned.toml") in shown.stdout
    assert "trial 2 of 2: MRR" in shown.stderr
    printed = subprocess.run([*call, "--json"], capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(printed.stdout)
    wanted = {"trials", "best_trial", "metrics", "settings", "out", "seconds", "tracking_uri"}
    assert wanted <= set(result)
    assert set(result["metrics"]) == {"default", "best"}
    refused = subprocess.run(
        [*call, "--out", "x.csv", "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["error"]["code"] == "bad_config"
