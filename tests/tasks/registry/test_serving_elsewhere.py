"""The registered model in a process that has only what its requirements name: none of our code."""

import json
import os
import re
import signal
import subprocess
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from surf2vec.api import Release
from surf2vec.infra.services import find_port, responds
from surf2vec.tasks.registry import tracking
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.root.run import Root
from tests.infra.nights import wait_until
from tests.roots.releases import NUM_ITEMS, ONE_IN_CI, STORAGES, make_release, read_users, write_run_record
from tests.roots.trail_releases import make_trail_root

SERVING_PAGE = Path(__file__).parents[3] / "docs" / "registry.md"

CONSUMER = """
import importlib.util, sys
import mlflow.pyfunc, pandas as pd
assert not [name for name in ("tasks", "trainer", "flows", "sql", "duckdb", "torch") if importlib.util.find_spec(name)]
mlflow.set_tracking_uri(sys.argv[1])
config = {"export_uri": sys.argv[2]} if sys.argv[2:] else None
model = mlflow.pyfunc.load_model("models:/surf2vec-users@champion", model_config=config)
answer = model.predict(pd.DataFrame({"user_id": ["user-7", "nobody"]}), params={"k": 3, "items": 2})
print(answer.to_json(orient="records"))
"""


PAGES_CONSUMER = """
import sys
import mlflow.pyfunc, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/surf2vec-users@champion")
asked = pd.DataFrame({"user_id": ["user-7", "nobody"], "pages": [["/page/1", "/page/2"], ["/page/1?a", "/page/2#b", "/x"]]})
print(model.predict(asked, params={"items": 2}).to_json(orient="records"))
"""


@dataclass(frozen=True)
class Elsewhere:
    """A folder with a virtual environment, where only what a model's requirements name is installed."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / ".venv" / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """This process's, without what would lead to our code."""
        ours = ("PYTHON", "MLFLOW", "VIRTUAL")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return clean | {"PATH": f"{self.programs}:{clean['PATH']}"}

    def consume(self, *arguments: str, program: str = CONSUMER) -> subprocess.CompletedProcess[str]:
        """Run a program with its arguments."""
        command = [str(self.programs / "python"), "-c", program, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, cwd=self.folder, env=self.environment, check=False
        )

    @contextmanager
    def serving(self, root: Root, seconds: float = 120) -> Iterator[str]:
        """The champion over HTTP, as docs/registry.md says; yields the address once it answers, within these seconds."""
        port = find_port(None)
        code, commands = re.findall(r"```(?:python)?\n([^`]*)```", SERVING_PAGE.read_text().split("## Over HTTP")[1])[
            :2
        ]
        (self.folder / "serve.py").write_text(code)
        program, *arguments = commands.splitlines()[0].split()[1:]
        command = [str(self.programs / program), *arguments[:-1], str(port)]
        log = self.folder / "serve.log"
        with open(log, "w") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment | {"MLFLOW_TRACKING_URI": root.tracking_uri},
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until(lambda: responds(f"{address}/ping"), seconds, log.read_text)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=30)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    venv.create(elsewhere / ".venv", with_pip=True)
    python = str(elsewhere / ".venv" / "bin" / "python")
    (elsewhere / "requirements.txt").write_text("\n".join(tracking.pin_requirements()))
    constraints = Path(__file__).parents[3] / "constraints.txt"
    there = Elsewhere(elsewhere)
    pip = [python, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", "-c", str(constraints)]
    subprocess.run([*pip, "-r", "requirements.txt"], check=True, timeout=600, cwd=elsewhere, env=there.environment)
    return there


@pytest.mark.slow
@pytest.mark.parametrize("storage", ONE_IN_CI)
def test_the_model_answers_where_none_of_our_code_is(tmp_path: Path, storage: str, elsewhere: Elsewhere) -> None:
    root = Root(tmp_path / "root ü")
    folder = make_release(root)
    users = read_users(folder)
    publish_release(root, STORAGES[storage], write_run_record(), folder)
    [requirements] = root.artifacts.rglob("requirements.txt")
    assert requirements.read_text().split() == tracking.pin_requirements()
    if storage == "reference":
        folder = folder.rename(tmp_path / "moved ü%20")
        done = elsewhere.consume(root.tracking_uri)
        assert done.returncode == 1
        assert "export/r1, but it is not on this machine" in done.stderr
    done = (
        elsewhere.consume(root.tracking_uri, folder.as_uri())
        if storage == "reference"
        else elsewhere.consume(root.tracking_uri)
    )
    assert done.returncode == 0, done.stderr
    known, unknown = json.loads(done.stdout)
    np.testing.assert_allclose(known["vector"], users["user-7"], rtol=1e-6)
    assert (len(known["neighbours"]), len(known["items"])) == (3, 2)
    assert unknown["user_id"] == "nobody"
    assert unknown["vector"] is None


@pytest.mark.slow
def test_pages_are_summed_up_where_none_of_our_code_is(tmp_path: Path, elsewhere: Elsewhere) -> None:
    root = make_trail_root(tmp_path / "root")
    publish_release(root, STORAGES["copy"], write_run_record("whole"), root.export("whole"))
    done = elsewhere.consume(root.tracking_uri, program=PAGES_CONSUMER)
    assert done.returncode == 0, done.stderr
    last = np.stack([read_users(root.export("whole"))["user-7"], np.zeros(16, np.float32)])
    expected, _, _ = Release(root.export("whole")).renew(last, [["/page/1", "/page/2"]] * 2)
    answer = json.loads(done.stdout)
    np.testing.assert_allclose([row["vector"] for row in answer], expected, rtol=1e-6, atol=1e-7)
    assert [len(row["items"]) for row in answer] == [2, 2]
    assert [row["unknown_pages"] for row in answer] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("storage", ONE_IN_CI)
def test_mlflow_serves_the_model_where_none_of_our_code_is(tmp_path: Path, storage: str, elsewhere: Elsewhere) -> None:
    root = Root(tmp_path / "root")
    folder = make_release(root)
    publish_release(root, STORAGES[storage], write_run_record(), folder)
    asked = {
        "dataframe_split": {
            "columns": ["user_id", "seen"],
            "data": [["user-7", ["/page/1?utm_source=x", "/elsewhere"]], ["nobody", []]],
        },
        "params": {"k": 3, "items": NUM_ITEMS},
    }
    with elsewhere.serving(root) as address:
        evil = Request(f"{address}/ping", headers={"Host": "evil.example"})
        with pytest.raises(HTTPError, match="400"):
            urlopen(evil, timeout=60)
        request = Request(f"{address}/invocations", json.dumps(asked).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as response:
            known, unknown = json.load(response)["predictions"]
    np.testing.assert_allclose(known["vector"], read_users(folder)["user-7"], rtol=1e-6)
    assert (len(known["neighbours"]), len(known["items"])) == (3, NUM_ITEMS - 1)
    assert "/page/1" not in known["items"]
    assert [row["unknown_pages"] for row in (known, unknown)] == [1, 0]
    assert (unknown["user_id"], unknown["vector"]) == ("nobody", None)
