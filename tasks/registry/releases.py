"""Which releases are registered, and which one serves. A registry in a local SQLite file is read and changed without MLflow.

Importing MLflow takes longer than everything else that `surf2vec similar` or `rollback` does. The tables are MLflow's own; a
file that does not have them as expected is left to MLflow.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.versions import Registered, Version, alias_of, as_time, is_copied, read_tags, store_tags
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.identity import has_registry, registry_uri
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import InputError, ResourceError, UnavailableError
from surf2vec.trainer.system.files import sync_path

_SQLITE = "sqlite:///"
_VERSIONS = """
select name, version, source, coalesce(storage_location, source), creation_time from model_versions
where current_stage <> 'Deleted_Internal'
"""
_TAGS = "select name, version, key, value from model_version_tags"
_ALIASES = "select name, alias, version from registered_model_aliases"
_DELETED = "select experiment_id from experiments where name = ? and lifecycle_stage = 'deleted'"
_PLACE = "select workspace, name, version from model_versions where name = ? and version = ? and current_stage not like 'Del%'"
_SET_TAG = "insert into model_version_tags (workspace, name, version, key, value) values (?, ?, ?, ?, ?)"
_DELETE_TAG = "delete from model_version_tags where workspace = ? and name = ? and version = ? and key = ?"
_SET_ALIAS = "insert or replace into registered_model_aliases (workspace, name, version, alias) values (?, ?, ?, ?)"


def read_registry(root: Root, publish: PublishConfig) -> Registered:
    """Return the model's versions and aliases, none before the first. Raises ResourceError if MLflow cannot be reached."""
    if not has_registry(root, publish):
        return Registered([], {})
    return read_model(registry_uri(root, publish), publish.model_name)


def read_model(tracking_uri: str, model_name: str) -> Registered:
    """Return the versions and aliases of a model in a registry; empty if there is no such model."""
    versions, aliases = _read(tracking_uri, model_name)
    ours = sorted((one for one in versions if one.name == model_name), key=lambda version: version.number)
    return Registered(ours, dict(sorted(aliases.get(model_name, {}).items())))


def list_versions(tracking_uri: str) -> list[Version]:
    return _read(tracking_uri, None)[0]


def _read(tracking_uri: str, model_name: str | None) -> tuple[list[Version], dict[str, dict[str, int]]]:
    """Return the versions of a model, or of all models, and the aliases of each model; of a SQLite file those of all models."""
    if found := _read_tables(tracking_uri):
        return found
    from surf2vec.tasks.registry import tracking

    return tracking.read(tracking_uri, model_name)


def _read_tables(tracking_uri: str) -> tuple[list[Version], dict[str, dict[str, int]]] | None:
    """Return the versions of a registry in a SQLite file, and the aliases of each model; None if only MLflow can read it."""
    if not tracking_uri.startswith(_SQLITE):
        return None
    tags: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    aliases: dict[str, dict[str, int]] = defaultdict(dict)
    try:
        with _open_tables(tracking_uri, "ro") as database:
            rows = database.execute(_VERSIONS).fetchall()
            for name, number, key, value in database.execute(_TAGS):
                tags[name, number][key] = value
            for name, alias, number in database.execute(_ALIASES):
                aliases[name][alias] = int(number)
    except sqlite3.Error:
        return None
    versions = [
        Version(name, number, read_tags(tags[name, number]), is_copied(source), location, as_time(created_ms))
        for name, number, source, location, created_ms in rows
    ]
    return versions, aliases


def check_experiment(root: Root, publish: PublishConfig) -> None:
    """Raise ResourceError if the experiment was deleted: after a training MLflow would refuse its release."""
    uri, found = registry_uri(root, publish), None
    if not uri.startswith(_SQLITE):
        from surf2vec.tasks.registry import mlflow_runs

        found = mlflow_runs.find_deleted(uri, publish.experiment)
    elif has_registry(root, publish):
        with suppress(sqlite3.Error), _open_tables(uri, "ro") as database:
            found = database.execute(_DELETED, (publish.experiment,)).fetchone()
    if found:
        deleted = f"the experiment {publish.experiment!r} was deleted in MLflow at {mask_credentials(uri)}"
        way_out = f"restore it by `mlflow experiments restore --experiment-id {found[0]}`, or name another by publish.experiment"
        raise ResourceError(f"{deleted}: {way_out}")


def _open_tables(tracking_uri: str, mode: str) -> closing[sqlite3.Connection]:
    place = Path(tracking_uri.removeprefix(_SQLITE)).absolute().as_uri()
    return closing(sqlite3.connect(f"{place}?mode={mode}", uri=True))


def move_aliases(tracking_uri: str, version: Version, tags: Mapping[str, str | None], aliases: list[str]) -> None:
    """Set tags of a version (None removes a tag), then move the aliases to it; in a SQLite file in one transaction."""
    if not _write_tables(tracking_uri, version, store_tags(version.tags, tags), aliases):
        from surf2vec.tasks.registry import tracking

        tracking.set_tags(tracking_uri, version, tags)
        for alias in aliases:
            tracking.set_alias(tracking_uri, version.name, alias, version.number)


def _write_tables(tracking_uri: str, version: Version, tags: Mapping[str, str | None], aliases: list[str]) -> bool:
    """Do what `move_aliases` does in a SQLite file. Returns False, and changes nothing, if only MLflow can do it."""
    if not tracking_uri.startswith(_SQLITE):
        return False
    try:
        with _open_tables(tracking_uri, "rw") as database, database:
            database.execute("begin immediate")
            [place] = database.execute(_PLACE, (version.name, version.number)).fetchall()
            database.executemany(_DELETE_TAG, [(*place, name) for name in tags])
            database.executemany(_SET_TAG, [(*place, *one) for one in tags.items() if one[1] is not None])
            database.executemany(_SET_ALIAS, [(*place, alias) for alias in aliases])
    except (sqlite3.Error, ValueError):  # ValueError: the version was deleted
        return False
    # Else the journal could come back, and undo it (mlflow_runs.connect).
    sync_path(Path(tracking_uri.removeprefix(_SQLITE)).parent)
    return True


def add_serving(root: Root, publish: PublishConfig, record: RunRecord) -> RunRecord:
    """Return a record with its version's alias, and why a person promoted it; None if nothing is registered or MLflow is away."""
    registered, gate = record.steps.registered, record.steps.gate
    try:
        found = read_registry(root, publish) if registered else Registered([], {})
    except UnavailableError:
        return record
    if version := found.get(registered.model_version):
        registered = registered.model_copy(update={"alias": alias_of(found.aliases, version.number)})
        gate = gate.model_copy(update={"overridden": version.tags.get("override_reason")} if gate else {})
    return record.replace(steps=record.steps.replace(registered, gate))


def current_release(root: Root, publish: PublishConfig) -> str:
    """Return the release that serves. Raises InputError when there is none, ResourceError when MLflow cannot be reached."""
    if release := read_registry(root, publish).serving:
        return release
    raise InputError(f"no release of {publish.model_name} serves: run `surf2vec run`, or `surf2vec promote VERSION`")
