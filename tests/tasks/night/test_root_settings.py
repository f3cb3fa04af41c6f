"""What a root remembers: written once the logs are checked, read by every command, edited by people, without passwords."""

import json
from pathlib import Path

import pytest

from surf2vec import commands, operations
from surf2vec.arguments import configure
from surf2vec.tasks.ingest.sources import Catalog
from surf2vec.tasks.night.config import PipelineConfig, load_config
from surf2vec.tasks.night.context import open_night
from surf2vec.tasks.night.root_settings import find_new, remember, remember_run
from surf2vec.tasks.night.steps import ingest_events
from surf2vec.tasks.root.identity import registry_uri
from surf2vec.tasks.root.records import IngestStep
from surf2vec.tasks.root.run import Root, lock_root
from surf2vec.trainer.errors import ConfigError, RejectedError, SurfError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.system.files import write_json
from tests.roots.ingest import write_log
from tests.roots.releases import write_run_record

KEPT = """\
# Settings of this root, which every command reads. You may edit them: docs/logs.md, "A root remembers".

[ingest]
min_item_events = 1
timezone = "Europe/Berlin"

[ingest.columns]
time = ["when"]
user = ["who"]

[publish]
model_name = "shop"
"""
GIVEN = (
    "ingest.columns.user=who", "ingest.columns.time=when", "ingest.timezone=Europe/Berlin", "ingest.min_item_events=1",
    "publish.model_name=shop",
)  # fmt: skip
OF_A_CALL = (
    "train.epochs=3",
    "store.partitions=4",
    "ingest.max_reject_ratio=0.5",
    "resources.host_memory=2GB",
    "window_days=3",
)


def take_in(root: Root, log: Path | None, *settings: str) -> IngestStep:
    """The first step of a night, and of `backfill`."""
    night = open_night(root.path, None, None, configure(load_config(None, settings), {}, root.path))
    with lock_root(night.root, "run"):
        return ingest_events(night, [str(log)] if log else [])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "a.csv", "u,/a,2020-07-01 12:00:00", header="who,url,when")


@pytest.fixture
def root(tmp_path: Path, log: Path) -> Root:
    """A root that was given its settings once."""
    made = Root(tmp_path / "root")
    take_in(made, log, *GIVEN, *OF_A_CALL)
    return made


def test_what_a_person_gave_is_kept_and_given_to_every_later_call(root: Root, log: Path, tmp_path: Path) -> None:
    assert root.settings.read_text() == KEPT
    assert root.settings.stat().st_mode & 0o777 == 0o600
    assert take_in(root, log).sources_known == 1  # not read again: the settings are the same
    assert take_in(root, write_log(tmp_path / "b.csv", "v,/b,2020-07-02 12:00:00", header="who,url,when")).events == 1
    assert root.settings.read_text() == KEPT
    config = configure(None, {}, root.path)
    assert (config.ingest.columns.user, config.ingest.max_reject_ratio, config.train.epochs) == (("who",), 0.01, 20)
    assert config == configure(PipelineConfig(), {}, root.path)  # of the schedule
    assert configure(None, {"ingest__columns__user": "visitor"}, root.path).ingest.columns.time == ("when",)


def test_a_form_sends_every_setting_and_changes_those_that_are_no_defaults(root: Root) -> None:
    form = PipelineConfig().model_dump(mode="json") | {"train": {"epochs": 3}}
    form["ingest"]["min_user_events"] = 7
    config = configure(PipelineConfig.model_validate(form), {}, root.path)
    assert (config.ingest.min_user_events, config.ingest.timezone, config.train.epochs) == (7, "Europe/Berlin", 3)
    assert configure(config, {}, root.path) == config


def test_a_later_call_changes_what_it_gives_and_comments_stay(root: Root) -> None:
    root.settings.write_text("# mine\n" + KEPT.replace('["who"]', '"who"'))
    take_in(root, None, "ingest.min_item_events=5", 'ingest.columns.user=["who", "client"]', "publish.model_name=shop")
    assert root.settings.read_text() == "# mine\n" + KEPT.replace('"who"', '"who", "client"').replace("= 1", "= 5")
    assert find_new(root, load_config(None, ["ingest.min_item_events=5"])) == {}


@pytest.mark.parametrize("settings", [(), OF_A_CALL], ids=["none", "of a call"])
def test_there_is_no_file_if_there_is_nothing_to_remember(tmp_path: Path, settings: tuple[str, ...]) -> None:
    root = Root(tmp_path / "root")
    take_in(root, write_log(tmp_path / "a.csv", "u,/a,2020-07-01"), *settings)
    assert not root.settings.exists()


def test_a_refused_call_and_a_dry_run_write_nothing(root: Root, log: Path, tmp_path: Path) -> None:
    bad = write_log(tmp_path / "bad.csv", "u,/a,then", header="who,url,when")
    for call in (
        lambda: take_in(root, bad, "ingest.min_item_events=9"),
        lambda: take_in(root, None, "ingest.timezone=UTC"),
        lambda: commands.run([str(log)], root.path, dry_run=True, ingest__min_user_events=3),
        lambda: commands.run([str(bad)], tmp_path / "new", dry_run=True, config=load_config(None, GIVEN)),
        lambda: take_in(Root(tmp_path / "new"), bad, *GIVEN),
    ):
        with pytest.raises(SurfError):
            call()
        assert root.settings.read_text() == KEPT
    assert not (tmp_path / "new" / "surf2vec.toml").exists()


def test_what_cannot_change_without_a_new_root_says_why(root: Root) -> None:
    with pytest.raises(
        ConfigError, match=r"timezone is 'UTC', but was 'Europe/Berlin' when .*all events of a root follow the"
    ):
        take_in(root, None, "ingest.timezone=UTC")


def test_a_refused_dry_run_names_no_list_that_is_not_there(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", "u,/a,then")
    with pytest.raises(RejectedError, match="none is usable") as caught:
        commands.run([str(log)], tmp_path / "new", dry_run=True)
    assert "surf2vec rejects" not in str(caught.value)
    assert str(tmp_path / "new") not in str(caught.value)
    assert list(tmp_path.iterdir()) == [log]


def test_a_call_that_dies_before_its_commit_has_written_what_the_next_one_needs(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path / "root")
    with monkeypatch.context() as context:
        context.setattr(Catalog, "write", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            take_in(root, log, *GIVEN)
    assert (root.settings.read_text(), root.sources.exists()) == (KEPT, False)
    assert take_in(root, log).events == 1


def test_passwords_stay_out_and_a_registry_is_named_without(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.chdir(tmp_path)
    uri, store = "http://me:hunter2@mlflow.example:5000/", "postgresql://me:hunter3@db.example/shop"
    config = load_config(None, [f"publish.tracking_uri={uri}", f"publish.stores={store}", "ingest.min_user_events=1"])
    remember(root, config, lambda kind, event: told.append(event["message"]))
    assert "hunter" not in root.settings.read_text() + "".join(told)
    assert 'tracking_uri = "http://mlflow.example:5000"\n' in root.settings.read_text()
    assert told[0].startswith("publish.stores has a password, so ")
    remember(
        root, load_config(None, [f"publish.tracking_uri={root.tracking_uri}"]), ignore_event
    )  # moves with the root
    assert "tracking_uri" not in root.settings.read_text()
    remember(root, load_config(None, ["publish.tracking_uri=sqlite:///mine.db"]), ignore_event)
    assert f'tracking_uri = "sqlite:///{tmp_path}/mine.db"\n' in root.settings.read_text()


def test_the_environment_adds_the_password_to_the_registry_in_the_file(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.settings.write_text('[publish]\ntracking_uri = "http://mlflow.example:5000"\n')
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@mlflow.example:5000")
    assert registry_uri(root, configure(None, {}, root.path).publish) == "http://me:hunter2@mlflow.example:5000"
    write_json(root.identity, {"root_id": "me", "tracking_uri": "http://other.example"})
    with pytest.raises(ConfigError, match=r'change "tracking_uri" in .*root.json, and in surf2vec.toml if it is there'):
        registry_uri(root, configure(None, {}, root.path).publish)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[ingest]\ntimezone = "UTC\n', r"cannot read the configuration .*root/surf2vec.toml: .*line 2"),
        (
            '# mine\n[ingest]\ntimezon = "UTC"\n',
            r"surf2vec.toml, line 3: ingest.timezon: unknown setting; did you mean ingest.tim",
        ),
        ('[ingest]\n\ntimezone = "Mars"\n', r"surf2vec.toml, line 3: ingest.timezone: 'Mars' is not a time zone"),
        (
            "[train]\nepochs = 3\n",
            r"line 2: train.epochs belongs to a call; .*: give it with --set, or in a file .* --config",
        ),
        ("ingest = 3\n", r"surf2vec.toml, line 1: ingest"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_line(root: Root, text: str, message: str) -> None:
    root.settings.write_text(text)
    with pytest.raises(ConfigError, match=message):
        configure(None, {}, root.path)
    [found] = [one for one in operations.doctor(root.path)["findings"] if one["place"] == str(root.settings)]
    assert found["level"] == "damage"


def test_settings_tell_where_a_value_comes_from(root: Root, tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    file.write_text(
        '[ingest]\nmin_item_events = 2\nmin_user_events = 3\n[train]\nepochs = 4\n[ingest.columns]\ntime="t"\n'
    )
    listed = commands.settings(None, root.path, file=file, given=["ingest.min_item_events=6"])
    found = {one["name"]: (one["value"], one["from"]) for section in listed["sections"] for one in section["settings"]}
    assert {name: value for name, value in found.items() if value[1] != "default"} == {
        "ingest.timezone": ("Europe/Berlin", "surf2vec.toml"),
        "ingest.columns.user": (["who"], "surf2vec.toml"),
        "publish.model_name": ("shop", "surf2vec.toml"),
        "ingest.columns.time": (["t"], "--config"),
        "ingest.min_user_events": (3, "--config"),
        "train.epochs": (4, "--config"),
        "ingest.min_item_events": (6, "--set"),
    }
    assert found["train.vector_size"] == (128, "default")
    assert json.dumps(listed)


def test_a_lost_root_gets_the_settings_of_its_release(tmp_path: Path) -> None:
    root = Root(tmp_path)
    given = load_config(None, [*GIVEN, *OF_A_CALL, "publish.tracking_uri=http://old.example"]).model_dump(mode="json")
    record = write_run_record(config=given | {"of_a_later_version": 1}, run_id="r1")
    write_json(root.run("r1") / "run.json", record.to_json())
    remember_run(root, "r1", ignore_event)
    assert root.settings.read_text() == KEPT
    root.settings.write_text("# mine\n")
    remember_run(root, "r1", ignore_event)
    assert root.settings.read_text() == "# mine\n"
