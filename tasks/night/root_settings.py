"""What a root remembers: `ROOT/surf2vec.toml`, the settings of `ingest` and `publish` that a person gave.

Every command reads it; what a call gives comes first. `run`, `backfill` and `tune` write to it what they were given, once the
logs have passed the checks and before their events are committed. A person may edit it. It never gets what is meant for one
delivery (ingest.max_reject_ratio), nor what has a password.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from surf2vec.tasks.night.config import PipelineConfig, list_sections, load_config, name_line, read_toml
from surf2vec.tasks.root.credentials import mask_values
from surf2vec.tasks.root.identity import is_same_registry, plain_uri
from surf2vec.tasks.root.run import Root, Run
from surf2vec.tasks.root.wording import flatten
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.system.files import raise_if_unwritten, replace_file

SECTIONS = ("ingest", "publish")
_HEADER = '# Settings of this root, which every command reads. You may edit them: docs/logs.md, "A root remembers".'
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@|(passw(or)?d|secret|token|api_?key)=", re.IGNORECASE)


def read_settings(root: Root) -> dict[str, Any]:
    """Return the settings in the root's file by key. Raises ConfigError, with the line, for what it cannot have."""
    path = root.settings
    if not path.exists():
        return {}
    if other := next((key for key in flatten(read_toml(path)) if key.partition(".")[0] not in SECTIONS), None):
        raise ConfigError(
            f"{path}{name_line(path, other)}: {other} belongs to a call; a root has settings of ingest and publish: give it "
            "with --set, or in a file of your own with --config"
        )
    return list_given(load_config(path, []))


def list_given(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings of a root, by key, that are set, be it to the default; but Prefect's form sets all to it."""
    is_form = config.model_fields_set >= set(PipelineConfig.model_fields)
    return flatten(config.model_dump(mode="json", include=set(SECTIONS), exclude_unset=True, exclude_defaults=is_form))


def follow_root(config: PipelineConfig, root: Root) -> PipelineConfig:
    """Return the configuration of a call, with the root's settings where the call gives none."""
    if not (known := read_settings(root)):
        return config
    merged = load_config(None, [], known | list_given(config))
    return config.model_copy(update={name: getattr(merged, name) for name in SECTIONS})


def list_values(root: Root, section: str | None, file: Path | None, settings: Sequence[str]) -> list[dict[str, Any]]:
    """Return `list_sections`, each setting with its value in a call with this --config and --set, and where it comes from."""
    values = mask_values(flatten(follow_root(load_config(file, settings), root).model_dump(mode="json")))
    origins = dict.fromkeys(read_settings(root), root.settings.name)
    origins |= dict.fromkeys(flatten(read_toml(file)) if file else (), "--config")
    origins |= dict.fromkeys((setting.partition("=")[0].strip() for setting in settings), "--set")
    sections = [asdict(one) for one in list_sections(section)]
    for one in (one for each in sections for one in each["settings"]):
        one |= {"value": values.get(one["name"]), "from": origins.get(one["name"], "default")}
    return sections


def find_new(root: Root, config: PipelineConfig) -> dict[str, Any]:
    """Return the settings of a call that its root has to write."""
    known, given = read_settings(root), list_given(config)
    if uri := given.get("publish.tracking_uri"):  # the root's own moves with it
        given["publish.tracking_uri"] = None if is_same_registry(uri, root.tracking_uri) else plain_uri(uri)
    given.pop("ingest.max_reject_ratio", None)
    return {key: value for key, value in given.items() if known.get(key) != value}


def remember(root: Root, config: PipelineConfig, on_event: OnEvent) -> None:
    """Write what is new in the settings of a call into the root's file, durably. The caller holds the writer lock."""
    new, path = find_new(root, config), root.settings
    for key in [key for key, value in new.items() if _PASSWORD.search(json.dumps(value))]:
        log(on_event, f"{key} has a password, so {path} does not keep it: leave the password out, or give it each time")
        del new[key]
    if not new:
        return
    old = path.read_text(encoding="utf-8").splitlines() if path.exists() else [_HEADER]
    lines = [line for line in old if line.startswith("#")]
    values = {tuple(key.rsplit(".", 1)): one for key, one in (read_settings(root) | new).items() if one is not None}
    for table, keys in groupby(sorted(values), lambda key: key[0]):
        texts = ((key[1], json.dumps(values[key], ensure_ascii=False).replace("\x7f", "\\u007f")) for key in keys)
        lines += ["", f"[{table}]", *(f"{name} = {text}" for name, text in texts)]
    with raise_if_unwritten(root.path, path.name), replace_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    log(on_event, f"{path} keeps {', '.join(new)}: later commands need not be given them")


def remember_run(root: Root, run_id: str, on_event: OnEvent) -> None:
    """Write the settings of a run that are not the defaults into the file of a root that was lost with its own."""
    made, usual = flatten(Run(root, run_id).record().config), flatten(PipelineConfig().model_dump(mode="json"))
    kept = [key for key in made.keys() & usual if key.partition(".")[0] in SECTIONS and made[key] != usual[key]]
    if not root.settings.exists():  # root.json has the registry
        given = {key: made[key] for key in kept if key != "publish.tracking_uri"}
        remember(root, load_config(None, [], given), on_event)
