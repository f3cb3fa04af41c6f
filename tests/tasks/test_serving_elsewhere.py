"""The registered model in a process that has only what its requirements name: none of our code."""

import json
import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.publish import pin_requirements, publish_release
from tasks.run import Root
from tests.releases import STORAGES, make_release, read_users, tell_story

CONSUMER = """
import importlib.util, sys, time
import pandas as pd
started = time.monotonic()
import mlflow.pyfunc
assert not [name for name in ("tasks", "trainer", "flows", "sql", "duckdb", "torch") if importlib.util.find_spec(name)]
imported = time.monotonic()
mlflow.set_tracking_uri(sys.argv[1])
config = {"export_uri": sys.argv[2]} if sys.argv[2:] else None
model = mlflow.pyfunc.load_model("models:/surf2vec-users@champion", model_config=config)
loaded = time.monotonic()
answer = model.predict(pd.DataFrame({"user_id": ["user-7", "nobody"]}), params={"k": 3, "items": 2})
answered = time.monotonic()
print(f"import {imported - started:.1f} s, load {loaded - imported:.1f} s, answer {answered - loaded:.1f} s", file=sys.stderr)
print(answer.to_json(orient="records"))
"""


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs CONSUMER with its arguments where only what a model's requirements name is installed."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    venv.create(elsewhere / ".venv", with_pip=True)
    python = str(elsewhere / ".venv" / "bin" / "python")
    (elsewhere / "requirements.txt").write_text("\n".join(pin_requirements()))
    constraints = Path(__file__).parents[2] / "constraints.txt"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MLFLOW", "VIRTUAL"))}
    pip = [python, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", "-c", str(constraints)]
    subprocess.run([*pip, "-r", "requirements.txt"], check=True, timeout=600, cwd=elsewhere, env=clean)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [python, "-c", CONSUMER, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=elsewhere, env=clean, check=False
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("storage", STORAGES)
def test_the_model_answers_where_none_of_our_code_is(
    tmp_path: Path, storage: str, consumer: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    root = Root(tmp_path / "root ü")
    folder = make_release(root)
    users = read_users(folder)
    publish_release(root, STORAGES[storage], tell_story(), folder, None)
    [requirements] = root.artifacts.rglob("requirements.txt")
    assert requirements.read_text().split() == pin_requirements()
    if storage == "reference":
        folder = folder.rename(tmp_path / "moved ü%20")
        done = consumer(root.tracking_uri)
        assert done.returncode == 1
        assert "export/r1, but it is not on this machine" in done.stderr
    done = consumer(root.tracking_uri, folder.as_uri()) if storage == "reference" else consumer(root.tracking_uri)
    assert done.returncode == 0, done.stderr
    known, unknown = json.loads(done.stdout)
    np.testing.assert_allclose(known["vector"], users["user-7"], rtol=1e-6)
    assert (len(known["neighbours"]), len(known["items"])) == (3, 2)
    assert unknown["user_id"] == "nobody"
    assert unknown["vector"] is None
