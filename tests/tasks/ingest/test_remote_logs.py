"""Logs from S3, by a real server on the loopback: named, fetched once, tried again, and no trace of credentials."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from surf2vec.trainer.errors import InputError, ResourceError
from surf2vec.trainer.system.files import read_json
from tests.roots.ingest import HEADER, read_events, read_rejects, snapshot, take_in, write_log
from tests.servers.s3 import KEY_ID, SECRET, Bucket, serve_bucket

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*unclosed.*")
GLOB = "s3://logs/day=*/part-*.csv*"


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with serve_bucket() as made:
        yield made


@pytest.fixture
def bucket(server: Bucket) -> Iterator[Bucket]:
    """Two days of logs, one compressed."""
    server.put("day=2020-07-01/part-0.csv", day(1, 300))
    server.put("day=2020-07-02/part-0.csv.gz", gzip.compress(day(2, 200).encode()))
    server.put("day=2020-07-02/_SUCCESS", "")
    server.requests.clear()
    server.broken.clear()
    yield server
    for name in ("day=2020-07-01/part-0.csv", "day=2020-07-02/part-0.csv.gz"):
        server.remove(name)


def day(number: int, num_lines: int) -> str:
    lines = [f"u{n % 40},/page/{n % 9},2020-07-0{number}T00:00:{n % 60:02d}Z" for n in range(num_lines)]
    return "\n".join([HEADER, *lines]) + "\n"


def test_events_are_those_of_the_same_files_here(bucket: Bucket, tmp_path: Path) -> None:
    told = take_in(tmp_path / "root", GLOB)
    assert (told["sources_new"], told["lines"]) == (2, 500)
    write_log(tmp_path / "logs" / "a.csv", *day(1, 300).splitlines()[1:])
    write_log(tmp_path / "logs" / "b.csv.gz", *day(2, 200).splitlines()[1:])
    take_in(tmp_path / "here", tmp_path / "logs" / "*")
    assert read_events(tmp_path / "root") == read_events(tmp_path / "here")
    names = [source["name"] for source in read_json(tmp_path / "root" / "sources.json")["sources"]]
    assert names == ["s3://logs/day=2020-07-01/part-0.csv", "s3://logs/day=2020-07-02/part-0.csv.gz"]


def test_what_a_killed_call_fetched_is_removed(bucket: Bucket, tmp_path: Path) -> None:
    left = tmp_path / "root" / ".tmp" / "ingest.999999" / "0123456789abcdef" / "part-0.csv"
    left.parent.mkdir(parents=True)
    left.write_text("half of")
    (tmp_path / "root" / ".tmp" / "ingest.999999" / ".lock").touch()
    take_in(tmp_path / "root", GLOB)  # which checks that the temporary folder is empty afterwards
    assert not left.exists()


def test_an_object_is_read_once_and_not_again_while_it_stays(bucket: Bucket, tmp_path: Path) -> None:
    take_in(tmp_path / "root", GLOB)
    assert len(bucket.reads) == 2
    before = snapshot(tmp_path / "root")
    bucket.requests.clear()
    assert take_in(tmp_path / "root", GLOB)["sources_known"] == 2
    assert bucket.reads == []
    bucket.put("day=2020-07-01/part-0.csv", day(1, 310))
    told = take_in(tmp_path / "root", GLOB)
    assert (told["sources_known"], told["sources_replaced"], told["lines"]) == (1, 1, 510)
    assert len(bucket.reads) == 1
    assert snapshot(tmp_path / "root") != before


@pytest.mark.slow
def test_what_fails_is_asked_for_again(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    bucket.broken["/logs/day=2020-07-01/part-0.csv"] = 2
    assert take_in(tmp_path / "root", GLOB)["lines"] == 500
    assert len(bucket.reads) == 2 + 2
    bucket.broken["/logs/day=2020-07-01/part-0.csv"] = 10**6
    bucket.put("day=2020-07-01/part-0.csv", day(1, 299))
    before = snapshot(tmp_path / "root")
    with pytest.raises(ResourceError, match=r"s3://logs/day=2020-07-01/part-0.csv cannot be read: .*store is up"):
        take_in(tmp_path / "root", GLOB)
    assert snapshot(tmp_path / "root") == before
    assert not list((tmp_path / "root" / ".tmp").iterdir())


def test_a_store_that_is_away_is_named(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as away:
        away.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(ResourceError, match=r"s3://logs/day=.*: .*AWS_ENDPOINT_URL"):
            take_in(tmp_path / "root", GLOB)


@pytest.mark.slow
def test_what_is_wrong_is_told_by_the_url(bucket: Bucket, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with pytest.raises(InputError, match="no object matches 's3://logs/day=2021"):
        take_in(root, "s3://logs/day=2021*/*")
    with pytest.raises(InputError, match="no object matches 's3://nowhere/a.csv'"):
        take_in(root, "s3://nowhere/a.csv")
    with pytest.raises(InputError, match="'odd://bucket/a.csv' cannot be read"):
        take_in(root, "odd://bucket/a.csv")
    url = bucket.put("cut.csv.gz", gzip.compress(day(1, 3000).encode())[:-500])
    with pytest.raises(InputError, match=rf"^{url} is cut short or damaged"):
        take_in(root, url)
    url = bucket.put("other.csv", "a,b\n1,2\n")
    with pytest.raises(InputError, match=rf"^{url} has no column 'user_id'"):
        take_in(root, url)
    url = bucket.put("rejects.csv", day(1, 300) + "u1,/page/1,never\n")
    take_in(root, url, max_reject_ratio=1)
    assert [(name, line) for name, line, _ in read_rejects(root)] == [("rejects.csv", 302)]


def test_credentials_are_nowhere(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    take_in(tmp_path / "root", GLOB, on_event=lambda name, values: lines.append(str(values)))
    with pytest.raises(InputError) as refused:
        take_in(tmp_path / "root", f"s3://{KEY_ID}:{SECRET.replace('/', '')}@logs/day=*/part-*")
    with monkeypatch.context() as without:
        without.delenv("AWS_ACCESS_KEY_ID")
        without.delenv("AWS_SECRET_ACCESS_KEY")
        without.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        with pytest.raises(ResourceError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as lacking:
            take_in(tmp_path / "root", GLOB)
    told = " ".join([*lines, str(refused.value), str(lacking.value)]).encode()
    files = [path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()]
    for secret in (KEY_ID, SECRET, SECRET.replace("/", "")):
        assert not any(secret.encode() in text for text in [told, *files])
