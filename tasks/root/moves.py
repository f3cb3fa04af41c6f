"""A root that was moved, or that is a copy of another.

MLflow keeps absolute addresses, so those in the root's own registry are changed where `root.json` names another folder than the
root's. A copy, whose original is still there, also gets a `root_id` of its own: neither changes what the other registered.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.identity import read_identity, read_root_id, remember_registry
from surf2vec.tasks.root.records import RegisterStep, ReportStep
from surf2vec.tasks.root.run import Root, Run, read_run_records
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.events import OnEvent, log
from surf2vec.trainer.system.files import lock, replace_file, sync_path

_COLUMNS = {  # MLflow's tables and columns with addresses, and with the tag of the root
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "tags": ("value",),
    "logged_models": ("artifact_location",),
    "logged_model_tags": ("tag_value",),
    "model_versions": ("source", "storage_location"),
    "model_version_tags": ("value",),
}


def settle_root(root: Root, on_event: OnEvent, as_copy: bool = False) -> None:
    """Do what a move or a copy of the root requires, once. If it is killed, the next call does it again.

    as_copy: a copy may have an identity of its own, though it shares a registry with its original. Raises ConfigError without
    that, ResourceError if the registry or the root cannot be written to.
    """
    here = root.path.resolve()
    if (
        not root.identity.exists()
        or read_identity(root).get("path") in (None, str(here))
        or not os.access(here, os.W_OK)
    ):
        return
    with lock(root.path / ".root.lock"):
        identity = read_identity(root)
        before, root_id, uri = (identity.get(name) for name in ("path", "root_id", "tracking_uri"))
        if before and before != str(here) and root_id:
            original = Root(Path(before))
            is_other = os.access(original.identity, os.R_OK) and not original.path.samefile(here)
            is_copy = is_other and read_root_id(original) == root_id
            if is_copy and uri and not as_copy:
                raise ConfigError(
                    f"{here} is a copy of {before}, and both publish to {mask_credentials(uri)} as the same root: remove one of "
                    f"them, or give the copy an identity of its own: `surf2vec run --as-copy --root {root.path}`"
                )
            own_id = uuid5(NAMESPACE_URL, f"{root_id}:{here}").hex if is_copy else root_id
            if not uri and root.database.exists():
                _change_registry(root, {f"{Path(before).as_uri()}/": f"{here.as_uri()}/", root_id: own_id})
            elif is_copy:
                _forget_versions(root)
            root_id = own_id
            what = "is a copy of {}: it has an identity of its own" if is_copy else "was moved here from {}"
            changed = "" if uri else ", and the addresses in its registry were changed"
            log(on_event, f"{here} {what.format(before)}{changed}")
        remember_registry(root, root_id or "", uri or root.tracking_uri)


def _change_registry(root: Root, changes: dict[str, str]) -> None:
    """Replace texts in the root's own registry: in MLflow's tables, in one transaction, after the files of its models."""
    for path in root.artifacts.glob("models/*/artifacts/MLmodel"):
        text = _replace_all(path.read_text(encoding="utf-8"), changes)
        with replace_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    try:
        with closing(sqlite3.connect(root.database, timeout=60)) as database, database:
            database.create_function("replace_all", 1, lambda text: text and _replace_all(text, changes))
            for table, columns in _COLUMNS.items():
                values = ", ".join(f"{column} = replace_all({column})" for column in columns)
                database.execute(f"update {table} set {values}")
        sync_path(root.path)  # the end of SQLite's journal, before root.json
    except sqlite3.Error as error:
        raise ResourceError(
            f"the addresses in {root.database} cannot be changed to those of this folder ({error}): stop what uses it, or "
            "restore a backup of it, then run the same command again"
        ) from None


def _replace_all(text: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        text = text.replace(before, after)
    return text


def _forget_versions(root: Root) -> None:
    """Mark all releases as not registered: the versions are those of the original."""
    for record in read_run_records(root):
        gone = [step for step in record.steps.ended().values() if isinstance(step, RegisterStep | ReportStep)]
        steps = record.steps.without(RegisterStep, ReportStep)
        Run(root, record.run_id).update(steps=steps, gone_steps=record.gone_steps.replace(*gone))
