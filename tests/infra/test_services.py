"""A server of the stack, as a process of this machine."""

from pathlib import Path

from surf2vec.infra.services import Service


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
