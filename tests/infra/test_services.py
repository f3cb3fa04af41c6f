"""A server of the stack, as a process of this machine, and what the stack needs before it starts any."""

from pathlib import Path

import pytest

from surf2vec.infra import services
from surf2vec.infra.services import Service
from surf2vec.infra.stack import Stack
from surf2vec.tasks.root import wording
from surf2vec.trainer.errors import ResourceError


def test_only_its_owner_reads_the_log_of_a_server(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "server.log"
    log.parent.mkdir()
    log.touch(0o644)  # of an earlier version
    service = Service("server", ["echo", "connecting as postgresql://me:hunter2@host/db"], log, lambda: True)
    service.start()
    assert service.process
    assert service.process.wait(10) == 0
    assert "hunter2" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("place", "command"),
    [
        (wording.__file__, "pip install -c constraints.txt -e '.[stack]'"),
        ("/a/wheel/of/x.py", "pip install 'surf2vec[stack]'"),
    ],
)
def test_the_missing_extra_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, command: str
) -> None:
    monkeypatch.setattr(services, "find_spec", lambda name: None if name == "psycopg2" else True)
    monkeypatch.setattr(wording, "__file__", place)
    with pytest.raises(ResourceError) as refused:
        Stack(tmp_path / "stack")
    assert str(refused.value) == f"the stack needs psycopg2: {command}"
    assert not (tmp_path / "stack").exists()
