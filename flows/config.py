"""The configuration of a run: one frozen model. It is the form in Prefect's UI, the TOML file and what `--set` reaches."""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, GetPydanticSchema, TypeAdapter, ValidationError, model_validator
from pydantic_core import core_schema

from flows.removed_settings import ALWAYS, REMOVED
from tasks.config import (
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
from trainer.config import TrainConfig, TrainSettings, complete
from trainer.errors import ConfigError
from trainer.training.job import RESULT_NEUTRAL

_NEUTRAL: Any = {
    "resources": True, "gate": True, "train": True, "publish": {"keep_releases", "with_state"},
}  # fmt: skip

Train = Annotated[
    TrainConfig,
    GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(complete, handler(TrainSettings))
    ),
]
"""A whole TrainConfig, of which a person sees and sets the TrainSettings."""


class PipelineConfig(Section):
    """Everything that can be set, with its default, description and bounds."""

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
        NightlyConfig(), title="Night after night", description="How a night goes on from the release that serves."
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

    def outcome_settings(self) -> dict[str, Any]:
        """The settings that say what a run makes: all but the resources it may use for it, what is kept, and the gate.

        Settings that became constants are among them, so that runs of before are known again.
        """
        settings = self.model_dump(mode="json", exclude=_NEUTRAL)
        train = dataclasses.asdict(self.train)
        settings["train"] = {name: value for name, value in train.items() if name not in RESULT_NEUTRAL}
        settings["ingest"] |= {"granularity": self.ingest.item_kind, "prefix_depth": self.ingest.prefix_depth}
        for key, value in ALWAYS.items():
            set_value(settings, key, value)
        settings["publish"]["tracking_uri"] = None  # a root has one registry, however a call names it
        return settings


def load_config(file: Path | None, settings: Sequence[str], **overrides: Any) -> PipelineConfig:
    """The configuration from a TOML file, then `key=value` settings, then overrides (dotted keys; None is left out).

    Raises ConfigError for a file that cannot be read, an unknown key (its nearest neighbours are named) or a bad value.
    """
    values: dict[str, Any] = read_toml(file) if file else {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator:
            raise ConfigError(f"--set {setting!r} has no '=': write for instance --set train.epochs=5")
        set_value(values, key.strip(), parse_value(key.strip(), text.strip()))
    for key, value in overrides.items():
        if value is not None:
            set_value(values, key.replace("__", "."), value)
    return check_config(values)


def read_toml(file: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises ConfigError when there is none or it is not TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {file}: {error}") from None


def check_config(values: dict[str, Any]) -> PipelineConfig:
    """A PipelineConfig from nested dictionaries. Raises ConfigError that names what is wrong and where."""
    for key in leaves(values):
        check_key(key)
    try:
        return PipelineConfig.model_validate(values)
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False):
            place, text = ".".join(str(part) for part in problem["loc"]), problem["msg"].removeprefix("Value error, ")
            # Without a place, it is of several keys, which the text names.
            problems.append(f"{place}: {text} (given: {problem['input']!r})" if place else text)
        raise ConfigError("; ".join(problems)) from None


def parse_value(key: str, text: str) -> Any:
    """The value in `--set key=text`: JSON where it is a number, boolean, null or list, otherwise the text itself."""
    check_key(key)
    try:
        value = json.loads(text)
    except ValueError:
        return text
    is_text = _schema_types(key) <= {"string", "null", "array"} and not isinstance(value, str | list | None)
    return text if is_text else value


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested dictionaries."""
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
    values[last] = value


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of nested dictionaries."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def check_key(key: str) -> None:
    """Raise ConfigError, naming what took its place or the nearest known keys, unless the configuration has this dotted key."""
    known = known_keys()
    if key in known:
        return
    if key in REMOVED:
        raise ConfigError(f"{key} is no longer a setting: {REMOVED[key]}")
    by_last_part = [name for name in known if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    near = list(dict.fromkeys(by_last_part + difflib.get_close_matches(key, known, n=3, cutoff=0.5)))
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
    raise ConfigError(f"{key} is no setting; {hint}")


def known_keys() -> list[str]:
    """Every dotted key of the configuration."""
    return list(_flat_schema())


def _schema_types(key: str) -> set[str]:
    """The JSON types that a key takes."""
    schema = _flat_schema()[key]
    return {part.get("type", "string") for part in schema.get("anyOf", [schema])}


def _flat_schema() -> dict[str, dict[str, Any]]:
    schema = TypeAdapter(PipelineConfig).json_schema()

    def walk(node: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, child in node["properties"].items():
            reference = child.get("$ref", "").removeprefix("#/$defs/")
            if reference:
                yield from walk(schema["$defs"][reference], f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", child

    return dict(walk(schema, ""))
