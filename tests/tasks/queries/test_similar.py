"""Similar users and their next items, against brute force."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.release.release_reader import unit_rows
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import InputError
from tests.roots.releases import ODD_IDS, make_release, read_items, read_users


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    made = Root(tmp_path_factory.mktemp("root"))
    make_release(made, num_users=300)
    return made


@pytest.mark.parametrize("user_id", ["user-7", *ODD_IDS])
def test_neighbours_and_items_are_those_of_brute_force(root: Root, user_id: str) -> None:
    found = similar_users(root, root.export("r1"), user_id, k=5)
    users = read_users(root.export("r1"))
    others = [other for other in users if other != user_id]
    cosines = unit_rows(np.stack([users[other] for other in others])) @ unit_rows(users[user_id][None])[0]
    assert [one["user_id"] for one in found["neighbours"]] == [others[i] for i in np.argsort(-cosines)[:5]]
    np.testing.assert_allclose([one["score"] for one in found["neighbours"]], -np.sort(-cosines)[:5], atol=1e-3)

    urls, items = read_items(root.export("r1"))
    scores = dict(zip(urls, items @ users[user_id], strict=True))
    new = sorted((url for url in urls if url not in found["seen"]), key=lambda url: -scores[url])
    assert [one["url"] for one in found["items"]] == new[:5]
    np.testing.assert_allclose([one["score"] for one in found["items"]], [scores[url] for url in new[:5]], rtol=1e-5)


def test_seen_pages_are_the_newest_first(root: Root) -> None:
    assert similar_users(root, root.export("r1"), "user-7", k=1)["seen"] == ["/page/7", "/page/8"]


def test_without_its_corpus_a_release_still_answers(tmp_path: Path) -> None:
    root = Root(tmp_path)
    folder = make_release(root)
    shutil.rmtree(root.corpus("window-r1"))
    found = similar_users(root, folder, "user-7", k=100)
    assert found["seen"] == []
    assert (len(found["items"]), len(found["neighbours"])) == (40, 66)


def test_an_unknown_user_is_told_what_it_may_be(root: Root) -> None:
    with pytest.raises(InputError, match="not among the 307 users of release r1") as caught:
        similar_users(root, root.export("r1"), "nobody-9731", k=5)
    assert "9731" not in str(caught.value)


def test_k_below_one_and_a_missing_export_are_refused(root: Root) -> None:
    with pytest.raises(InputError, match="k is 0"):
        similar_users(root, root.export("r1"), "user-7", k=0)
    with pytest.raises(InputError, match="no export in .*: run `surf2vec run` first"):
        similar_users(root, root.export("r9"), "user-7", k=4)
