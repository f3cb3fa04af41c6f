"""Registering: what stands in MLflow afterwards, that a second call adds nothing, and that a cut-off one is completed."""

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest

from surf2vec.tasks.config import GateConfig, PublishConfig
from surf2vec.tasks.gate.figures import list_rules
from surf2vec.tasks.registry import mlflow_runs, promotion, tracking
from surf2vec.tasks.registry.publish import CURVE, attach_report, list_metrics, publish_release
from surf2vec.tasks.registry.releases import current_release
from surf2vec.tasks.registry.versions import read_tags
from surf2vec.tasks.release.folder import EXPORT_MANIFEST
from surf2vec.tasks.release.release_reader import list_files
from surf2vec.tasks.root.records import RegisterStep, RunRecord, TrainStep
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.root.wording import flatten
from surf2vec.trainer.errors import DamageError, InputError
from surf2vec.trainer.system.files import read_json
from tests.faults.exits import start
from tests.roots.releases import STORAGES, make_release, read_users, write_run_record

mlflow = tracking.mlflow
PUBLISH = PublishConfig()


def register(root: Root, publish: PublishConfig = PUBLISH, release: str = "r1") -> RegisterStep:
    return publish_release(root, publish, write_run_record(release), root.export(release))


def client_of(root: Root) -> Any:
    return tracking.MlflowClient(root.tracking_uri, root.tracking_uri)


def models_of(root: Root) -> list[Path]:
    return list((root.artifacts / "models").iterdir())


@pytest.fixture(scope="module", params=STORAGES)
def storage(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def publish(storage: str) -> PublishConfig:
    return STORAGES[storage]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root with a release that is not registered yet."""
    made = Root(tmp_path)
    make_release(made)
    return made


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, publish: PublishConfig) -> tuple[Root, RegisterStep]:
    """A root whose release is registered, and its report; only read by its tests."""
    root = Root(tmp_path_factory.mktemp("published"))
    make_release(root)
    registered, report = register(root, publish), root.path / "report.html"
    report.write_text("<p>good morning</p>")
    attach_report(root, publish, registered, report)
    return root, registered


def test_the_folder_has_the_card_of_its_version(published: tuple[Root, RegisterStep]) -> None:
    root, _ = published
    readme, [version] = (root.export("r1") / "README.md").read_text(), client_of(root).search_model_versions()
    assert readme.startswith("# 2015-05-18 · full · run-r1\n\nRelease r1: a vector of ")
    assert set(version.description.splitlines()) < set(readme.splitlines())
    assert r"* **Version** 1 of surf2vec-users, registered as champion" in readme


def test_the_record_of_the_step(published: tuple[Root, RegisterStep], storage: str) -> None:
    root, told = published
    assert told == RegisterStep(
        model_name="surf2vec-users", model_version=1, alias="champion", storage=storage, tracking_uri=root.tracking_uri,
        mlflow_run_id=told.mlflow_run_id,
    )  # fmt: skip
    assert current_release(root, PUBLISH) == "r1"


def test_the_version_has_tags_signature_example_and_requirements(
    published: tuple[Root, RegisterStep], storage: str
) -> None:
    root, _ = published
    version = client_of(root).get_model_version("surf2vec-users", "1")
    expected = {"release": "r1", "space_id": "space-1", "hit_at_10": "0.2500", "window_until": "2015-05-18"}
    assert expected.items() <= version.tags.items()
    assert len(version.tags) <= 8
    assert read_tags(version.tags)["storage"] == storage
    assert "for each of 67 users" in version.description
    assert "**Window** 2 days, 2015-05-17 to 2015-05-18" in version.description
    described = client_of(root).get_registered_model("surf2vec-users").description
    assert 'load_model("models:/surf2vec-users@champion")' in described
    assert "r1" not in described
    assert (root.export("r1").as_uri() in version.description) == (storage == "reference")
    [folder] = models_of(root)
    assert (folder / "artifacts" / "requirements.txt").read_text().split() == tracking.pin_requirements()
    assert (folder / "artifacts" / "input_example.json").exists()
    info = mlflow.models.Model.load(str(folder / "artifacts"))
    assert info.signature.inputs.input_names() == ["user_id", "pages", "seen"]
    assert info.signature.outputs.input_names()[:2] == ["user_id", "vector"]
    assert {spec.name: spec.default for spec in info.signature.params.params} == {
        "k": 0,
        "items": 0,
        "part": "",
        "seen": "leave out",
    }


def test_the_run_has_params_curves_metrics_and_files(published: tuple[Root, RegisterStep]) -> None:
    root, told = published
    client = client_of(root)
    run = client.get_run(told.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "2015-05-18 · full · run-r1"
    described = run.data.tags["mlflow.note.content"].splitlines()
    assert [line.split()[1] for line in described] == ["**Users**", "**hit@10**", "**Version**"]
    assert described[-1] == "* **Version** 1 of surf2vec-users, registered as champion"
    # The night's.
    assert datetime.fromtimestamp(run.info.start_time / 1000, UTC) == datetime(2026, 11, 21, 4, tzinfo=UTC)
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert run.data.params["train.epochs"] == "5"
    assert run.data.metrics["quality/hit_at_10"] == 0.25
    assert run.data.metrics["cost/seconds"] >= 2.5
    loss = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in loss] == [(500, 2.0), (1000, 1.5)]
    assert len(client.get_metric_history(run.info.run_id, "train/heldout_loss")) == 1
    [used] = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest, used.tags[0].value) == ("corpus", "window-r1", "training")
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"manifest.json", "report.html", "run.json"}


def test_no_password_reaches_the_registry(published: tuple[Root, RegisterStep]) -> None:
    root, told = published
    params = client_of(root).get_run(told.mlflow_run_id).data.params
    assert params["publish.tracking_uri"] == "http://***@mlflow.example"
    files = [path for path in root.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


def test_the_registered_model_answers(published: tuple[Root, RegisterStep], monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = published
    monkeypatch.setenv("MLFLOW_TRACKING_URI", root.tracking_uri)
    with mlflow_runs.use_uri(root.tracking_uri):
        model = mlflow.pyfunc.load_model("models:/surf2vec-users@champion")
    ids = ["user-7", "nobody", "ünïcode-Ω", "user-7"]
    answer = model.predict(pd.DataFrame({"user_id": ids}), params={"k": 2, "items": 2})
    users = read_users(root.export("r1"))
    assert answer["vector"].tolist() == [users[user].tolist() if user in users else None for user in ids]
    assert [urls and len(urls) for urls in answer["items"]] == [2, None, 2, 2]
    assert model.predict(pd.DataFrame({"user_id": []})).empty
    assert model.predict(pd.DataFrame({"user_id": [12]}))["vector"].tolist() == [users["12"].tolist()]


def test_only_a_copy_has_the_vectors_in_the_registry(published: tuple[Root, RegisterStep], storage: str) -> None:
    root, _ = published
    [folder] = models_of(root)
    vectors = [path for path in folder.rglob("*") if path.suffix in (".parquet", ".faiss")]
    files = list_files(read_json(root.export("r1") / EXPORT_MANIFEST))
    export_bytes = sum(about["bytes"] for about in files.values())
    assert sum(path.stat().st_size for path in vectors) == (export_bytes if storage == "copy" else 0)
    [manifest] = folder.rglob("manifest.json")
    assert manifest.read_bytes() == (root.export("r1") / "manifest.json").read_bytes()


def die_while_mlflow_gathers(folder: Path) -> None:
    mlflow.pyfunc.save_model = lambda *_, **__: os._exit(9)
    register(Root(folder))


def test_what_mlflow_had_gathered_when_it_was_killed_is_removed_by_the_next_call(root: Root) -> None:
    process = start(die_while_mlflow_gathers, root.path)
    process.join()
    assert process.exitcode == 9
    assert list(root.temporary.iterdir()) != []
    register(root)
    assert list(root.temporary.iterdir()) == []


@pytest.mark.parametrize(("above", "expected"), [(0, "reference"), (1, "copy")])
def test_exports_from_the_size_of_the_setting_on_are_referred_to(root: Root, above: int, expected: str) -> None:
    size_bytes = sum(path.stat().st_size for path in root.export("r1").rglob("*.*") if path.name != "manifest.json")
    assert register(root, PublishConfig(copy_below=f"{size_bytes + above}")).storage == expected


def test_another_size_later_registers_nothing(root: Root) -> None:
    assert register(root, STORAGES["reference"]) == register(root, STORAGES["copy"])
    assert len(models_of(root)) == 1


def test_the_same_release_again_registers_nothing(
    root: Root, publish: PublishConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    first = register(root, publish)
    counts = [
        len(client_of(root).get_metric_history(first.mlflow_run_id, name))
        for name in ("train/loss", "quality/hit_at_10")
    ]
    assert register(root, publish) == first
    client = client_of(root)
    assert len(client.search_model_versions("name = 'surf2vec-users'")) == 1
    assert len(client.search_runs(["1"])) == len(models_of(root)) == 1
    assert [
        len(client.get_metric_history(first.mlflow_run_id, name)) for name in ("train/loss", "quality/hit_at_10")
    ] == counts
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "cut_off",
    ["log_model", "finalize_logged_model", "register", "move_aliases", "log_batch", "log_dict", "set_terminated"],
)
def test_a_call_cut_off_before_any_step_is_completed(root: Root, publish: PublishConfig, cut_off: str) -> None:
    place = next(one for one in (promotion, tracking, tracking.MlflowClient) if hasattr(one, cut_off))
    with mock.patch.object(place, cut_off, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        register(root, publish)
    assert (register(root, publish).model_version, register(root, publish).alias) == (1, "champion")
    assert len(models_of(root)) == len(client_of(root).search_runs(["1"])) == 1


def test_a_call_cut_off_and_completed_in_the_other_way_mixes_nothing(
    root: Root,
) -> None:
    with mock.patch.object(tracking, "register", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        register(root, STORAGES["copy"])
    assert register(root, STORAGES["reference"]).storage == "reference"
    source = client_of(root).get_model_version("surf2vec-users", "1").source
    [folder] = [path for path in models_of(root) if path.name == source.removeprefix("models:/")]
    assert list((folder / "artifacts" / "artifacts").iterdir()) == [
        folder / "artifacts" / "artifacts" / "manifest.json"
    ]


def test_a_run_that_was_overtaken_or_is_registered_again_does_not_serve(root: Root) -> None:
    """A night of older days may end, or be run, after that of newer ones: registered later, it is none the newer."""
    told = []
    register(root, release="r1")
    for number, (release, until) in enumerate([("r2", "2015-05-17"), ("r3", "2015-05-18")], start=2):
        make_release(root, release, seed=number)
        record = write_run_record(release, {"corpus": {"until": until}})
        told.append(publish_release(root, PUBLISH, record, root.export(release)).alias)
        assert current_release(root, PUBLISH) == ("r1" if release == "r2" else "r3")
    assert told == [None, "champion"]
    assert register(root, release="r1").alias is None
    assert current_release(root, PUBLISH) == "r3"


def test_registering_reads_no_items(root: Root) -> None:
    """MLflow ran the example of the model, which needs all items: 6 GB for three million of them."""
    with mock.patch("mlflow.pyfunc.load_model") as load:
        assert register(root).model_version == 1
    assert not load.called


def test_a_copied_root_writes_nothing_into_the_old_one(root: Root, tmp_path: Path) -> None:
    register(root)
    before = sorted(root.artifacts.rglob("*"))
    copy = Root(tmp_path / "copy ü")
    shutil.copytree(root.path, copy.path, ignore=shutil.ignore_patterns("mlartifacts", "copy*"))
    make_release(copy, "r2", seed=2)
    assert register(copy, release="r2").model_version == 2
    assert sorted(root.artifacts.rglob("*")) == before
    assert len(models_of(copy)) == 1


def test_an_export_that_is_not_whole_is_refused(root: Root, publish: PublishConfig) -> None:
    part = root.export("r1") / "user_vectors" / "part-00000.parquet"
    part.write_bytes(b"short")
    with pytest.raises(DamageError, match=r"part-00000\.parquet has 5 bytes where its manifest says"):
        register(root, publish)
    assert not root.artifacts.exists()


def test_nothing_registered_has_no_release(root: Root) -> None:
    with pytest.raises(InputError, match="no release of surf2vec-users serves"):
        current_release(root, PUBLISH)


def test_metrics_are_grouped_and_the_same_for_the_same_record() -> None:
    plan = {"seconds": 3.0, "peak_bytes": 9, "read_bytes": 5}
    steps = {
        "gate": {"metrics": {"gate_cosine_p1": 0.99}},
        "corpus": {"num_tokens": 9},
        "export": {"metrics": {"export_hit_at_10_loss": 0.002, "index_recall_at_10": 0.95}},
        "train": {"train_seconds": 2.0, "commit_stall": 0.5, "stall": 0.25, "bytes_read": 4, "plan": plan},
    }
    record = write_run_record(steps=steps)
    found = list_metrics(record)
    assert {point.key.partition("/")[0] for point in found} == {"quality", "gate", "data", "cost"}
    values = {point.key: point.value for point in found}
    expected = {"gate/cosine_p1": 0.99, "quality/export_hit_at_10_loss": 0.002, "quality/index_recall_at_10": 0.95}
    expected |= {"cost/train_seconds": 3.0, "cost/train_stall": 0.25}
    assert {name: values[name] for name in expected} == expected
    assert "cost/train_peak_bytes" not in values
    again = RunRecord.model_validate_json(json.dumps(record.to_json()))
    assert [dict(one) for one in found] == [dict(one) for one in list_metrics(again)]


def test_a_run_has_at_most_thirty_metrics_though_every_rule_and_every_loss_is_measured() -> None:
    values = dict.fromkeys(TrainStep.model_fields.keys() & {"stall", "commit_stall", "train_seconds", "peak_bytes"}, 1)
    names = ("index_recall_at_10", "export_explained_variance", "export_hit_at_10", "export_hit_at_10_loss")
    ranked = [name for metric in ("hit", "mrr", "coverage", "ndcg") for name in (f"{metric}_at_10", f"{metric}_at_20")]
    record = write_run_record(
        steps={
            "corpus": {"num_tokens": 9, "num_changed": 1, "num_new_items": 1},
            "evaluate": {"metrics": {f"{side}{name}": 0.5 for side in ("", "popularity_") for name in ranked}},
            "train": values | {"curve": [dict.fromkeys(("epoch", "seconds", *CURVE), 1)]},
            "export": {"num_users": 1, "num_items": 1, "bytes": 1, "metrics": dict.fromkeys(names, 0.5)},
            "gate": {"metrics": {f"gate_{rule.name}": 1.0 for rule in list_rules(GateConfig())} | {"gate_passes": 1.0}},
        }
    )
    assert 25 < len({point.key for point in list_metrics(record)}) <= 30


def test_settings_are_flattened_by_dotted_name() -> None:
    assert flatten({"train": {"epochs": 5, "on": None}, "a": [1]}) == {"train.epochs": 5, "train.on": None, "a": [1]}
