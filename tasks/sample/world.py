"""The invented web of the sample logs: topics, hosts, sections and pages; and how visits become events and lines of a log.

All names come from short lists of words (words.toml), so that a person can see whether two pages belong together.
Hosts end in `.example`, which is reserved, so they are no real sites. Pages are numbered 0..M-1: section after section,
within a section the most visited first. Page 0 of a section is its front page, `/recipes`.

Events have one form, the columns `user_id, url, ts`. Polars writes them in each format. A broken event lacks one of the three.
"""

import math
import re
import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

Format = Literal["csv", "jsonl", "parquet", "combined"]
ROW_GROUP_ROWS = 131_072
POOL_SIZE = 65_536
# Shares of spellings. In a tail, `{token}` becomes 16 random hex digits.
ORIGINS = {"https://www.": 0.88, "https://": 0.08, "https://WWW.": 0.04}
TAILS = {
    "": 0.76,
    "?utm_source=newsletter&utm_medium=email&utm_campaign=week-{number}": 0.04,
    "?utm_source=social&utm_medium=post": 0.03,
    "?gclid={token}": 0.04,
    "?sessionid={token}": 0.02,
    "/": 0.05,
    "#comments": 0.03,
    "/index.html": 0.03,
}
STATUSES = ("200 5120",) * 47 + ("304 -", "304 -", "404 196")  # and bytes; each is equally likely
AGENTS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Safari/537.36",
    "Mozilla/5.0 (X11; Linux x86_64; rv:146.0) Gecko/20100101 Firefox/146.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
)
BOT_AGENT = "Mozilla/5.0 (compatible; SampleBot/2.1; +https://www.samplebot.example/about)"

# For each topic: 4 hosts, 6 sections, 12 subjects of pages.
WORDS = {
    topic: {kind: text.split() for kind, text in words.items()}
    for topic, words in tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8")).items()
}
TOPICS = tuple(WORDS)
HOST_PREFIXES = ("", "daily-", "my-", "the-", "about-", "all-", "best-", "simply-", "world-", "club-")
QUALIFIERS = (
    "", "easy-", "best-", "simple-", "first-", "favourite-", "classic-", "weekend-", "spring-", "summer-",
    "autumn-", "winter-", "local-", "budget-", "perfect-", "new-",
)  # fmt: skip
NUM_SUBJECTS = 12
MOST_HOSTS = 4 * len(HOST_PREFIXES)  # of a topic
MOST_SECTIONS = 6 * MOST_HOSTS  # of a topic


def host_name(topic: str, number: int) -> str:
    """Return host `number` (0..39) of a topic, without `www.`: `pepper-mill.example`, `daily-pepper-mill.example`."""
    bases = WORDS[topic]["hosts"]
    return f"{HOST_PREFIXES[number // len(bases)]}{bases[number % len(bases)]}.example"


_TOPIC_OF_HOST = {host_name(topic, number): topic for topic in TOPICS for number in range(MOST_HOSTS)}


def topic_of_url(url: str) -> str | None:
    """Return the topic of a sample log's URL, in any spelling or canonical; None for any other URL."""
    host = re.split("[/?#]", url.partition("://")[2] or url, maxsplit=1)[0]
    return _TOPIC_OF_HOST.get(host.lower().removeprefix("www."))


@dataclass(frozen=True)
class World:
    """All pages. A section is `topic * sections_per_topic + k`; its pages are consecutive."""

    sections_per_topic: int
    section_start: np.ndarray  # int64[S+1]: first page of each section, and the number of pages
    pages: pl.Series  # `lemon-and-thyme.example/recipes/lemon-tart`


def make_world(items: int) -> World:
    """Return the world with this many pages, the same at every call. Takes about 1 s and 60 MB per million pages."""
    sections_per_topic = min(MOST_SECTIONS, max(1, round(math.sqrt(items / len(TOPICS)) / 2)))
    hosts_per_topic = min(MOST_HOSTS, math.ceil(sections_per_topic / 3))
    num_sections = sections_per_topic * len(TOPICS)
    section_start = np.arange(num_sections + 1, dtype=np.int64) * items // num_sections
    pages: list[str] = []
    for section, num_pages in enumerate(np.diff(section_start).tolist()):
        topic, k = divmod(section, sections_per_topic)
        words, first = WORDS[TOPICS[topic]], 5 * k % NUM_SUBJECTS
        front = f"{host_name(TOPICS[topic], k % hosts_per_topic)}/{words['sections'][k // hosts_per_topic]}"
        subjects = words["subjects"][first:] + words["subjects"][:first]
        pages += [front, *(f"{front}/{page_name(subjects, number)}" for number in range(num_pages - 1))]
    return World(sections_per_topic, section_start, pl.Series(pages))


def page_name(subjects: list[str], number: int) -> str:
    """Return the name of page `number` (0, 1, ...) of a section: `lemon-tart`, `easy-lemon-tart`, `easy-lemon-tart-2`."""
    rest, subject = divmod(number, NUM_SUBJECTS)
    rest, qualifier = divmod(rest, len(QUALIFIERS))
    return f"{QUALIFIERS[qualifier]}{subjects[subject]}" + (f"-{rest + 1}" if rest else "")


def make_tails(seed: int) -> pl.Series:
    """Return POOL_SIZE tails of URLs; the share of each template is its probability."""
    rng = np.random.default_rng([seed, 3])
    templates = np.repeat(list(TAILS), np.diff(np.round(np.cumsum([0, *TAILS.values()]) * POOL_SIZE).astype(int)))
    tokens, numbers = rng.integers(0, 2**64, POOL_SIZE, np.uint64), rng.integers(1, 10_000, POOL_SIZE)
    filled = zip(templates.tolist(), tokens.tolist(), numbers.tolist(), strict=True)
    return pl.Series([template.format(token=f"{token:016x}", number=number) for template, token, number in filled])


def make_events(visits: pl.DataFrame, day: date, world: World, tails: pl.Series) -> pl.DataFrame:
    """Return the events of visits: user_id, url, ts (UTC). A broken one lacks its user, URL or time."""
    spelling = np.searchsorted(np.cumsum(list(ORIGINS.values()))[:-1], visits["spelling"] / POOL_SIZE, side="right")
    origins, pages = pl.Series(list(ORIGINS)).gather(spelling), world.pages.gather(visits["item"])
    events = pl.DataFrame(
        {
            "user_id": [f"{key:016x}" for key in visits["key"]],
            "url": origins + pages + tails.gather(visits["tail"]),
            "ts": np.datetime64(day, "us") + visits["second"].to_numpy().astype("m8[s]"),
        }
    )
    broken = visits["broken"]
    return events.with_columns(
        pl.when(broken != kind).then(name).alias(name) for kind, name in enumerate(events.columns, start=1)
    ).with_columns(pl.col("ts").dt.replace_time_zone("UTC"))


def write_events(events: pl.DataFrame, visits: pl.DataFrame, path: Path, file_format: Format) -> None:
    if file_format == "parquet":
        events.write_parquet(path, row_group_size=ROW_GROUP_ROWS)
    elif file_format == "combined":
        make_requests(events, visits).write_csv(path, include_header=False, quote_style="never")
    else:
        texts = events.with_columns(pl.col("ts").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
        texts.write_csv(path) if file_format == "csv" else texts.write_ndjson(path)


def make_requests(events: pl.DataFrame, visits: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of an access log in combined format: a URL has no fragment, and a missing value is empty."""
    status = pl.Series(STATUSES).gather(visits["spelling"] % len(STATUSES))
    agent = pl.Series(AGENTS).gather(visits["key"] % len(AGENTS))
    return events.select(
        pl.format(
            '{} - - [{}] "GET {} HTTP/1.1" {} "-" "{}"',
            pl.col("user_id").fill_null(""),
            pl.col("ts").dt.strftime("%d/%b/%Y:%H:%M:%S +0000").fill_null(""),
            pl.col("url").str.split("#").list.first().fill_null(""),
            status,
            pl.when(visits["is_bot"]).then(pl.lit(BOT_AGENT)).otherwise(agent),
        )
    )
