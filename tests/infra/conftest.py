"""The stack that all tests of infra/ share: real servers on PostgreSQL, deployments, and a webhook that listens."""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from surf2vec.infra.bucket import BUCKET
from surf2vec.infra.orphans import MARK
from surf2vec.infra.services import Service, find_port, responds
from surf2vec.infra.stack import QUIET, Stack, find_postgres
from surf2vec.trainer.errors import ResourceError
from tests.infra.listener import Listener
from tests.infra.nights import Nights, make_bucket, patience

DRIVERS = ("boto3", "moto", "psycopg2", "flask_wtf")


@pytest.fixture(scope="package")
def _environment() -> Iterator[None]:
    """What the environment is after these tests: what it was before. Skips them where a stack cannot run."""
    try:
        find_postgres()
    except ResourceError as error:
        pytest.skip(str(error))
    if missing := [name for name in DRIVERS if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (pip install -e '.[dev,stack]')")
    before = dict(os.environ)
    # On a busy machine, threads of BLAS that wait for each other turn the seconds of the report into a minute.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="package")
def stack(_environment: None) -> Iterator[Stack]:
    """The native stack with an S3 server; its folder is one that PostgreSQL's account may enter."""
    folder = Path(tempfile.mkdtemp(prefix="surf2vec-stack-", dir="/tmp"))
    folder.chmod(0o711)
    # The watcher leaves the runs to these tests, which retry as a person does; test_restarts.py has its own.
    made = Stack(folder, artifacts=f"s3://{BUCKET}/artifacts", patience_seconds=3600)
    port = find_port(None)
    os.environ |= {
        "MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": made.passwords["s3_key"], "AWS_SECRET_ACCESS_KEY": made.passwords["s3_secret"],
    }  # fmt: skip
    argv = [sys.executable, "-m", "moto.server", "-p", str(port)]
    is_up = partial(responds, f"http://127.0.0.1:{port}/moto-api/")
    made.services["s3"] = s3 = Service("s3", argv, folder / "logs" / "s3.log", is_up, QUIET)
    try:
        s3.start()
        s3.wait()
        make_bucket()
        with made.running():
            yield made
        assert list_marked() == [], "the stack left processes behind"
    finally:
        s3.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="package")
def listener() -> Iterator[Listener]:
    with Listener() as listener:
        yield listener


@pytest.fixture(scope="package")
def nights(stack: Stack, listener: Listener, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    """The deployments on the stack, with alarms to `listener`, and this process as their client."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from surf2vec.infra.deploy import apply_automations, deploy

    settings = stack.client_environment
    os.environ.update(settings)
    server = {
        PREFECT_API_URL: settings["PREFECT_API_URL"],
        PREFECT_API_AUTH_STRING: settings["PREFECT_API_AUTH_STRING"],
    }
    with temporary_settings(server):
        root = tmp_path_factory.mktemp("deployed")
        deploy(root / "root", str(root / "logs" / "*.csv"), "30 2 * * *", "Europe/Berlin")
        apply_automations(listener.url, patience())
        yield Nights(stack)


def list_marked() -> list[list[str]]:
    """The command lines of the processes that the stack of this process started, and what they started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == str(os.getpid()):
                found.append(process.cmdline())
        except psutil.Error:  # another user's, or gone in the meantime
            continue
    return found
