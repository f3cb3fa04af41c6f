"""All logs of a call are looked at before anything is started, and one message names all their faults."""

from pathlib import Path

import pytest

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.deliveries import check_shapes
from surf2vec.trainer.errors import InputError
from tests.roots.ingest import write_log


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
