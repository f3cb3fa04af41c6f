"""The made-up web: every page has one URL, and every URL its topic. How visits are written down."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from surf2vec.tasks.ingest.make_items import CRAWLER_PATTERN
from surf2vec.tasks.release.url_rules import UrlRules, canonical_item
from surf2vec.tasks.sample.logs import FIRST_DAY, draw_visits, make_user_range, write_sample_logs
from surf2vec.tasks.sample.world import (
    AGENTS,
    BOT_AGENT,
    TOPICS,
    Format,
    make_events,
    make_tails,
    make_world,
    topic_of_url,
)
from tests.roots.ingest import take_in


@pytest.mark.parametrize(
    ("url", "topic"),
    [
        ("https://www.kitchen-table.example/recipes/lemon-tart", "cooking"),
        ("https://WWW.Kitchen-Table.Example/recipes/?utm_source=x", "cooking"),
        ("https://daily-corner-flag.example", "football"),
        ("back-rank.example/openings", "chess"),
        ("https://www.kitchen-table.example?x=https://back-rank.example/", "cooking"),
        ("https://www.kitchen-table.org/recipes", None),
        ("/recipes/lemon-tart", None),
        ("", None),
    ],
)
def test_topic_of_url(url: str, topic: str | None) -> None:
    assert topic_of_url(url) == topic


@pytest.mark.parametrize("items", [24, 100, 2_000, 50_000])
def test_pages_are_distinct_and_read_back(items: int) -> None:
    world = make_world(items)
    sections = np.repeat(np.arange(len(world.section_start) - 1), np.diff(world.section_start))
    assert world.pages.n_unique() == len(world.pages) == items
    assert [topic_of_url(page) for page in world.pages] == [TOPICS[s // world.sections_per_topic] for s in sections]


def test_every_spelling_of_a_page_is_one_item() -> None:
    world = make_world(500)
    visits = draw_visits(make_user_range(0, 1, 500, 1, 3), world, 0).filter(pl.col("broken") == 0)
    items = visits["item"].to_numpy()
    events = make_events(visits, FIRST_DAY, world, make_tails(3))
    pages = ("https://" + world.pages.gather(items)).to_list()
    assert [canonical_item(url, UrlRules()) for url in events["url"]] == pages


def test_crawlers_are_known_by_their_agent_and_people_are_not() -> None:
    assert re.search(CRAWLER_PATTERN, BOT_AGENT)
    assert not any(re.search(CRAWLER_PATTERN, agent) for agent in AGENTS)


@pytest.mark.parametrize("file_format", ["csv", "jsonl", "parquet", "combined"])
def test_ingest_takes_every_event_and_counts_every_broken_line(tmp_path: Path, file_format: Format) -> None:
    totals = write_sample_logs(tmp_path / "logs", 500, 2, 200, 3, file_format)
    suffix = "log" if file_format == "combined" else file_format
    taken = take_in(tmp_path / "root", tmp_path / f"logs/*.{suffix}")
    left_out = taken["left_out"].get("no user", 0) + taken["left_out"].get("no page", 0)
    assert sum(taken["rejected"].values()) + left_out == totals["broken_lines"]
    assert taken["lines"] == totals["events"] + totals["broken_lines"]
