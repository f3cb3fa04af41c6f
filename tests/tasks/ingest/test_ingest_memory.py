"""Small files that become large: a real process reads them and stays within its budget, or refuses them."""

import gzip
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

BUDGET_BYTES = 500_000_000
INGEST = """
import sys
from pathlib import Path
from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import SurfError
try:
    ingest(Root(Path(sys.argv[1])), [sys.argv[2]], IngestConfig(), 8, int(sys.argv[3]), 2, lambda name, values: None)
except SurfError as error:
    print(error)
"""
GOOD = [f"u{n % 7},/p{n % 11},2020-01-01" for n in range(200)]


def take_in_apart(root: Path, log: Path) -> tuple[str, int]:
    """What an ingest in a process of its own says, and the most anonymous memory it had."""
    root.mkdir()
    script = root.with_name("ingest.py")  # with -c DuckDB takes it for a notebook, and draws a bar
    script.write_text(INGEST)
    command = [sys.executable, str(script), str(root), str(log), str(BUDGET_BYTES)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            while process.poll() is None:
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max(
                    peak,
                    *(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")),
                    0,
                )
                assert peak < 4 * BUDGET_BYTES
                time.sleep(0.01)
        finally:
            process.kill()
        assert process.stdout
        return process.stdout.read(), peak


def write_gzip(path: Path, header: str, good: list[str], bomb: bytes) -> Path:
    path.write_bytes(gzip.compress("\n".join([header, *good, ""]).lstrip("\n").encode() + bomb, 1))
    assert path.stat().st_size < 500_000
    return path


@pytest.mark.slow
def test_very_many_tiny_lines_that_are_refused(tmp_path: Path) -> None:
    log = write_gzip(tmp_path / "a.csv.gz", "user_id,url,ts", GOOD, b"u,/,\n" * 3_000_000)
    said, peak = take_in_apart(tmp_path / "root", log)
    assert "3,000,000 time not readable" in said
    assert peak < BUDGET_BYTES


def test_json_of_very_many_values_in_a_line(tmp_path: Path) -> None:
    good = [f'{{"user_id": "u{n}", "url": "/a", "ts": "2020-01-01"}}' for n in range(200)]
    log = write_gzip(tmp_path / "a.jsonl.gz", "", good, (b"[" * 1_950_000 + b"]" * 1_950_000 + b"\n") * 4)
    said, peak = take_in_apart(tmp_path / "root", log)
    assert f"4 line too long; most in {log}" in said
    assert peak < BUDGET_BYTES


@pytest.mark.parametrize(("suffix", "codec"), [(".gz", "gzip"), (".zst", "zstd")])
def test_one_enormous_line(tmp_path: Path, suffix: str, codec: str) -> None:
    log = tmp_path / f"a.csv{suffix}"
    with pa.CompressedOutputStream(str(log), codec) as stream:
        stream.write("\n".join(["user_id,url,ts", *GOOD, "x"]).encode())
        for _ in range(100):
            stream.write(b"," * 1_000_000)
    said, peak = take_in_apart(tmp_path / "root", log)
    assert said == ""  # one line in 201 is no reason to stop
    assert peak < BUDGET_BYTES


@pytest.mark.parametrize(
    ("role", "fault"), [("user_id", "user id too long"), ("ts", "time not readable"), ("url", "URL too long")]
)
def test_a_long_value_that_many_rows_of_parquet_share(tmp_path: Path, role: str, fault: str) -> None:
    rows = 2_000
    table = pa.table({"user_id": ["u"] * rows, "url": ["/a"] * rows, "ts": ["2020-01-01"] * rows})
    shared = pa.DictionaryArray.from_arrays(pa.array([0, 1] * (rows // 2), pa.int32()), ["x" * 5_000_000, "2020-01-01"])
    log = tmp_path / "a.parquet"
    pq.write_table(table.set_column(table.column_names.index(role), role, shared), log, compression="zstd")
    assert log.stat().st_size < 10_000
    said, peak = take_in_apart(tmp_path / "root", log)
    assert f"1,000 {fault}; most in {log}" in said
    assert peak < BUDGET_BYTES


def test_values_of_parquet_that_do_not_fit_are_refused_with_the_file(tmp_path: Path) -> None:
    table = pa.table({"user_id": ["x" * 1_000_000] * 300, "url": ["/a"] * 300, "ts": ["2020-01-01"] * 300})
    log = tmp_path / "a.parquet"
    pq.write_table(table, log, compression="zstd", use_dictionary=False)
    said, peak = take_in_apart(tmp_path / "root", log)
    assert "500.0 MB of memory do not suffice while logs are ingested: raise --host-memory" in said
    assert f"{log}: its largest row group has 300.0 MB" in said
    assert peak < BUDGET_BYTES
