"""How sample logs write a visit down: the spelling of its URL, and the line of each format.

Everything that varies is taken from a pool of strings by number, so that a batch of lines is a few gathers and one
join, without a Python step a line. Pools that a visit's 16-bit draw picks from have 65,536 entries: the shares of what
is in them are the odds. Only broken lines (1 in 500) are made one by one.
"""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.sample.visits import DAY_SECONDS, Visits
from tasks.sample.world import World

POOL_SIZE = 65_536
PARQUET_SCHEMA = pa.schema([("user_id", pa.string()), ("url", pa.string()), ("ts", pa.timestamp("us", "UTC"))])

# Shares of spellings; `{token}` becomes 16 random hex digits. What is missing to 1 is the first one's.
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
# An access log has no fragments, but pictures and the like.
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


@dataclass(frozen=True)
class Pools:
    """What lines are put together from: strings by number.

    origins  of each host in each spelling: `https://www.pepper-mill.example`, number spelling * num_hosts + host
    tails    by draw; those of section fronts begin at POOL_SIZE
    clock    second of the day as `13:55:36`
    """

    world: World
    origins: pa.Array
    host_spelling: np.ndarray
    tails: pa.Array
    request_tails: pa.Array
    methods: pa.Array
    statuses: pa.Array
    agents: pa.Array
    clock: pa.Array


def make_pools(world: World, seed: int) -> Pools:
    """The pools for a world; tokens in them are drawn by the seed."""
    rng = np.random.default_rng([seed, 3])
    www = [f"https://www.{host}" for host in world.hosts]
    bare = [f"https://{host}" for host in world.hosts]
    capitals = [f"https://WWW.{host.title()}" for host in world.hosts]
    port = [f"{origin}:443" for origin in www]
    spelling = np.repeat(np.arange(4, dtype=np.int32), _slots(HOST_SPELLINGS))
    clock = [f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}" for s in range(DAY_SECONDS)]
    return Pools(
        world=world,
        origins=pa.array(www + bare + capitals + port),
        host_spelling=spelling,
        tails=pa.array(_fill(PAGE_TAILS, rng) + _fill(FRONT_TAILS, rng)),
        request_tails=pa.array(_fill(REQUEST_TAILS, rng) + _fill(FRONT_TAILS, rng)),
        methods=pa.array(_fill(METHODS, rng)),
        statuses=pa.array(_fill(STATUSES, rng)),
        agents=pa.array(AGENTS + BOT_AGENTS),
        clock=pa.array(clock),
    )


def _slots(shares: dict[str, float]) -> list[int]:
    """Of POOL_SIZE entries, how many each of the shares gets; the first one gets what is over."""
    slots = [round(share * POOL_SIZE) for share in shares.values()]
    return [POOL_SIZE - sum(slots[1:]), *slots[1:]]


def _fill(shares: dict[str, float], rng: np.random.Generator) -> list[str]:
    """A pool of POOL_SIZE strings from templates and their shares."""
    templates = [template for template, num in zip(shares, _slots(shares), strict=True) for _ in range(num)]
    tokens, numbers = rng.integers(0, 2**64, POOL_SIZE, np.uint64), rng.integers(1, 10_000, POOL_SIZE)
    return [
        template.format(token=f"{token:016x}", number=number) if "{" in template else template
        for template, token, number in zip(templates, tokens.tolist(), numbers.tolist(), strict=True)
    ]


def write_ids(keys: np.ndarray) -> pa.Array:
    """User ids: each uint64 as 16 hex digits."""
    pairs = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
    text = pairs[keys.astype(">u8").view(np.uint8)]
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(text))


def _spell_urls(visits: Visits, pools: Pools, tails: pa.Array) -> list[pa.Array]:
    """The URLs as three arrays to be joined: origin, path, tail."""
    world = pools.world
    host = world.section_host[visits.section] + pools.host_spelling[visits.spelling] * len(world.hosts)
    is_front = visits.item == world.section_start[visits.section]
    tail = visits.tail.astype(np.int32) + np.where(is_front, POOL_SIZE, 0)
    return [pools.origins.take(pa.array(host)), world.paths.take(pa.array(visits.item)), tails.take(pa.array(tail))]


def make_table(visits: Visits, day: date, pools: Pools) -> pa.Table:
    """Visits as a table of PARQUET_SCHEMA; a broken row lacks its user, URL or time, or has an empty URL."""
    urls = pc.binary_join_element_wise(*_spell_urls(visits, pools, pools.tails), "")
    urls = pc.if_else(pa.array(visits.broken == 1), pa.scalar(None, pa.string()), urls)
    urls = pc.if_else(pa.array(visits.broken == 2), "", urls)
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    times = pa.array((midnight + visits.second.astype(np.int64)) * 1_000_000, mask=visits.broken == 3)
    ids = pc.if_else(pa.array(visits.broken == 4), pa.scalar(None, pa.string()), write_ids(visits.key))
    return pa.table([ids, urls, times.cast(pa.timestamp("us", "UTC"))], schema=PARQUET_SCHEMA)


def make_lines(visits: Visits, day: date, pools: Pools, format: str) -> pa.Array:
    """Visits as lines of text in a format (csv, jsonl, combined), each with its line end."""
    clock = pools.clock.take(pa.array(visits.second))
    ids = write_ids(visits.key)
    urls = _spell_urls(visits, pools, pools.request_tails if format == "combined" else pools.tails)
    if format == "csv":
        parts = [ids, ",", *urls, f",{day}T", clock, "Z\n"]
    elif format == "jsonl":
        parts = ['{"user_id":"', ids, '","url":"', *urls, f'","ts":"{day}T', clock, 'Z"}\n']
    else:
        # The two draws' sum and difference are as good as two more draws.
        method = pools.methods.take(pa.array(visits.spelling + visits.tail))
        status = pools.statuses.take(pa.array(visits.spelling - visits.tail))
        people = visits.key % np.uint64(len(AGENTS))
        agent = np.where(visits.is_bot, len(AGENTS) + visits.key % np.uint64(len(BOT_AGENTS)), people)
        agents = pools.agents.take(pa.array(agent.astype(np.int32)))
        begin, end = [ids, f" - - [{day:%d/%b/%Y}:", clock, ' +0000] "', method, " "], [' HTTP/1.1" ', status]
        parts = [*begin, *urls, *end, ' "-" "', agents, '"\n']
    lines = pc.binary_join_element_wise(*parts, "")
    kinds = visits.broken[visits.broken > 0].tolist()
    good = lines.filter(pa.array(visits.broken > 0)).to_pylist()
    broken = [break_line(line, kind, format) for line, kind in zip(good, kinds, strict=True)]
    return pc.replace_with_mask(lines, pa.array(visits.broken > 0), pa.array(broken, pa.string()))


def break_line(line: str, kind: int, format: str) -> str:
    """A line spoilt in one of four ways: 1 cut short, 2 columns wrong, 3 time that is none, 4 user missing."""
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
    begin, _, rest = line.partition(" - - [")
    time, _, rest = rest.partition("] ")
    return [f"{begin} - - [{time}] {time}\n", f"{begin} - - [yesterday] {rest}", f" - - [{time}] {rest}"][kind - 2]
