"""`surf2vec settings` names every setting, and its TOML file is one that `--config` takes."""

import tomllib
from pathlib import Path

import pytest

from surf2vec.tasks.night.config import DEFAULT_CONFIG, flat_schema, load_config
from surf2vec.tasks.night.settings import as_toml, list_sections
from surf2vec.trainer.errors import ConfigError


def test_every_setting_has_its_meaning_and_its_values() -> None:
    settings = [setting for section in list_sections() for setting in section.settings]
    assert sorted(setting.name for setting in settings) == sorted(flat_schema())
    assert all(setting.description and setting.values for setting in settings)


def test_a_section_brings_those_inside_it() -> None:
    assert [section.name for section in list_sections("ingest")] == ["ingest", "ingest.columns"]
    assert [setting.name for setting in list_sections("evaluate")[0].settings] == ["evaluate.max_users"]
    assert list_sections("evaluate")[0].settings[0].values == "integer ≥ 0"
    with pytest.raises(ConfigError, match="no section 'nope': take ingest, ingest.columns, store, train"):
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
    assert tomllib.loads("\n".join(taken))["export"] == {"dtype": "float32"}
    assert load_config(path, []) == DEFAULT_CONFIG
