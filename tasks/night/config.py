"""The configuration of a run: one frozen model, for the form in Prefect's UI, the TOML file, `--set` and docs/settings.md."""

import dataclasses
import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, GetPydanticSchema, ValidationError, model_validator
from pydantic_core import core_schema

from surf2vec.tasks.config import (
    EvaluateConfig,
    ExportConfig,
    GateConfig,
    IngestConfig,
    NightlyConfig,
    PublishConfig,
    ResourcesConfig,
    Section,
    StoreConfig,
)
from surf2vec.tasks.root.wording import flatten
from surf2vec.trainer.config import TrainConfig, TrainSettings, complete
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.units import parse_bytes
from surf2vec.trainer.training.job import RESULT_NEUTRAL

KINDS = {
    "integer": "integer",
    "number": "number",
    "boolean": "true, false",
    "array": "names",
    "string": "text",
    "object": "table",
}
SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_NEUTRAL: Any = {
    "resources": True,
    "gate": True,
    "train": True,
    "publish": {"keep_releases", "with_state", "stores"},
}

Train = Annotated[
    TrainConfig,
    GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(complete, handler(TrainSettings))
    ),
]
"""A complete TrainConfig; only its TrainSettings are shown and can be set."""


class PipelineConfig(Section):
    """Everything that can be set, with its default, description and bounds."""

    model_config = ConfigDict(use_attribute_docstrings=False)  # reading its source takes a tenth of a second

    window_days: int | None = Field(
        None, title="Window", description="Days of events to train on, up to the newest; by default all.", ge=1
    )
    ingest: IngestConfig = Field(IngestConfig(), title="Ingest", description="From logs to clean events.")
    store: StoreConfig = Field(StoreConfig(), title="Store", description="How users are divided.")
    train: Train = Field(TrainConfig(), title="Training", description="What doc2vec learns, and how.")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), title="Evaluation", description="How quality is measured.")
    export: ExportConfig = Field(ExportConfig(), title="Export", description="How vectors are stored in a release.")
    gate: GateConfig = Field(GateConfig(), title="Gate", description="What a release must reach to serve.")
    publish: PublishConfig = Field(PublishConfig(), title="Registry", description="Where releases are registered.")
    nightly: NightlyConfig = Field(
        NightlyConfig(), title="Night after night", description="How a night continues from the release that serves."
    )
    resources: ResourcesConfig = Field(ResourcesConfig(), title="Resources", description="What a run may use.")

    @model_validator(mode="after")
    def _reduce_to_fewer(self) -> Self:
        if self.export.pca_dim is not None and self.export.pca_dim >= self.train.vector_size:
            raise ValueError(
                f"export.pca_dim is {self.export.pca_dim}, not below train.vector_size {self.train.vector_size}: set it lower, "
                "or leave it out"
            )
        return self

    @property
    def threads(self) -> int:
        return self.train.threads or os.cpu_count() or 1

    @property
    def host_bytes(self) -> int:
        return parse_bytes(self.resources.host_memory)

    def outcome_settings(self) -> dict[str, Any]:
        """Return the settings that affect the result of a run: all except resources, retention and the gate."""
        settings = self.model_dump(mode="json", exclude=_NEUTRAL)
        train = dataclasses.asdict(self.train)
        settings["train"] = {name: value for name, value in train.items() if name not in RESULT_NEUTRAL}
        settings["publish"]["tracking_uri"] = None  # a root has one registry; calls may name it differently
        return settings


DEFAULT_CONFIG = PipelineConfig()


def load_config(file: Path | None, settings: Sequence[str], overrides: Mapping[str, Any] = {}) -> PipelineConfig:
    """Return the configuration: a TOML file, then `key=value` settings, then overrides by dotted key (None is ignored).

    Raises ConfigError for an unreadable file, an unknown key (the message suggests similar ones) or an invalid value.
    """
    values = read_toml(file) if file else {}
    for setting in settings:
        key, separator, text = map(str.strip, setting.partition("="))
        if not separator:
            raise ConfigError(f"--set {setting!r} has no '=': write for instance --set train.epochs=5")
        set_value(values, key, parse_value(key, text))
    for key, value in overrides.items():
        check_key(key)
        if value is not None:
            set_value(values, key, value)
    return _validate(values, file if not settings else None)


def read_toml(file: Path) -> dict[str, Any]:
    """Return the settings in a TOML file. Raises ConfigError if it is unreadable; with the line if a setting is unknown."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {file}: {error}") from None
    for key in flatten(values):
        check_key(key, f"{file}{name_line(file, key)}: ")
    return values


def _validate(values: dict[str, Any], file: Path | None) -> PipelineConfig:
    """Return the configuration. Raises ConfigError for invalid values, which are in `file` if it is given."""
    try:
        return PipelineConfig.model_validate(values)
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False):
            place, text = ".".join(str(part) for part in problem["loc"]), problem["msg"].removeprefix("Value error, ")
            where = f"{file}{name_line(file, place)}: " if file else ""
            # Without a place, the problem is in several keys, which the text names.
            problems.append(where + (f"{place}: {text} (given: {problem['input']!r})" if place else text))
        raise ConfigError("; ".join(problems)) from None


def name_line(file: Path, key: str) -> str:
    """Return ", line N" for the first line of a TOML file that may set a key, or nothing."""
    pattern, lines = re.compile(rf"\s*{re.escape(key.rpartition('.')[2])}\s*="), file.read_text("utf-8").splitlines()
    return next((f", line {n}" for n, line in enumerate(lines, start=1) if pattern.match(line)), "")


def parse_value(key: str, text: str) -> Any:
    """Return the value in `--set key=text`: parsed as JSON if a number, boolean, null or list, else the text."""
    check_key(key)
    try:
        value = json.loads(text)
    except ValueError:
        return text
    setting = all_settings().get(key)  # none is that of an entry in a table
    is_text = not setting or set(setting.types) <= {"string", "null", "array"}
    return text if is_text and not isinstance(value, str | list | None) else value


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
    values[last] = value


def check_key(key: str, where: str = "") -> None:
    """Raise ConfigError if the configuration lacks this dotted key. The message names similar keys, after `where`."""
    settings = all_settings()
    known, tables = list(settings), [name for name, one in settings.items() if "object" in one.types]
    if key in known or any(key.startswith(f"{table}.") for table in tables):
        return
    by_last_part = [name for name in known if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    near = list(dict.fromkeys(by_last_part + difflib.get_close_matches(key, known, n=3, cutoff=0.5)))
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
    raise ConfigError(f"{where}{key}: unknown setting; {hint}")


@dataclass(frozen=True)
class Setting:
    """A setting. values: its choices, or its type and bounds; default: as JSON has it, None if there is none."""

    name: str
    default: Any
    values: str
    description: str
    types: list[str]


@dataclass(frozen=True)
class SettingSection:
    """The settings of a section, without those of the sections inside it. name: as in a TOML table; empty for the whole."""

    name: str
    title: str
    description: str
    settings: list[Setting]


def list_sections(wanted: str | None = None) -> list[SettingSection]:
    """Return the sections in the order of a night; with `wanted` only that section and those inside it.

    Raises ConfigError, with the names there are, if there is no such section.
    """
    whole = PipelineConfig.model_json_schema()
    sections = list(_walk(whole, whole, "", "Run", "The run as a whole."))
    found = [one for one in sections if wanted in (None, one.name) or one.name.startswith(f"{wanted}.")]
    if not found:
        raise ConfigError(f"unknown section {wanted!r}: take {', '.join(one.name for one in sections if one.name)}")
    return found


@cache
def all_settings() -> dict[str, Setting]:
    return {setting.name: setting for section in list_sections() for setting in section.settings}


def _walk(
    whole: dict[str, Any], node: dict[str, Any], prefix: str, title: str, description: str
) -> Iterator[SettingSection]:
    settings, inner = [], []
    for name, child in node["properties"].items():
        if reference := child.get("$ref", "").removeprefix("#/$defs/"):
            section = whole["$defs"][reference]
            about = child.get("description", section.get("description", ""))  # the class's own where they are the same
            inner.append((section, f"{prefix}{name}", child["title"], about))
        else:
            text = " ".join(child["description"].split())
            types = [part.get("type", "string") for part in child.get("anyOf", [child])]
            settings.append(Setting(f"{prefix}{name}", child.get("default"), _values(child), text, types))
    yield SettingSection(prefix.removesuffix("."), title, description, settings)
    for section, name, its_title, its_description in inner:
        yield from _walk(whole, section, f"{name}.", its_title, its_description)


def _values(child: dict[str, Any]) -> str:
    """Return the choices of a setting, or its type and bounds."""
    one = next((part for part in child.get("anyOf", [child]) if part.get("type") != "null"), child)
    if "enum" in one:
        return " | ".join(map(str, one["enum"]))
    bounds = [f"{sign} {_number(one[bound])}" for bound, sign in SIGNS.items() if bound in one]
    return " ".join([KINDS[one.get("type", "string")], ", ".join(bounds)]).strip()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def as_toml(sections: list[SettingSection]) -> list[str]:
    """Return the lines of a TOML file with every setting at its default, all commented out, so that it changes nothing."""
    lines = ["# Settings of surf2vec: take in a line by removing its first #, then `surf2vec run --config THIS-FILE`."]
    for section in sections:
        lines += ["", f"# {section.title}. {section.description}"] + ([f"[{section.name}]"] if section.name else [])
        for setting in section.settings:
            value = "..." if setting.default is None else json.dumps(setting.default, ensure_ascii=False)
            lines += [f"# {setting.description} ({setting.values})", f"#{setting.name.rpartition('.')[2]} = {value}"]
    return lines
