"""A manifest that somebody else may have made names no file outside its folder, wherever in it the name stands."""

from typing import Any

import pytest

from surf2vec.tasks.release.folder import check_manifest
from surf2vec.trainer.errors import DamageError
from tests.data.corpora import RULES

ABOUT = {"bytes": 7, "sha256": "0" * 64}


def make_manifest(user: str = "a", item: str = "b", index: str = "c") -> dict[str, Any]:
    return {
        "format_version": 2, "release": "r1", "space_id": "s1", "created_from": {"window_id": "w1"}, "vector_size": 4,
        "num_users": 1, "num_items": 1, "partitions": 1, "user_files": {user: ABOUT | {"rows": 1}}, "item_files": {item: ABOUT},
        "index": ABOUT | {"file": index}, "rules": RULES, "parts": {},
    }  # fmt: skip


def test_a_manifest_is_returned_as_it_is() -> None:
    assert check_manifest(make_manifest(), "it") == make_manifest()


@pytest.mark.parametrize("where", ["user", "item", "index"])
@pytest.mark.parametrize("name", ["../../../x", "a/../../../x"])
def test_names_that_lead_outside_are_refused(where: str, name: str) -> None:
    with pytest.raises(DamageError, match="which is outside the export"):
        check_manifest(make_manifest(**{where: name}), "it")


@pytest.mark.parametrize(
    "rules",
    [
        None,
        {},
        RULES | {"granularity": "pages"},
        RULES | {"prefix_depth": -1},
        RULES | {"keep_query": [1]},
        RULES | {"keep_query": None},
        RULES | {"mask_secrets": "no"},
    ],
)
def test_a_manifest_without_the_rules_of_its_items_is_refused(rules: Any) -> None:
    with pytest.raises(DamageError, match="is not a release's"):
        check_manifest(make_manifest() | {"rules": rules}, "it")
