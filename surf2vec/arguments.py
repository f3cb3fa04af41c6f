"""The arguments that commands share: the root, the settings and the logs.

This module and those of the commands import nothing slow: `surf2vec -h` reads their signatures.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from surf2vec.trainer.errors import ConfigError, InputError

if TYPE_CHECKING:
    from surf2vec.tasks.night.config import PipelineConfig
    from surf2vec.tasks.root.run import Root

Result = dict[str, Any]
ROOT = Path("surf2vec-root")
RELEASE = "Which release: models:/NAME@champion or models:/NAME/VERSION."

RootPath = Annotated[str | Path, Option("--root", help="The project root: everything is kept in it.")]
Logs = Annotated[
    str | Sequence[str],
    Option("--logs", help="Glob of log files; repeatable. Omit to use only logs that were read before."),
]
Since = Annotated[date | None, Option(formats=["%Y-%m-%d"], help="First UTC day, of a window or of nights.")]
Until = Annotated[date | None, Option(formats=["%Y-%m-%d"], help="Last UTC day.")]
TrackingUri = Annotated[str | None, Option(help="MLflow; by default the root's own.")]
User = Annotated[str, Argument(help="The user, as in the logs.")]


def existing_root(path: str | Path) -> "Root":
    """Return the root. Raises InputError if the folder is not a root."""
    from surf2vec.tasks.root.run import Root

    root = Root(Path(path))
    if not root.sources.exists():
        raise InputError(f"{path} is not a surf2vec root: name one with --root, or make one with `surf2vec run`")
    return root


def configure(
    config: "PipelineConfig | None", settings: Mapping[str, Any], root: str | Path, as_copy: bool = False
) -> "PipelineConfig":
    """Return the configuration of a call: its settings (two underscores for the dot), then the root's, then the defaults.

    If the root was moved, it is repaired. Raises ConfigError if it is a copy that shares the registry of its original, and not
    `as_copy`.
    """
    from surf2vec.tasks.night.config import DEFAULT_CONFIG, load_config
    from surf2vec.tasks.night.reporter import print_event
    from surf2vec.tasks.night.root_settings import follow_root
    from surf2vec.tasks.root.moves import settle_root
    from surf2vec.tasks.root.run import Root

    settle_root(Root(Path(root)), print_event, as_copy)
    if config and settings:
        raise ConfigError(f"give either a config or single settings ({', '.join(settings)}), not both")
    if settings:
        config = load_config(None, [], {name.replace("__", "."): value for name, value in settings.items()})
    followed = follow_root(config or DEFAULT_CONFIG, Root(Path(root)))
    if followed.publish.stores:  # before a password in one of them is logged
        from surf2vec.tasks.stores.places import parse_place

        list(map(parse_place, followed.publish.stores))
    return followed


def list_globs(logs: str | Sequence[str]) -> list[str]:
    return [logs] if isinstance(logs, str) else list(logs)


def check_logs(logs: list[str], config: "PipelineConfig") -> None:
    """Raise InputError for logs with credentials in their names, before Prefect stores them as parameters, and for local logs
    that are missing or have an unreadable format.
    """
    from surf2vec.tasks.ingest.deliveries import check_shapes
    from surf2vec.tasks.ingest.remote_logs import refuse_credentials

    refuse_credentials(*logs)
    check_shapes(logs, config.ingest)


def check_call(root: str | Path, logs: list[str], config: "PipelineConfig") -> None:
    """Check the logs and the registry of a night before anything starts. Raises ConfigError or InputError."""
    from surf2vec.tasks.root.identity import registry_uri
    from surf2vec.tasks.root.run import Root

    check_logs(logs, config)
    registry_uri(Root(Path(root)), config.publish)


def choose_registry(root: str | Path, tracking_uri: str | None, config: "PipelineConfig | None" = None) -> str:
    from surf2vec.tasks.root.identity import registry_uri
    from surf2vec.tasks.root.run import Root

    return tracking_uri or registry_uri(Root(Path(root)), configure(config, {}, root).publish)


def find_names(root: "Root", config: "PipelineConfig") -> Callable[[str], str]:
    """Return a function from a user's id to the name in the root: the id, or its pseudonym."""
    from surf2vec.tasks.ingest.user_key import read_user_key
    from surf2vec.tasks.users.pseudonyms import pseudonym

    key = read_user_key(root, config.ingest)
    return partial(pseudonym, key=key) if key else str
