"""Which releases are registered, and which one serves. Where the registry is a local SQLite file it is read without MLflow.

Importing MLflow takes longer than everything else that `surf2vec similar` does. The tables are MLflow's own; a file that does
not have them as expected is read by MLflow.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.root.identity import has_registry, registry_uri
from surf2vec.tasks.root.records import RegisterStep
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import InputError, UnavailableError

CHALLENGER, CHAMPION = "challenger", "champion"
_VERSIONS = """
select t.value, v.version from model_versions v join model_version_tags t on t.name = v.name and t.version = v.version
where v.name = :model and t.key = 'release' and v.current_stage <> 'Deleted_Internal' order by v.version
"""
_ALIASES = "select alias, version from registered_model_aliases where name = :model"


@dataclass(frozen=True)
class Releases:
    """numbers: the version of each release; aliases: the version of each alias."""

    numbers: dict[str, int]
    aliases: dict[str, int]

    @property
    def serving(self) -> str | None:
        """The release with the alias champion."""
        champion = self.aliases.get(CHAMPION)
        return next((release for release, number in self.numbers.items() if number == champion), None)


def list_releases(root: Root, publish: PublishConfig) -> Releases:
    """Return the registered releases of the model. Raises ResourceError when MLflow cannot be reached."""
    if not has_registry(root, publish):
        return Releases({}, {})
    uri = registry_uri(root, publish)
    if uri.startswith("sqlite:///"):
        path, model = uri.removeprefix("sqlite:///"), {"model": publish.model_name}
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                return Releases(*(dict(database.execute(query, model).fetchall()) for query in (_VERSIONS, _ALIASES)))
        except sqlite3.Error:
            pass
    from surf2vec.tasks.registry import tracking

    registered = tracking.get_registered(uri, publish.model_name)
    numbers = {one.tags["release"]: one.number for one in registered.versions if "release" in one.tags}
    return Releases(numbers, registered.aliases)


def find_alias(root: Root, publish: PublishConfig, registered: RegisterStep) -> str | None:
    """Return the current alias of a version, or the one in the record if MLflow cannot be reached."""
    try:
        return alias_of(list_releases(root, publish).aliases, registered.model_version)
    except UnavailableError:
        return registered.alias


def alias_of(aliases: dict[str, int], number: int) -> str | None:
    """Return the alias of a version: that which counts more, if it has both."""
    return next((name for name in (CHAMPION, CHALLENGER) if aliases.get(name) == number), None)


def current_release(root: Root, publish: PublishConfig) -> str:
    """Return the release that serves. Raises InputError when there is none, ResourceError when MLflow cannot be reached."""
    if release := list_releases(root, publish).serving:
        return release
    raise InputError(
        f"no release of {publish.model_name} serves in this registry: run `surf2vec run`, or `surf2vec promote VERSION`"
    )
