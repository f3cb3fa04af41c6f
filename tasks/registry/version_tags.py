"""The tags of a version. Those that people read stand alone, at most six; those that only programs read share a JSON tag a group.

A group has one writer, so that none overwrites what another has just written.
"""

import json
from collections.abc import Mapping

from surf2vec.tasks.root.identity import ROOT_TAG

GROUPS = {
    "surf2vec_files": (  # written by a registration
        "manifest_sha256", ROOT_TAG, "storage", "export_path", "export_uri", "state_sha256", "state_path",
    ),
    "surf2vec_serving": (  # written when aliases move
        "held_by", "override_reason", "champion_before", "promoted_at", "rolled_back_at", "rolled_back_from",
    ),
}  # fmt: skip


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
