"""The recipe of docs/registry.md: MLflow's server calls a webhook when another release serves."""

import re
import time
from pathlib import Path

import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.root.run import Root
from tests.infra.listener import Listener
from tests.roots.nights import FIRST, PASSED, make_night
from tests.servers.mlflow import serve_mlflow

RECIPE = Path(__file__).parents[3] / "docs/registry.md"


@pytest.mark.slow
def test_a_webhook_is_called_for_each_release_that_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ALLOWED_SCHEMES", "http"), ("ALLOW_PRIVATE_IPS", "true")):  # only for a listener on loopback
        monkeypatch.setenv(f"MLFLOW_WEBHOOK_{name}", value)
    [code] = re.findall(r"```python\n([^`]*create_webhook[^`]*)```", RECIPE.read_text())
    root = Root(tmp_path / "root")
    root.path.mkdir()
    with (
        serve_mlflow(tmp_path, f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "artifacts") as server,
        Listener() as there,
    ):
        exec(code.replace("http://mlflow.example:5000", server.name).replace("https://shop.example/hook", there.url))
        publish = PublishConfig(tracking_uri=server.name)
        for release, gate in (("r1", FIRST), ("r2", PASSED)):
            make_night(root, release, gate, publish)
        end = time.monotonic() + 60
        while len(there.messages) < 4 and time.monotonic() < end:
            time.sleep(0.2)
    moved = [one["data"] for one in there.messages if one["data"]["alias"] == "champion"]
    assert sorted(one["version"] for one in moved) == ["1", "2"]
    assert {one["name"] for one in moved} == {publish.model_name}
