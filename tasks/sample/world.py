"""The made-up web that sample logs are about: topics, hosts with sections and pages, and a URL's topic.

Everything is read off small lists of words (words.toml), so that a person can judge by eye whether two pages belong together.
Hosts end in `.example`, which is reserved: no real site is meant. Pages are numbered 0..M-1, the pages of a section
one after the other, the most visited first; page 0 of a section is its front, `/recipes`.
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

WORDS_FILE = Path(__file__).with_name("words.toml")


class Words(NamedTuple):
    """The words of one topic, each separated by spaces: 4 hosts, 6 sections, 12 subjects of pages."""

    hosts: str
    sections: str
    subjects: str


WORDS = {topic: Words(**words) for topic, words in tomllib.loads(WORDS_FILE.read_text("utf-8")).items()}
TOPICS = tuple(WORDS)
HOST_PREFIXES = ("", "daily-", "my-", "the-", "about-", "all-", "best-", "simply-", "world-", "club-")
QUALIFIERS = (
    "", "easy-", "best-", "simple-", "first-", "favourite-", "classic-", "weekend-", "spring-", "summer-",
    "autumn-", "winter-", "local-", "budget-", "perfect-", "new-",
)  # fmt: skip
FORMS = (
    "", "-guide", "-tips", "-explained", "-questions", "-pictures", "-for-beginners", "-step-by-step", "-mistakes",
    "-history", "-compared", "-news",
)  # fmt: skip
NUM_SUBJECTS = 12
MOST_HOSTS = 4 * len(HOST_PREFIXES)  # of a topic
MOST_SECTIONS = 6 * MOST_HOSTS  # of a topic


def host_name(topic: str, number: int) -> str:
    """The host `number` (0..39) of a topic, without `www.`: `pepper-mill.example`, `daily-pepper-mill.example`."""
    bases = WORDS[topic].hosts.split()
    return f"{HOST_PREFIXES[number // len(bases)]}{bases[number % len(bases)]}.example"


_TOPIC_OF_HOST = {host_name(topic, number): topic for topic in TOPICS for number in range(MOST_HOSTS)}


def topic_of_url(url: str) -> str | None:
    """The topic of a URL that a sample log has, in any of its spellings or canonical; None for any other URL."""
    host = url.partition("://")[2] or url
    for end in "/?#":
        host = host.partition(end)[0]
    return _TOPIC_OF_HOST.get(host.lower().removesuffix(":443").removeprefix("www."))


@dataclass(frozen=True)
class World:
    """All pages. A section is `topic * sections_per_topic + k`; its pages are consecutive.

    section_start  int64[S+1]  first page of each section, and the number of pages
    section_host   int32[S]    host of each section
    hosts          H names without `www.`
    paths          M strings: `/recipes/lemon-tart`
    """

    sections_per_topic: int
    section_start: np.ndarray
    section_host: np.ndarray
    hosts: list[str]
    paths: pa.Array

    @property
    def num_items(self) -> int:
        return len(self.paths)


def make_world(items: int) -> World:
    """The world with so many pages, the same at every call. Takes about 1 s and 40 MB a million."""
    sections_per_topic = min(MOST_SECTIONS, max(1, round(math.sqrt(items / len(TOPICS)) / 2)))
    hosts_per_topic = min(MOST_HOSTS, math.ceil(sections_per_topic / 3))
    num_sections = sections_per_topic * len(TOPICS)
    section_start = np.arange(num_sections + 1, dtype=np.int64) * items // num_sections
    chunks, section_host = [], []
    for topic_number, topic in enumerate(TOPICS):
        names, subjects = WORDS[topic].sections.split(), WORDS[topic].subjects.split()
        for k in range(sections_per_topic):
            section = topic_number * sections_per_topic + k
            section_host.append(topic_number * hosts_per_topic + k % hosts_per_topic)
            num_pages = int(section_start[section + 1] - section_start[section])
            name = names[k // hosts_per_topic]
            shifted = subjects[5 * k % NUM_SUBJECTS :] + subjects[: 5 * k % NUM_SUBJECTS]
            pages = [f"/{name}"] + [f"/{name}/{page_name(shifted, number)}" for number in range(num_pages - 1)]
            chunks.append(pa.array(pages, pa.string()))
    hosts = [host_name(topic, number) for topic in TOPICS for number in range(hosts_per_topic)]
    return World(sections_per_topic, section_start, np.array(section_host, np.int32), hosts, pa.concat_arrays(chunks))


def page_name(subjects: list[str], number: int) -> str:
    """Page `number` (0, 1, ...) of a section: `lemon-tart`, later `easy-lemon-tart`, `easy-lemon-tart-guide`."""
    rest, subject = divmod(number, NUM_SUBJECTS)
    rest, qualifier = divmod(rest, len(QUALIFIERS))
    rest, form = divmod(rest, len(FORMS))
    return f"{QUALIFIERS[qualifier]}{subjects[subject]}{FORMS[form]}" + (f"-{rest + 1}" if rest else "")
