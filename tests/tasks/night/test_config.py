"""The configuration: what --set reaches, what is refused, with the way out; and that `surf2vec settings` lists all of it."""

import json
import tomllib
from pathlib import Path

import duckdb
import pytest

from surf2vec.tasks.night.config import (
    DEFAULT_CONFIG,
    PipelineConfig,
    all_settings,
    as_toml,
    list_sections,
    load_config,
)
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError


def test_every_default_is_reached_by_set_and_comes_back_the_same() -> None:
    values = PipelineConfig().model_dump(mode="json")

    def at(key: str) -> object:
        node: object = values
        for part in key.split("."):
            assert isinstance(node, dict)
            node = node[part]
        return node

    settings = [f"{key}={json.dumps(at(key))}" for key in all_settings()]
    assert load_config(None, settings) == PipelineConfig()


def test_keys_that_checks_outside_use() -> None:
    config = load_config(
        None,
        ["ingest.columns.user=host", "ingest.columns.url=page", "ingest.columns.time=time", "ingest.min_item_events=2",
         "ingest.min_item_users=1", "ingest.min_user_events=1", "ingest.max_user_events=50", "evaluate.max_users=0",
         "train.vector_size=16", "train.epochs=2", "train.threads=1", "train.seed=7", "train.negative=3",
         "train.commit_seconds=0.5", 'ingest.keep_query=["id"]'],
    )  # fmt: skip
    assert config.ingest.columns.user == ("host",)
    assert config.ingest.keep_query == ("id",)
    assert (config.train.vector_size, config.train.commit_seconds) == (16, 0.5)


def test_a_file_then_settings_then_overrides(tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    file.write_text('window_days = 7\n[train]\nepochs = 3\nseed = 5\n[resources]\nhost_memory = "2GB"\n')
    config = load_config(file, ["train.epochs=4"], {"resources.host_memory": "8GB", "resources.device_memory": None})
    assert (config.window_days, config.train.epochs, config.train.seed) == (7, 4, 5)
    assert config.resources.host_memory == "8GB"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epoch=5", r"train.epoch: unknown setting; did you mean train.epochs"),
        ("epochs=3", r"did you mean train.epochs"),
        ("train.epochs", r"has no '='"),
        ("train.epochs=abc", r"train.epochs: Input should be a valid integer.*'abc'"),
        ("train.epochs=0", r"train.epochs.*greater than or equal to 1"),
        ("train.alpha=NaN", r"train.alpha"),
        ("ingest.timezone=Mars", r"'Mars' is not a time zone: write for instance Europe/Berlin"),
        ("store.partitions=12", r"12 is not a power of two: use 8 or 16"),
        ("resources.host_memory=4 elephants", r"is no size in bytes: write for instance 4GB"),
        ("publish.copy_below=small", r"publish.copy_below.*'small' is no size in bytes"),
        ("export.dtype=float64", r"export.dtype.*'float32', 'float16' or 'int8'"),
        (
            "export.pca_dim=256",
            r"^export.pca_dim is 256, not below train.vector_size \d+: set it lower, or leave it out$",
        ),
        ("ingest.granularity=site", r"ingest.granularity.*page\|host\|prefix"),
    ],
)
def test_bad_settings_are_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [setting])


def test_there_are_few_settings() -> None:
    assert len(all_settings()) <= 70


def test_the_learning_rate_falls_to_a_tenth_and_the_trainers_own_values_are_kept() -> None:
    assert load_config(None, ["train.alpha=0.3"]).train == TrainConfig(alpha=0.3, min_alpha=0.03)
    own = TrainConfig(bias=0.25, sharing="sharded")
    assert PipelineConfig(train=own).train == own


def test_bad_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("train = [")
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*bad.toml"):
        load_config(file, [])
    file.write_text("[train]\nepocs = 3\n")
    with pytest.raises(ConfigError, match=r"train.epocs: unknown setting; did you mean train.epochs"):
        load_config(file, [])
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(tmp_path / "absent.toml", [])


def test_resources_and_stores_do_not_say_what_a_run_makes() -> None:
    settings = ["resources.host_memory=1GB", "resources.ray_address=auto", "train.threads=1", "train.commit_seconds=5"]
    one = load_config(None, [*settings, "publish.stores=parquet:///data"])
    assert one.publish.stores == ("parquet:///data",)
    assert one.outcome_settings() == PipelineConfig().outcome_settings()
    assert load_config(None, ["train.seed=2"]).outcome_settings() != one.outcome_settings()


def test_every_setting_says_what_it_is_and_takes() -> None:
    for setting in all_settings().values():
        assert setting.description.endswith((".", "!")), setting
        assert setting.values, setting


def test_checking_a_time_format_leaves_the_callers_connection_alone() -> None:
    """In a notebook `duckdb.sql` has to work after a configuration was read."""
    load_config(None, ['ingest.time_format=["%d.%m.%Y"]'])
    assert duckdb.sql("select 1").fetchall() == [(1,)]


def test_a_section_brings_those_inside_it() -> None:
    assert [section.name for section in list_sections("ingest")] == ["ingest", "ingest.columns"]
    assert [setting.name for setting in list_sections("evaluate")[0].settings] == ["evaluate.max_users"]
    assert list_sections("evaluate")[0].settings[0].values == "integer ≥ 0"
    with pytest.raises(ConfigError, match="unknown section 'nope': take ingest, ingest.columns, store, train"):
        list_sections("nope")


def test_the_file_changes_nothing_until_a_line_is_taken_in(tmp_path: Path) -> None:
    lines, path = as_toml(list_sections()), tmp_path / "night.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert load_config(path, []) == DEFAULT_CONFIG
    path.write_text(
        "\n".join("epochs = 7" if line.startswith("#epochs = 20") else line for line in lines), encoding="utf-8"
    )
    assert load_config(path, []).train.epochs == 7


def test_every_line_that_has_a_default_is_taken_in_as_it_is(tmp_path: Path) -> None:
    taken = [
        line.removeprefix("#") if line[:2] not in ("# ", "") and not line.endswith("= ...") else line
        for line in as_toml(list_sections())
    ]
    path = tmp_path / "all.toml"
    path.write_text("\n".join(taken), encoding="utf-8")
    assert tomllib.loads("\n".join(taken))["export"] == {"dtype": "float32", "activity": True, "noise": 0.0}
    assert load_config(path, []) == DEFAULT_CONFIG
