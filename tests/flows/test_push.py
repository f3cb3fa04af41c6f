"""`surf2vec push`: which release it takes, out of the root or the registry, and what a wrong call says."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from surf2vec import operations
from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import InputError
from surf2vec.trainer.events import ignore_event
from tests.roots.pushes import read_served
from tests.roots.releases import read_users
from tests.roots.serving import make_served


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return make_served(tmp_path_factory.mktemp("push") / "root", PublishConfig(), ("r1", "r2"))


def test_what_serves_is_pushed_and_an_older_version_on_demand(root: Root, tmp_path: Path) -> None:
    url, push = f"parquet://{tmp_path / 'store'}", partial(operations.push, root=root.path, on_event=ignore_event)
    older = push(url, "models:/surf2vec-users/1")
    assert (older["release"], older["version"], older["since"]) == ("r1", 1, None)
    pushed = push(url)
    assert (pushed["release"], pushed["version"], pushed["since"]) == ("r2", 2, "r1")
    exported = {name: vector.tolist() for name, vector in read_users(root.export("r2")).items()}
    assert read_served(url) == exported
    assert pushed["checked"] == min(100, len(exported)) + len(read_served(url, "items"))
    assert push(url, rollback=True)["release"] == "r1"
    with pytest.raises(InputError, match="has no models:/surf2vec-users/9"):
        push(url, "models:/surf2vec-users/9")


def test_a_release_that_the_root_does_not_have_is_pulled(root: Root, tmp_path: Path) -> None:
    url, elsewhere = f"parquet://{tmp_path / 'store'}", tmp_path / "none"
    pushed = operations.push(url, root=elsewhere, tracking_uri=root.tracking_uri, on_event=ignore_event)
    assert (pushed["release"], pushed["new"]) == ("r2", len(read_users(root.export("r2"))))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("url", "exit_code", "message"),
    [("mysql://me@host/db", 2, "not the URL of a store"), ("postgresql://me@localhost:1/db", 1, "localhost")],
)
def test_a_store_that_cannot_be_used_is_told_before_anything(
    url: str, exit_code: int, message: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "surf2vec.flows.cli", "push", url, "--root", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == exit_code
    assert message in json.loads(done.stdout)["error"]["message"]
