"""Logs of known systems need no setting: each is recognised, and all servers' logs give the same events."""

import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from surf2vec.tasks.config import IngestConfig, Layout
from surf2vec.tasks.ingest import layouts as layouts_module
from surf2vec.tasks.ingest.formats import recognise
from surf2vec.tasks.ingest.layouts import list_layouts, usual_names
from surf2vec.tasks.night.config import load_config
from surf2vec.trainer.errors import InputError
from tests.data.server_logs import WITHOUT_AGENT, WRITERS, Request, read_requests, write_requests
from tests.roots.ingest import read_events, take_in

LAYOUTS = list_layouts(IngestConfig())
NUM_PAGES = {"otto": 4, "mind": 5}  # of the sample; of others 2


def write_sample(folder: Path, name: str) -> Path:
    path = folder / "a.log"
    path.write_text(LAYOUTS[name].sample.lstrip("\n"))
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_sample_has_its_layout_and_no_other(tmp_path: Path, name: str) -> None:
    log, fitting = write_sample(tmp_path, name), []
    for other in LAYOUTS:
        try:
            recognise(log, IngestConfig(layout=other))
            fitting.append(other)
        except InputError as error:
            assert f"{log} does not have the layout {other}" in str(error)
    assert fitting == [name]
    messages: list[str] = []
    record = take_in(
        tmp_path / "root", log, on_event=lambda kind, told: messages.append(told["message"]) if kind == "log" else None
    )
    assert record["events"] == record["lines"] == NUM_PAGES.get(name, 2)
    assert f", {LAYOUTS[name].title}: user" in messages[-1]
    assert take_in(tmp_path / "forced", log, layout=name)["events"] == record["events"]


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"title": "Shop", "user": "u", "url": "p", "time": "t"}, "u,p,t\nann,/a,2026-11-02\nben,/b,2026-11-02\n"),
        (
            {"title": "Shop", "lines": r"^(?P<user>\w+) saw (?P<url>\S+) on (?P<time>\S+)$"},
            "ann saw /a on 2026-11-02\nben saw /b on 2026-11-02\n",
        ),
        (
            {"title": "Shop", "user": "userId", "url": "genre", "time": "timestamp"},  # comes before that of MovieLens
            "userId,movieId,genre,rating,timestamp\nann,1,/a,5,2026-11-02\nben,2,/b,5,2026-11-02\n",
        ),
    ],
)
def test_a_layout_of_ones_own(tmp_path: Path, own: dict[str, Any], text: str) -> None:
    (tmp_path / "a.log").write_text(text)
    take_in(tmp_path / "root", tmp_path / "a.log", layouts={"shop": own})
    assert read_events(tmp_path / "root", "user_id, url") == [("ann", "/a"), ("ben", "/b")]
    assert recognise(tmp_path / "a.log", IngestConfig(layouts={"shop": own})).layout == Layout.model_validate(own)


@pytest.mark.parametrize("wrong", [{"time_unit": "hours"}, {"time_format": "%Q"}])
def test_what_times_are_in_a_layout_is_checked(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="layouts.shop"):
        IngestConfig(layouts={"shop": {"user": "u", "url": "p", "time": "t"} | wrong})


def test_usual_names_are_those_of_any_layout() -> None:
    content = tomllib.loads(Path(layouts_module.__file__).with_suffix(".toml").read_text())
    for role in ("method", "status", "agent"):
        entries = [names for entry in content.values() if (names := entry.get(role))]
        assert {*usual_names(role)} == {
            name for names in entries for name in ([names] if isinstance(names, str) else names)
        }


def count(folder: Path, name: str, requests: list[Request]) -> dict[str, int]:
    """What ingest makes of these requests in the log of a server."""
    record = take_in(folder / name, write_requests(folder / "a.log", name, requests))
    return {"events": record["events"]} | record["left_out"] | record["rejected"]


@pytest.mark.parametrize("name", WRITERS)
def test_some_requests_in_every_servers_log(tmp_path: Path, data_dir: Path, name: str) -> None:
    requests = read_requests(data_dir / "apache_combined.log.gz", 400)
    if name in WITHOUT_AGENT:
        requests = [Request(r.user, r.at, r.method, r.url, r.status, "") for r in requests]
    assert count(tmp_path, name, requests) == count(tmp_path, "combined", requests)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WRITERS if name not in WITHOUT_AGENT])
def test_all_requests_in_every_servers_log(tmp_path: Path, data_dir: Path, name: str) -> None:
    requests = read_requests(data_dir / "apache_combined.log.gz")
    assert len(requests) == 9_999
    assert count(tmp_path, name, requests) == {
        "events": 2_220, "static asset": 5_270, "crawler": 2_253, "status 400 or above": 208, "not a GET request": 48,
    }  # fmt: skip


def rename(sample: str, old: str, new: str) -> str:
    """The sample with another name for a column or key."""
    return re.sub(rf'(?<![\w.-]){re.escape(old)}(?![\w.-])(?=":|,|\n|")', new, sample, count=0)


def paste_settings(folder: Path, log: Path, told: Counter[str]) -> None:
    """Apply what messages propose as they print it; a unit of the times may be proposed after the columns."""
    settings: list[str] = []
    for _ in range(3):
        try:
            assert take_in(folder, log, **dict(load_config(None, settings).ingest))["events"] > 0
            told["proposed"] += bool(settings)
            return
        except InputError as error:
            _, word, proposal = str(error).partition("try " if settings else "perhaps ")
            told["not proposed"] += not word
            if not word:
                assert not settings, str(error)
                return
            words = shlex.split(re.split(r", or take the order| \(from ", proposal)[0])
            settings += words[1::2]
    pytest.fail(f"no events after {settings}")


@pytest.mark.slow
def test_what_a_message_proposes_gives_events(tmp_path: Path) -> None:
    told = Counter[str]()
    for name, layout in LAYOUTS.items():
        for role in () if layout.lines or name == "w3c" else ("user", "url", "time"):
            for new in ("gone", usual_names(role)[2]):
                old = next(one for field in getattr(layout, role) if (one := field.rpartition(".")[2]) in layout.sample)
                log = tmp_path / "a.log"
                log.write_text(rename(layout.sample.lstrip("\n"), old, new))
                paste_settings(tmp_path / f"{name} {role} {new}", log, told)
    assert told["proposed"] > 5, told
    assert told["not proposed"] > 5, told
