"""The made-up web: every page has one URL, and every URL its topic. How visits are written down, and how lines are broken."""

import json
import re

import numpy as np
import pytest

from surf2vec.tasks.ingest.urls import CRAWLER_PATTERN, UrlRules, canonical_item
from surf2vec.tasks.sample.logs import FIRST_DAY, draw_visits, make_part
from surf2vec.tasks.sample.world import (
    AGENTS,
    BOT_AGENTS,
    TOPICS,
    WORDS,
    break_line,
    host_name,
    make_lines,
    make_pools,
    make_world,
    page_name,
    topic_of_url,
    write_ids,
)


@pytest.mark.parametrize(
    ("url", "topic"),
    [
        ("https://www.kitchen-table.example/recipes/lemon-tart", "cooking"),
        ("https://WWW.Kitchen-Table.Example/recipes/?utm_source=x", "cooking"),
        ("https://daily-corner-flag.example:443", "football"),
        ("back-rank.example/openings", "chess"),
        ("https://www.kitchen-table.example?x=https://back-rank.example/", "cooking"),
        ("https://www.kitchen-table.org/recipes", None),
        ("/recipes/lemon-tart", None),
        ("", None),
    ],
)
def test_topic_of_url(url: str, topic: str | None) -> None:
    assert topic_of_url(url) == topic


def test_words_are_complete_and_hosts_distinct() -> None:
    for words in WORDS.values():
        assert {kind: len(part) for kind, part in words.items()} == {"hosts": 4, "sections": 6, "subjects": 12}
    hosts = [host_name(topic, number) for topic in TOPICS for number in range(40)]
    assert len(set(hosts)) == len(hosts)


@pytest.mark.parametrize("items", [24, 100, 2_000, 50_000])
def test_pages_are_distinct_and_read_back(items: int) -> None:
    world = make_world(items)
    paths = world.paths.to_pylist()
    section = np.searchsorted(world.section_start, np.arange(items), side="right") - 1
    urls = [f"https://{world.hosts[world.section_host[s]]}{path}" for s, path in zip(section, paths, strict=True)]
    assert len(set(urls)) == len(urls) == items
    expected = [TOPICS[s // world.sections_per_topic] for s in section]
    assert [topic_of_url(url) for url in urls] == expected


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "s0"),
        (11, "s11"),
        (12, "easy-s0"),
        (192, "s0-guide"),
        (205, "easy-s1-guide"),
        (2_304, "s0-2"),
        (4_609, "s1-3"),
    ],
)
def test_page_name(number: int, name: str) -> None:
    assert page_name([f"s{i}" for i in range(12)], number) == name


def test_pools_have_the_shares_that_are_written() -> None:
    pools = make_pools(make_world(100), 1)
    tails = pools.tails.to_pylist()
    assert len(tails) == 2 * 65_536
    assert abs(tails[:65_536].count("") / 65_536 - 0.76) < 0.04


def test_ids_are_hex_digits() -> None:
    keys = np.array([0, 1, 0xDEADBEEF, 2**64 - 1], np.uint64)
    assert write_ids(keys).to_pylist() == [f"{key:016x}" for key in keys.tolist()]


CSV = "0a,https://back-rank.example/openings,2026-01-01T00:00:20Z\n"
JSONL = '{"user_id":"0a","url":"https://back-rank.example/","ts":"2026-01-01T00:00:20Z"}\n'
COMBINED = '0a - - [01/Jan/2026:00:00:20 +0000] "GET https://back-rank.example/ HTTP/1.1" 200 12 "-" "Agent"\n'


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (1, "0a,https://back-rank.example/openings\n"),
        (2, "0a,https://back-rank.example/openings,2026-01-01T00:00:20Z,?\n"),
        (3, "0a,https://back-rank.example/openings,yesterday\n"),
        (4, ",https://back-rank.example/openings,2026-01-01T00:00:20Z\n"),
    ],
)
def test_broken_csv(kind: int, broken: str) -> None:
    assert break_line(CSV, kind, "csv") == broken


def test_broken_jsonl() -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(break_line(JSONL, 1, "jsonl"))
    event = json.loads(JSONL)
    assert json.loads(break_line(JSONL, 2, "jsonl")) == {"user_id": "0a"}
    assert json.loads(break_line(JSONL, 3, "jsonl")) == event | {"ts": "yesterday"}
    assert json.loads(break_line(JSONL, 4, "jsonl")) == event | {"user_id": None}


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (1, "0a - - [01/Jan/2026:00:00:20 +00\n"),
        (2, "0a - - [01/Jan/2026:00:00:20 +0000] 01/Jan/2026:00:00:20 +0000\n"),
        (3, '0a - - [yesterday] "GET https://back-rank.example/ HTTP/1.1" 200 12 "-" "Agent"\n'),
        (4, ' - - [01/Jan/2026:00:00:20 +0000] "GET https://back-rank.example/ HTTP/1.1" 200 12 "-" "Agent"\n'),
    ],
)
def test_broken_combined(kind: int, broken: str) -> None:
    assert break_line(COMBINED, kind, "combined") == broken


@pytest.mark.parametrize("file_format", ["csv", "jsonl", "combined"])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_a_broken_line_spoils_no_other(file_format: str, kind: int) -> None:
    broken = break_line({"csv": CSV, "jsonl": JSONL, "combined": COMBINED}[file_format], kind, file_format)
    assert broken.count("\n") == 1
    assert broken.endswith("\n")
    assert file_format != "csv" or '"' not in broken


def test_every_spelling_of_a_page_is_one_item() -> None:
    world = make_world(500)
    visits = draw_visits(make_part(0, 1, 500, 1, 3), world, 0)
    good = visits[visits["broken"] == 0]
    lines = make_lines(good, FIRST_DAY, make_pools(world, 3), "csv").to_pylist()
    hosts = [world.hosts[host] for host in world.section_host[good["section"]]]
    pages = [f"https://{host}{world.paths[item]}" for host, item in zip(hosts, good["item"].tolist(), strict=True)]
    assert [canonical_item(line.split(",")[1], UrlRules()) for line in lines] == pages


def test_crawlers_are_known_by_their_agent_and_people_are_not() -> None:
    assert all(re.search(CRAWLER_PATTERN, agent) for agent in BOT_AGENTS)
    assert not any(re.search(CRAWLER_PATTERN, agent) for agent in AGENTS)
