"""The versions of a registered model, and their tags.

Tags that people read stand alone, at most six; those that only programs read share a JSON tag per group. A group has one writer,
so that none overwrites what another has just written.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from surf2vec.tasks.root.identity import ROOT_TAG

CHALLENGER, CHAMPION = "challenger", "champion"
GROUPS = {
    "surf2vec_files": (  # written by a registration
        "manifest_sha256", ROOT_TAG, "storage", "export_path", "export_uri", "state_sha256", "state_path",
    ),
    "surf2vec_serving": (  # written when aliases move
        "held_by", "override_reason", "champion_before", "promoted_at", "rolled_back_at", "rolled_back_from",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Version:
    """A version of a registered model. `is_copied`: it was copied from another version, with its tags.

    `location`: where its files are; of a version on a server the id of the logged model that has them, or their location.
    """

    name: str
    number: int
    tags: dict[str, str]
    is_copied: bool = False
    location: str = field(default="", compare=False)
    created_at: datetime = field(default=datetime.min, compare=False)

    @property
    def place(self) -> str:
        return f"models:/{self.name}/{self.number}"

    @property
    def release(self) -> str:
        """The release, or "version N" if surf2vec did not register it."""
        return self.tags.get("release", f"version {self.number}")

    @property
    def has_served(self) -> bool:
        """Whether it served, and was not rolled back since."""
        return {"promoted_at", "rolled_back_at"} & self.tags.keys() == {"promoted_at"}

    @property
    def folder(self) -> Path | None:
        return local_folder(self.location)


@dataclass(frozen=True)
class Registered:
    """Versions, oldest first, and the version number of each alias."""

    versions: list[Version]
    aliases: dict[str, int]

    def get(self, number: int | None) -> Version | None:
        return next((one for one in self.versions if one.number == number), None)

    @property
    def champion(self) -> Version | None:
        return self.get(self.aliases.get(CHAMPION))

    @property
    def last_served(self) -> Version | None:
        """The champion or, if a person removed its alias, the version that served last."""
        served = [one for one in self.versions if one.has_served and not one.is_copied]
        return self.champion or max(served, key=lambda one: (one.tags["promoted_at"], one.number), default=None)

    @property
    def needed(self) -> set[int]:
        """The versions that promotions and rollbacks choose: those with an alias, what served last, and what it replaced."""
        last = self.last_served
        before = last and "rolled_back_from" not in last.tags and last.tags.get("champion_before")
        return {*self.aliases.values(), *([last.number] if last else []), *([int(before)] if before else [])}

    @property
    def serving(self) -> str | None:
        """The release with the alias champion."""
        return self.champion.release if self.champion else None

    @property
    def numbers(self) -> dict[str, int]:
        """The version of each release."""
        return {one.tags["release"]: one.number for one in self.versions if "release" in one.tags}


def local_folder(location: str) -> Path | None:
    """Return the folder that a file:// URI or an absolute path names; None for other places."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return Path(location) if location.startswith("/") else None


def is_copied(source: str) -> bool:
    """Return whether a version with this source was copied from another one: models:/NAME/VERSION, not models:/MODEL_ID."""
    return source.startswith("models:/") and "/" in source.removeprefix("models:/")


def as_time(created_ms: int) -> datetime:
    return datetime.fromtimestamp(created_ms / 1000, UTC)


def alias_of(aliases: dict[str, int], number: int) -> str | None:
    """Return the alias of a version: that which counts more, if it has both."""
    return next((name for name in (CHAMPION, CHALLENGER) if aliases.get(name) == number), None)


def read_tags(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a version by name: those that are stored alone, and those of the groups."""
    tags = {name: value for name, value in stored.items() if name not in GROUPS}
    for group in GROUPS.keys() & stored.keys():
        tags |= json.loads(stored[group])
    return tags


def store_tags(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return what to store so that a version with the tags `before` has the changes; None removes a tag."""
    after = {**before, **changes}
    groups: dict[str, str | None] = {}
    for group, names in GROUPS.items():
        if changes.keys() & set(names):
            groups[group] = json.dumps({name: after[name] for name in names if after.get(name) is not None})
    alone = changes.keys() - {name for names in GROUPS.values() for name in names}
    return {name: value for name, value in changes.items() if name in alone} | groups
