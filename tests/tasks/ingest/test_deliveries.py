"""What a later delivery of logs changes in a root; and the faults of all logs of a call are named in one message before."""

from datetime import datetime
from pathlib import Path

import pytest

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.deliveries import check_shapes
from surf2vec.trainer.errors import ConfigError, InputError
from tests.roots.ingest import events_files, read_events, read_rejects, snapshot, take_in, write_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_a_late_file_adds_and_the_others_stay(tmp_path: Path, root: Path) -> None:
    take_in(root, write_log(tmp_path / "a.csv", "u,/a,2020-07-01"))
    before = snapshot(root)
    record = take_in(root, write_log(tmp_path / "b.csv", "u,/b,2020-07-01"))
    assert (record["sources_new"], record["lines"]) == (1, 1)
    assert [row[1] for row in read_events(root)] == ["/a", "/b"]
    assert {name: snapshot(root)[name] for name in before if name != "sources.json"}.items() <= before.items()


def test_a_file_delivered_again_replaces_its_own_rows(tmp_path: Path, root: Path) -> None:
    write_log(tmp_path / "a.csv", "u,/a,2020-07-01", "u,/a2,2020-07-02", "u,/broken,never")
    write_log(tmp_path / "b.csv", "u,/b,2020-07-01")
    take_in(root, f"{tmp_path}/*.csv", max_reject_ratio=1)
    write_log(tmp_path / "a.csv", "u,/new,2020-07-03")
    record = take_in(root, tmp_path / "a.csv")
    assert (record["sources_new"], record["sources_replaced"], record["sources_known"]) == (0, 1, 0)
    assert [row[1] for row in read_events(root)] == ["/b", "/new"]
    assert read_rejects(root) == []
    assert sorted(path.name for path in (root / "events").iterdir()) == ["day=2020-07-01", "day=2020-07-03"]


def test_the_same_bytes_count_once(tmp_path: Path, root: Path) -> None:
    write_log(tmp_path / "a.csv", "u,/a,2020-07-01")
    (tmp_path / "b.csv").write_bytes((tmp_path / "a.csv").read_bytes())
    first = take_in(root, f"{tmp_path}/*.csv")
    before = snapshot(root)
    again = take_in(root, f"{tmp_path}/*.csv")
    assert snapshot(root) == before
    assert (first["sources_new"], first["sources_known"]) == (1, 1)
    assert again == first | {"sources_new": 0, "sources_known": 2}
    assert take_in(root) == again | {"sources_known": 0}


def test_other_rules_want_all_logs_again(tmp_path: Path, root: Path) -> None:
    write_log(tmp_path / "a.csv", "u,https://e.com/a/1,2020-07-01")
    write_log(tmp_path / "b.csv", "u,https://e.com/b/1,2020-07-01")
    take_in(root, f"{tmp_path}/*.csv")
    before = snapshot(root)
    with pytest.raises(ConfigError, match=r"granularity is 'host', but was 'page'.*1 are missing: .*b\.csv"):
        take_in(root, tmp_path / "a.csv", granularity="host")
    with pytest.raises(ConfigError, match="pass all logs again"):
        take_in(root, granularity="host")
    assert snapshot(root) == before
    assert take_in(root, f"{tmp_path}/*.csv", granularity="host")["sources_replaced"] == 2
    assert {row[1] for row in read_events(root)} == {"https://e.com/"}
    take_in(root, f"{tmp_path}/*.csv")
    assert snapshot(root) == before


def test_damaged_events_are_made_again_from_their_log(tmp_path: Path, root: Path) -> None:
    log = write_log(tmp_path / "a.csv", "u,/a,2020-07-01", "u,/a,2020-07-02")
    take_in(root, log)
    before = snapshot(root)
    missing, cut = (Path(name) for name in events_files(root))
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    assert take_in(root, log)["sources_replaced"] == 1
    assert {row[2] for row in read_events(root)} == {datetime(2020, 7, 1), datetime(2020, 7, 2)}
    assert sorted(snapshot(root).values()) != sorted(before.values()) or snapshot(root) == before


def test_the_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    write_log(tmp_path / "good.csv", "u,/a,1")
    write_log(tmp_path / "empty.csv")
    write_log(tmp_path / "host.csv", "u,/a,1", header="host,url,ts")
    write_log(tmp_path / "page.csv", "u,/a,1", header="user_id,page,when")
    with pytest.raises(InputError) as caught:
        check_shapes([f"{tmp_path}/*.csv", f"{tmp_path}/host.csv", "s3://bucket/*.csv"], IngestConfig())
    first, second = str(caught.value).split("\n")
    assert f"{tmp_path}/host.csv has no column 'user_id'" in first
    assert f"{tmp_path}/page.csv has no column 'url' for the URL and no column 'ts' for the time" in second


def test_many_faults_are_counted(tmp_path: Path) -> None:
    for n in range(9):
        write_log(tmp_path / f"{n}.csv", "u,/a,1", header="host,url,ts")
    with pytest.raises(InputError, match=r"4\.csv has no .*\nand 4 more files$"):
        check_shapes([f"{tmp_path}/*.csv"], IngestConfig())
