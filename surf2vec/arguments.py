"""The arguments that commands share: the root, the settings, the logs, and the locks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.tasks.night.config import DEFAULT_CONFIG, PipelineConfig, load_config
from surf2vec.tasks.root.run import Root, lock_root
from surf2vec.trainer.errors import ConfigError, InputError
from surf2vec.trainer.events import OnEvent, log

ROOT = Path("surf2vec-root")


def existing_root(path: str | Path) -> Root:
    """Return the root. Raises InputError if the folder is not a root."""
    root = Root(Path(path))
    if not root.sources.exists():
        raise InputError(f"{path} is not a surf2vec root: name one with --root, or make one with `surf2vec run`")
    return root


def configure(config: PipelineConfig | None, settings: Mapping[str, Any]) -> PipelineConfig:
    """Return the configuration. settings: by name, with two underscores for the dot. Raises ConfigError for an unknown one."""
    if config and settings:
        raise ConfigError(f"give either a config or single settings ({', '.join(settings)}), not both")
    if config or not settings:
        return config or DEFAULT_CONFIG
    return load_config(None, [], {name.replace("__", "."): value for name, value in settings.items()})


def list_globs(logs: str | Sequence[str]) -> list[str]:
    return [logs] if isinstance(logs, str) else list(logs)


def check_logs(logs: list[str], config: PipelineConfig) -> None:
    """Raise InputError for logs with credentials in their names, before Prefect stores them as parameters, and for local logs
    that are missing or have an unreadable format.
    """
    from surf2vec.tasks.ingest.formats import check_shapes
    from surf2vec.tasks.ingest.remote_logs import refuse_credentials

    refuse_credentials(*logs)
    check_shapes(logs, config.ingest)


def check_call(root: str | Path, logs: list[str], config: PipelineConfig) -> None:
    """Check the logs and the registry of a night before anything starts. Raises ConfigError or InputError."""
    from surf2vec.tasks.root.identity import registry_uri

    check_logs(logs, config)
    registry_uri(Root(Path(root)), config.publish)


@contextmanager
def lock_writers(root: Root, purpose: str, on_event: OnEvent) -> Iterator[None]:
    """Hold the locks of the root and of its store, if it has one."""
    from surf2vec.trainer.store.writer import lock_store

    with (
        lock_root(root, purpose, partial(log, on_event)),
        lock_store(root.store) if root.store.exists() else nullcontext(),
    ):
        yield
