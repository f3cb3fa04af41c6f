"""The registry that a root publishes to, and the id that marks what this root registered.

Both are in `root.json`, which is written when the root first registers something:

    root_id       a random name; the tag `surf2vec_root` of every MLflow run, logged model and model version of the root
    tracking_uri  the registry, without credentials; null: the root's own database, which moves with the root
    path          the folder of the root; if it is another one, the root was moved or copied (tasks/root/moves.py)

A root publishes to one registry. To move it, change `tracking_uri` in the file; `surf2vec restore` writes the registry it read.
"""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.root.credentials import mask_credentials, strip_credentials
from surf2vec.tasks.root.records import RunRecord
from surf2vec.tasks.root.run import Root, read_run_records
from surf2vec.trainer.errors import ConfigError, DamageError
from surf2vec.trainer.system.files import lock, read_json, write_json

ROOT_TAG = "surf2vec_root"
ENVIRONMENT = "MLFLOW_TRACKING_URI"
_SQLITE = "sqlite:///"
_DATABASES = ("postgresql", "mysql", "mssql")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def registry_uri(root: Root, publish: PublishConfig) -> str:
    """Return the tracking URI: the setting, else that of root.json, else $MLFLOW_TRACKING_URI, else the root's own database.

    The setting, or else the environment, may spell the URI of root.json differently, for instance with credentials.
    Raises ConfigError when it names another registry, DamageError when root.json is invalid.
    """
    own = root.tracking_uri
    known = (read_identity(root).get("tracking_uri") or own) if root.identity.exists() else None
    given = {"publish.tracking_uri": publish.tracking_uri, ENVIRONMENT: os.environ.get(ENVIRONMENT)}
    name, uri = next(((name, uri) for name, uri in given.items() if uri), ("", None))
    if uri is None:
        return known if known and known != own else _check_own(root)
    if (spelled := given[ENVIRONMENT]) and is_same_registry(uri, spelled):
        uri = spelled  # it may have the password
    if known and not is_same_registry(uri, known):
        raise ConfigError(
            f"{root.path} publishes to {mask_credentials(known)}, but {name} names {mask_credentials(uri)}: leave that out or "
            f'name the same. To move the root to the other registry, change "tracking_uri" in {root.identity}, and in '
            f"{root.settings.name} if it is there; its releases stay where they are, so the next night there is the first one"
        )
    return _check_own(root) if is_same_registry(uri, own) else uri


def _check_own(root: Root) -> str:
    """Return the URI of the root's own database. Raises ConfigError if MLflow would look for it elsewhere."""
    if found := re.search(r"\?|%[0-9A-Fa-f]{2}", root.tracking_uri):
        raise ConfigError(
            f"MLflow cannot keep a registry in {root.path.resolve()}, because of {found[0]!r} in the path: rename the folder, or "
            "name another --root"
        )
    return root.tracking_uri


def is_own_registry(root: Root, publish: PublishConfig) -> bool:
    return registry_uri(root, publish) == root.tracking_uri


def artifacts_folder(root: Root, uri: str) -> Path | None:
    """Return the folder for the artifacts of a registry in a database, where MLflow would take the current folder; None if a
    server or MLflow chooses.
    """
    if uri.startswith(_SQLITE):
        return Path(uri.removeprefix(_SQLITE)).resolve().parent / root.artifacts.name
    return root.artifacts if uri.startswith(_DATABASES) else None


def has_registry(root: Root, publish: PublishConfig) -> bool:
    """Return whether anything can have been registered. Does not open the root's own database: that would create it."""
    return not is_own_registry(root, publish) or root.database.exists()


def claim_registry(root: Root, publish: PublishConfig) -> str:
    """Return the root's id. The first call creates it and writes root.json; call it before registering anything."""
    with lock(root.path / ".root.lock"):  # not the writer lock: `surf2vec tune` registers during a nightly run
        uri, root_id = registry_uri(root, publish), read_root_id(root)
        if root_id is None:
            root_id = uuid4().hex
            remember_registry(root, root_id, uri)
    return root_id


def remember_registry(root: Root, root_id: str, uri: str) -> None:
    """Write root.json."""
    kept = None if is_same_registry(uri, root.tracking_uri) else plain_uri(uri)
    write_json(root.identity, {"root_id": root_id, "tracking_uri": kept, "path": str(root.path.resolve())})


def read_root_id(root: Root) -> str | None:
    return read_identity(root).get("root_id")


def is_same_registry(first: str, second: str) -> bool:
    """Return whether two URIs name one registry; ignores credentials, a final slash, a default port and how a path is written."""
    return plain_uri(first) == plain_uri(second)


def find_record_uri(root: Root, record: RunRecord) -> str | None:
    """Return the URI where a run registered its release, or None. The root's own database may have moved with the root."""
    registered = record.steps.registered or record.gone_steps.registered
    if not registered or not registered.tracking_uri:
        return None
    uri = registered.tracking_uri
    is_sqlite = uri.startswith(_SQLITE) and uri.endswith(f"/{root.database.name}")
    return root.tracking_uri if is_sqlite and record.setting("publish", "tracking_uri") is None else uri


def list_earlier(root: Root, publish: PublishConfig) -> list[str]:
    """Return the other registries that the root published to before it was moved to this one."""
    uri, records = registry_uri(root, publish), read_run_records(root)
    found = [strip_credentials(one) for record in records if (one := find_record_uri(root, record))]
    return sorted({one for one in found if not is_same_registry(one, uri)})


def read_identity(root: Root) -> dict[str, Any]:
    found = read_json(root.identity) if root.identity.exists() else {}
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), str | None) for name in ("root_id", "tracking_uri", "path")
    ):
        raise DamageError(f'{root.identity} is not {{"root_id": text, "tracking_uri": text or null}}: correct it')
    return found


def plain_uri(uri: str) -> str:
    """Return the URI without credentials, in the form in which URIs are compared."""
    uri = strip_credentials(uri)
    if uri.startswith(_SQLITE):
        return f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).resolve()}"
    parts = urlsplit(uri)
    if parts.scheme == "file" or (not parts.scheme and "/" in uri):
        return Path(unquote(parts.path)).resolve().as_uri()
    place = parts.netloc.lower().removesuffix(_DEFAULT_PORTS.get(parts.scheme, "/"))
    return parts._replace(netloc=place, path=parts.path.rstrip("/")).geturl()
