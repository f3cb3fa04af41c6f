"""Events of workers in a file: as they were said, whatever a killed worker left half written."""

from pathlib import Path

from surf2vec.trainer.errors import ConfigError, DamageError, SurfError, TrainingError
from surf2vec.trainer.training.loop import StoppedError
from surf2vec.trainer.workers.event_file import ERROR, EventFile, EventReader, error_of
from surf2vec.trainer.workers.group import WorkerLostError


def test_events_arrive_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "events"
    writer, reader = EventFile(path), EventReader(path)
    writer("log", {"message": "one\ntwo"})
    writer("progress", {"done": 1})
    assert list(reader.read()) == [("log", {"message": "one\ntwo"}), ("progress", {"done": 1})]
    assert list(reader.read()) == []
    writer("train", {"loss": 0.5})
    assert list(reader.read()) == [("train", {"loss": 0.5})]


def test_a_line_is_read_when_it_is_whole_and_a_torn_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b'{"name": "log", "val')
    reader = EventReader(path)
    assert list(reader.read()) == []
    EventFile(path)("log", {"message": "after"})  # a worker that was started again
    assert list(reader.read()) == [("log", {"message": "after"})]


def test_errors_come_up_as_the_kind_they_are(tmp_path: Path) -> None:
    path = tmp_path / "events"
    kinds = [ConfigError, DamageError, TrainingError, StoppedError, WorkerLostError, SurfError]
    for rank, kind in enumerate(kinds):
        EventFile(path)(ERROR, {"rank": rank, "code": kind.code, "message": f"of {kind.code}"})
    found = [error_of(values) for name, values in EventReader(path).read() if name == ERROR]
    assert [type(error) for error in found] == kinds
    assert [str(error) for error in found] == [f"of {kind.code}" for kind in kinds]
