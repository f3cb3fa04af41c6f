"""The invented web of the sample logs: topics, hosts, sections and pages; and how a visit becomes a line of a log.

All names come from short lists of words (words.toml), so that a person can see whether two pages belong together.
Hosts end in `.example`, which is reserved, so they are no real sites. Pages are numbered 0..M-1: section after section,
within a section the most visited first. Page 0 of a section is its front page, `/recipes`.

The varying texts of a line are selected by number from a pool of strings. A batch of lines is thus a few gathers and one join,
without a Python step per line. A pool selected by a visit's 16-bit draw has 65,536 entries: the share of a string in the pool
is its probability. Only broken lines (1 in 500) are made one by one.
"""

import json
import math
import re
import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DAY_SECONDS = 86_400
POOL_SIZE = 65_536
PARQUET_SCHEMA = pa.schema([("user_id", pa.string()), ("url", pa.string()), ("ts", pa.timestamp("us", "UTC"))])

# Shares of spellings; `{token}` becomes 16 random hex digits. The first one gets the share that is missing to 1.
HOST_SPELLINGS = {"www": 0.88, "bare": 0.07, "capitals": 0.03, "port": 0.02}
TAILS = {
    "": 0.79,
    "?utm_source=newsletter&utm_medium=email&utm_campaign=week-{number}": 0.04,
    "?utm_source=social&utm_medium=post": 0.03,
    "?gclid={token}": 0.04,
    "?sessionid={token}": 0.02,
    "/": 0.05,
}
PAGE_TAILS = TAILS | {"#comments": 0.02, "#top": 0.01}
FRONT_TAILS = TAILS | {"/index.html": 0.02, "/index.html?sessionid={token}": 0.01}
# An access log has no fragments, but it has images and other files.
REQUEST_TAILS = TAILS | {"/photo-{number}.jpg": 0.02, "/site.css": 0.01}
METHODS = {"GET": 0.985, "POST": 0.01, "HEAD": 0.005}
STATUSES = {"200 {number}": 0.94, "304 -": 0.03, "404 196": 0.02, "500 612": 0.01}
AGENTS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:146.0) Gecko/20100101 Firefox/146.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Safari/605.1.15",
    "Mozilla/5.0 (X11; Linux x86_64; rv:146.0) Gecko/20100101 Firefox/146.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "Mozilla/5.0 (Linux; Android 16; Pixel 9) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Mobile",
)
BOT_AGENTS = (
    "Mozilla/5.0 (compatible; SampleBot/2.1; +https://www.samplebot.example/about)",
    "sample-crawler/1.4 (+https://www.crawler.example)",
)
WORDS_FILE = Path(__file__).with_name("words.toml")

# For each topic: 4 hosts, 6 sections, 12 subjects of pages.
WORDS = {
    topic: {kind: text.split() for kind, text in words.items()}
    for topic, words in tomllib.loads(WORDS_FILE.read_text("utf-8")).items()
}
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
    """Returns host `number` (0..39) of a topic, without `www.`: `pepper-mill.example`, `daily-pepper-mill.example`."""
    bases = WORDS[topic]["hosts"]
    return f"{HOST_PREFIXES[number // len(bases)]}{bases[number % len(bases)]}.example"


_TOPIC_OF_HOST = {host_name(topic, number): topic for topic in TOPICS for number in range(MOST_HOSTS)}


def topic_of_url(url: str) -> str | None:
    """Returns the topic of a sample log's URL, in any spelling or canonical; None for any other URL."""
    host = re.split("[/?#]", url.partition("://")[2] or url, maxsplit=1)[0]
    return _TOPIC_OF_HOST.get(host.lower().removesuffix(":443").removeprefix("www."))


@dataclass(frozen=True)
class World:
    """All pages. A section is `topic * sections_per_topic + k`; its pages are consecutive."""

    sections_per_topic: int
    section_start: np.ndarray  # int64[S+1]: first page of each section, and the number of pages
    section_host: np.ndarray  # int32[S]
    hosts: list[str]  # without `www.`
    paths: pa.Array  # of each page: `/recipes/lemon-tart`


def make_world(items: int) -> World:
    """Returns the world with this many pages, the same at every call. Takes about 1 s and 40 MB per million pages."""
    sections_per_topic = min(MOST_SECTIONS, max(1, round(math.sqrt(items / len(TOPICS)) / 2)))
    hosts_per_topic = min(MOST_HOSTS, math.ceil(sections_per_topic / 3))
    num_sections = sections_per_topic * len(TOPICS)
    section_start = np.arange(num_sections + 1, dtype=np.int64) * items // num_sections
    chunks, section_host = [], []
    for topic_number, topic in enumerate(TOPICS):
        names, subjects = WORDS[topic]["sections"], WORDS[topic]["subjects"]
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
    """Returns the name of page `number` (0, 1, ...) of a section: `lemon-tart`, `easy-lemon-tart`, `easy-lemon-tart-guide`."""
    rest, subject = divmod(number, NUM_SUBJECTS)
    rest, qualifier = divmod(rest, len(QUALIFIERS))
    rest, form = divmod(rest, len(FORMS))
    return f"{QUALIFIERS[qualifier]}{subjects[subject]}{FORMS[form]}" + (f"-{rest + 1}" if rest else "")


@dataclass(frozen=True)
class Pools:
    """The strings that lines are joined from, by number."""

    world: World
    origins: pa.Array  # `https://www.pepper-mill.example`: spelling * num_hosts + host
    host_spelling: np.ndarray  # by draw
    tails: pa.Array  # by draw; those of section fronts begin at POOL_SIZE
    request_tails: pa.Array
    methods: pa.Array
    statuses: pa.Array
    clock: pa.Array  # by second of the day: `13:55:36`


def make_pools(world: World, seed: int) -> Pools:
    """Returns the pools for a world. The seed determines the random tokens in them."""
    rng = np.random.default_rng([seed, 3])
    spellings = ("https://www.{}", "https://{}", "https://WWW.{}", "https://www.{}:443")  # in HOST_SPELLINGS' order
    return Pools(
        world=world,
        origins=pa.array(
            [
                spelling.format(host.title() if "WWW" in spelling else host)
                for spelling in spellings
                for host in world.hosts
            ]
        ),
        host_spelling=np.repeat(np.arange(4, dtype=np.int32), _slots(HOST_SPELLINGS)),
        tails=pa.array(_fill(PAGE_TAILS, rng) + _fill(FRONT_TAILS, rng)),
        request_tails=pa.array(_fill(REQUEST_TAILS, rng) + _fill(FRONT_TAILS, rng)),
        methods=pa.array(_fill(METHODS, rng)),
        statuses=pa.array(_fill(STATUSES, rng)),
        clock=pa.array([f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}" for s in range(DAY_SECONDS)]),
    )


def _slots(shares: dict[str, float]) -> list[int]:
    """Returns how many of POOL_SIZE entries each share gets. The first share gets the remainder."""
    slots = [round(share * POOL_SIZE) for share in shares.values()]
    return [POOL_SIZE - sum(slots[1:]), *slots[1:]]


def _fill(shares: dict[str, float], rng: np.random.Generator) -> list[str]:
    """Returns a pool of POOL_SIZE strings, made from templates and their shares."""
    templates = [template for template, num in zip(shares, _slots(shares), strict=True) for _ in range(num)]
    tokens, numbers = rng.integers(0, 2**64, POOL_SIZE, np.uint64), rng.integers(1, 10_000, POOL_SIZE)
    return [
        template.format(token=f"{token:016x}", number=number) if "{" in template else template
        for template, token, number in zip(templates, tokens.tolist(), numbers.tolist(), strict=True)
    ]


def write_ids(keys: np.ndarray) -> pa.Array:
    """Returns user ids: each uint64 as 16 hex digits."""
    text = keys.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(text))


def _spell_urls(visits: np.ndarray, pools: Pools, tails: pa.Array) -> list[pa.Array]:
    """Returns the URLs as three arrays to be joined: origin, path, tail."""
    world = pools.world
    host = world.section_host[visits["section"]] + pools.host_spelling[visits["spelling"]] * len(world.hosts)
    is_front = visits["item"] == world.section_start[visits["section"]]
    tail = visits["tail"].astype(np.int32) + np.where(is_front, POOL_SIZE, 0)
    return [pools.origins.take(pa.array(host)), world.paths.take(pa.array(visits["item"])), tails.take(pa.array(tail))]


def make_table(visits: np.ndarray, day: date, pools: Pools) -> pa.Table:
    """Returns visits as a table of PARQUET_SCHEMA. A broken row lacks its user, URL or time, or has an empty URL."""
    without_url, empty_url, without_time, without_user = (pa.array(visits["broken"] == kind) for kind in range(1, 5))
    urls = pc.binary_join_element_wise(*_spell_urls(visits, pools, pools.tails), "")
    urls = pc.if_else(without_url, None, pc.if_else(empty_url, "", urls))
    times = pa.array(np.datetime64(day, "us") + visits["second"].astype("m8[s]"))
    ids = pc.if_else(without_user, None, write_ids(visits["key"]))
    return pa.table({"user_id": ids, "url": urls, "ts": pc.if_else(without_time, None, times)}).cast(PARQUET_SCHEMA)


def make_lines(visits: np.ndarray, day: date, pools: Pools, format: str) -> pa.Array:
    """Returns visits as lines of text in a format (csv, jsonl, combined), each with its line end."""
    clock = pools.clock.take(pa.array(visits["second"]))
    ids = write_ids(visits["key"])
    urls = _spell_urls(visits, pools, pools.request_tails if format == "combined" else pools.tails)
    if format == "csv":
        parts = [ids, ",", *urls, f",{day}T", clock, "Z\n"]
    elif format == "jsonl":
        parts = ['{"user_id":"', ids, '","url":"', *urls, f'","ts":"{day}T', clock, 'Z"}\n']
    else:
        # The sum and the difference of the two draws serve as two more draws.
        method = pools.methods.take(pa.array(visits["spelling"] + visits["tail"]))
        status = pools.statuses.take(pa.array(visits["spelling"] - visits["tail"]))
        people = visits["key"] % np.uint64(len(AGENTS))
        agent = np.where(visits["is_bot"], len(AGENTS) + visits["key"] % np.uint64(len(BOT_AGENTS)), people)
        agents = pa.array(AGENTS + BOT_AGENTS).take(pa.array(agent.astype(np.int32)))
        begin, end = [ids, f" - - [{day:%d/%b/%Y}:", clock, ' +0000] "', method, " "], [' HTTP/1.1" ', status]
        parts = [*begin, *urls, *end, ' "-" "', agents, '"\n']
    lines = pc.binary_join_element_wise(*parts, "")
    is_broken = visits["broken"] > 0
    good, kinds = lines.filter(pa.array(is_broken)).to_pylist(), visits["broken"][is_broken].tolist()
    broken = [break_line(line, kind, format) for line, kind in zip(good, kinds, strict=True)]
    return pc.replace_with_mask(lines, pa.array(is_broken), pa.array(broken, pa.string()))


def break_line(line: str, kind: int, format: str) -> str:
    """Returns a line broken in one of four ways: 1 cut short, 2 wrong columns, 3 invalid time, 4 no user."""
    if format == "csv":
        user, url, time = line.rstrip("\n").split(",")
        columns = [(user, url), (user, url, time, "?"), (user, url, "yesterday"), ("", url, time)]
        return ",".join(columns[kind - 1]) + "\n"
    if kind == 1:
        return line[: len(line) // 3] + "\n"
    if format == "jsonl":
        event = json.loads(line)
        wrong = [{"user_id": event["user_id"]}, event | {"ts": "yesterday"}, event | {"user_id": None}]
        return json.dumps(wrong[kind - 2], separators=(",", ":")) + "\n"
    user, time, rest = re.split(r" - - \[|\] ", line, maxsplit=2)
    return [f"{user} - - [{time}] {time}\n", f"{user} - - [yesterday] {rest}", f" - - [{time}] {rest}"][kind - 2]
