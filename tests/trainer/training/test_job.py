"""A job as a file is the same job in another process."""

import os
from pathlib import Path

import numpy as np
import pytest

from surf2vec.trainer.__main__ import make_job, make_parser
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, DamageError
from surf2vec.trainer.gensim.warm_start import WarmStart
from surf2vec.trainer.gensim.word2vec_format import NamedVectors
from surf2vec.trainer.training.job import Job, LearningSchedule, read_job, write_job

CONFIG = TrainConfig(vector_size=8, epochs=3, sharing="sharded")


@pytest.mark.parametrize("schedule", [None, LearningSchedule(2, 0.02, 0.002)])
def test_a_job_comes_back(tmp_path: Path, schedule: LearningSchedule | None) -> None:
    job = Job(tmp_path / "corpus", tmp_path / "store", CONFIG, 10**9, start="after release r1", schedule=schedule)
    write_job(job, tmp_path / "job.json")
    assert read_job(tmp_path / "job.json", "cpu", 10**9, None) == job
    assert os.stat(tmp_path / "job.json").st_mode & 0o777 == 0o600
    other = read_job(tmp_path / "job.json", "gpu", 5, 7)
    assert (other.kernel, other.host_memory_bytes, other.device_memory_bytes) == ("gpu", 5, 7)


def test_what_cannot_be_carried_is_refused_by_name(tmp_path: Path) -> None:
    start = WarmStart(NamedVectors(["/a"], np.zeros((1, 8), np.float32)), None, "digest")
    with pytest.raises(ConfigError, match=r"warm_start.*train\.items_from"):
        write_job(Job(tmp_path, tmp_path, CONFIG, 1, warm_start=start), tmp_path / "job.json")
    assert not (tmp_path / "job.json").exists()


def test_a_job_file_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"corpus_dir"')
    with pytest.raises(DamageError, match=r"job\.json"):
        read_job(tmp_path / "job.json", "cpu", 1, None)


def test_the_command_line_takes_a_job_or_its_parts(tmp_path: Path) -> None:
    job = Job(tmp_path / "corpus", tmp_path / "store", CONFIG, 3 * 10**9, start="after release r1")
    write_job(job, tmp_path / "job.json")
    given = ["--job", str(tmp_path / "job.json"), "--host-memory", "1GB,3GB"]
    assert make_job(make_parser().parse_args(given), 1, 2) == job
    for arguments in ([*given, "--store", "elsewhere"], ["--corpus", "one"], []):
        with pytest.raises(ConfigError, match="give --corpus and --store"):
            make_job(make_parser().parse_args(arguments), 0, 2)
