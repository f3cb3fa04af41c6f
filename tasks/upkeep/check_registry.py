"""What `surf2vec doctor` says of a root's own registry: its database, and the copies that versions serve from."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tasks.root.run import Root
from trainer.errors import SurfError


def find_damage(root: Root) -> Iterator[tuple[str, str]]:
    """Place and message for what is damaged in a registry that is there, with what to do."""
    path = root.database
    if problem := _examine_database(path):
        yield (
            str(path),
            f"the registry's database is damaged ({problem}): bring back a copy of it, or move it away and run "
            "with --full: a release is then registered in a new one, as version 1",
        )
        return
    from tasks.registry import tracking  # MLflow takes seconds to import
    from tasks.registry.registered_copies import find_faults

    try:
        for model in tracking.list_models(root.tracking_uri):
            for version in tracking.get_registered(root.tracking_uri, model).versions:
                place = f"models:/{model}/{version.number}"
                for fault in find_faults(root.tracking_uri, version):
                    yield (
                        place,
                        f"{fault}; give the `surf2vec run` again that made release {version.tags['release']}: it mends the copy",
                    )
    except SurfError as error:
        yield str(path), str(error)


def _examine_database(path: Path) -> str | None:
    """What sqlite says is wrong with a database, in a line; None where it is whole. Changes nothing."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            (found,) = database.execute("pragma integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else str(found).splitlines()[0]
