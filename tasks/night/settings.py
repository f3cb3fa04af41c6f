"""Every setting with its default, bounds and meaning: for `surf2vec settings`, a TOML file, and docs/settings.md."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from surf2vec.tasks.night.config import PipelineConfig
from surf2vec.trainer.errors import ConfigError

KINDS = {"integer": "integer", "number": "number", "boolean": "true, false", "array": "names", "string": "text"}
SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class Setting:
    """A setting. values: its choices, or its type and bounds; default: as JSON has it, None if there is none."""

    name: str
    default: Any
    values: str
    description: str


@dataclass(frozen=True)
class SettingSection:
    """The settings of a section, without those of the sections inside it. name: as in a TOML table; empty for the whole."""

    name: str
    title: str
    description: str
    settings: list[Setting]


def schema() -> dict[str, Any]:
    """Returns the JSON schema of the configuration."""
    return TypeAdapter(PipelineConfig).json_schema()


def list_sections(wanted: str | None = None) -> list[SettingSection]:
    """Returns the sections in the order of a night; with `wanted` only that section and those inside it.

    Raises ConfigError, with the names there are, if there is no such section.
    """
    whole = schema()
    sections = list(_walk(whole, whole, "", "Run", "The run as a whole."))
    found = [one for one in sections if wanted in (None, one.name) or one.name.startswith(f"{wanted}.")]
    if not found:
        raise ConfigError(f"there is no section {wanted!r}: take {', '.join(one.name for one in sections if one.name)}")
    return found


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
            settings.append(Setting(f"{prefix}{name}", child.get("default"), _values(child), text))
    yield SettingSection(prefix.removesuffix("."), title, description, settings)
    for section, name, its_title, its_description in inner:
        yield from _walk(whole, section, f"{name}.", its_title, its_description)


def _values(child: dict[str, Any]) -> str:
    """Returns the choices of a setting, or its type and bounds."""
    one = next((part for part in child.get("anyOf", [child]) if part.get("type") != "null"), child)
    if "enum" in one:
        return " | ".join(map(str, one["enum"]))
    bounds = [f"{sign} {_number(one[bound])}" for bound, sign in SIGNS.items() if bound in one]
    return " ".join([KINDS[one.get("type", "string")], ", ".join(bounds)]).strip()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def as_toml(sections: list[SettingSection]) -> list[str]:
    """Returns the lines of a TOML file with every setting at its default, all commented out, so that it changes nothing."""
    lines = ["# Settings of surf2vec: take in a line by removing its first #, then `surf2vec run --config THIS-FILE`."]
    for section in sections:
        lines += ["", f"# {section.title}. {section.description}"] + ([f"[{section.name}]"] if section.name else [])
        for setting in section.settings:
            value = "..." if setting.default is None else json.dumps(setting.default, ensure_ascii=False)
            lines += [f"# {setting.description} ({setting.values})", f"#{setting.name.rpartition('.')[2]} = {value}"]
    return lines
