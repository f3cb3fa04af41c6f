"""The made-up web: every page has one URL, and every URL its topic."""

import numpy as np
import pytest

from tasks.sample.logs import TOPICS, topic_of_url
from tasks.sample.world import WORDS, host_name, make_world, page_name


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
        assert [len(part.split()) for part in words] == [4, 6, 12]
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
