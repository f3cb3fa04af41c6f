"""Sample logs: realistic browsing of any number of users, in bounded memory. The same arguments give the same bytes.

A day is one file, or several parts. The memory holds one part of one day (about a million events) and the pages, for any
number of users.

A user is a number. Its id and interests are pure functions of (seed, number), so that they can be computed later without a
file. Sessions are drawn from one random stream for each (part, day). A part is a range of users whose events of one day fit in
memory. Within a part, users are numbered in the order of their first day. The users known on a day are therefore a prefix,
and its visitors are drawn from the cumulative activity in O(sessions), not O(users).
"""

import math
import shutil
from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from surf2vec.tasks.sample.world import TOPICS, Format, World, make_events, make_tails, make_world, write_events
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.events import OnEvent, ignore_event
from surf2vec.trainer.system.files import read_json, replace_file, write_json

EVENT_BYTES = {"csv": 105, "jsonl": 135, "parquet": 20, "combined": 245}  # measured; only to check the free disk space
PART_EVENTS = 1_000_000  # of one day; determines the memory needed
MOST_PART_USERS = 2_000_000
NOTE = ".sample-logs.json"  # arguments, names and counts of the files written; hidden, so that `*` does not match it
FORMAT_VERSION = 2  # increased when the same arguments give other bytes
FIRST_DAY = date(2026, 1, 1)
DAY_SECONDS = 86_400
MEAN_USER_EVENTS = 25  # over all days, for any number of days
MEAN_SESSION_EVENTS = 4
LONGEST_SESSION = 40
KNOWN_FROM_START = 0.7  # share of users; the others first visit on a later day
NOISE_SESSIONS = 0.1  # share of sessions on a popular topic instead of an interest
BROKEN_RATIO = 0.002  # broken lines per good line
WEEKDAY_ACTIVITY = (1.0, 1.0, 1.0, 0.95, 0.9, 1.15, 1.25)  # Monday first
HOUR_ACTIVITY = (4, 2, 1, 1, 1, 2, 4, 7, 9, 9, 9, 10, 12, 11, 9, 9, 10, 12, 14, 17, 18, 16, 12, 7)  # UTC
TOPIC_SHARES = np.arange(1, len(TOPICS) + 1) ** -0.5 / (np.arange(1, len(TOPICS) + 1) ** -0.5).sum()
NUM_INTERESTS_UP_TO = (0.35, 0.75)  # share of users with one interest, with at most two; the others have three
# By number of interests: a draw in [0, 1) above the first value selects the second interest, above the second the third.
INTEREST_UP_TO = np.array([[1.0, 1.0], [0.7, 1.0], [0.6, 0.85]], np.float32)


def write_sample_logs(
    out: Path, users: int, days: int, items: int, seed: int, format: Format, on_event: OnEvent = ignore_event
) -> dict[str, int]:
    """Write logs of this many users and days (from 2026-01-01 on) into the folder `out`: about 25 events per user.

    Keeps existing logs of the same arguments. Removes logs that this function wrote with other arguments.
    Returns `{"files", "events", "bytes", "users", "broken_lines", "bots"}`; events are good lines, including crawlers'.
    Raises ConfigError for arguments out of bounds, ResourceError if `out` cannot be written or the disk is too small.
    """
    arguments: dict[str, Any] = {"users": users, "days": days, "items": items, "seed": seed}
    bounds = {"users": (1, 10**9), "days": (1, 3_650), "items": (len(TOPICS), 10**8), "seed": (0, 2**63 - 1)}
    for name, (least, most) in bounds.items():
        if not least <= arguments[name] <= most:
            raise ConfigError(f"--{name} is {arguments[name]:,}, but it has to be from {least:,} to {most:,}")
    try:
        return _write_files(out, arguments | {"format": format}, on_event)
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"cannot write sample logs to {out}: {reason}; give another folder with --out") from None


def _write_files(out: Path, arguments: dict[str, Any], on_event: OnEvent) -> dict[str, int]:
    """Write the logs of these arguments, unless the note in `out` lists them as written. Returns the totals."""
    users, days, format = arguments["users"], arguments["days"], arguments["format"]
    out.mkdir(parents=True, exist_ok=True)
    note: dict[str, Any] = read_json(out / NOTE) if (out / NOTE).exists() else {"files": {}}
    is_same = (note.get("format_version"), note.get("arguments")) == (FORMAT_VERSION, arguments) and "totals" in note
    sizes = {path.name: path.stat().st_size for path in out.iterdir()}
    if is_same and note["files"].items() <= sizes.items():
        on_event("log", {"message": f"sample logs exist already: {note['totals']['files']} files in {out}"})
        return note["totals"]
    for name in note["files"]:
        (out / Path(name).name).unlink(missing_ok=True)
    need_bytes, free_bytes = users * MEAN_USER_EVENTS * EVENT_BYTES[format], shutil.disk_usage(out).free
    if need_bytes > free_bytes:
        raise ResourceError(
            f"the logs need about {need_bytes / 1e9:,.1f} GB but {out} has {free_bytes / 1e9:,.1f} GB free: "
            "take fewer --users, --format parquet, or another folder with --out"
        )
    num_parts = math.ceil(users / min(MOST_PART_USERS, PART_EVENTS * days // MEAN_USER_EVENTS))
    suffix = "log" if format == "combined" else format
    names = [
        [f"{FIRST_DAY + timedelta(day)}.{f'part-{part:03}.' if num_parts > 1 else ''}{suffix}" for day in range(days)]
        for part in range(num_parts)
    ]
    note = {"format_version": FORMAT_VERSION, "arguments": arguments, "files": dict.fromkeys(chain(*names))}
    write_json(out / NOTE, note)  # before the first file: the next call then knows the files of a killed one
    totals = _write_parts(out, names, note, on_event)
    write_json(out / NOTE, note | {"totals": totals})
    message = "{files:,} files, {events:,} events of {users:,} users, {broken_lines:,} broken lines, {bytes:,} bytes"
    on_event("log", {"message": f"sample logs in {out}: {message.format(**totals)}"})
    return totals


def _write_parts(out: Path, names: list[list[str]], note: dict[str, Any], on_event: OnEvent) -> dict[str, int]:
    """Write the files `names[part][day]` and enter their bytes into the note. Returns the totals."""
    users, days, items, seed, format = (note["arguments"][key] for key in ("users", "days", "items", "seed", "format"))
    world, tails = make_world(items), make_tails(seed)
    totals = Counter(files=0, events=0, bytes=0, users=users, broken_lines=0)
    bots: set[int] = set()
    for part_number, part_names in enumerate(names):
        part = make_part(part_number, len(names), users, days, seed)
        for day, name in enumerate(part_names):
            visits = draw_visits(part, world, day)
            with replace_file(out / name) as path:
                write_events(make_events(visits, FIRST_DAY + timedelta(day), world, tails), visits, path, format)
            num_broken = visits.filter(pl.col("broken") > 0).height
            num_bytes = note["files"][name] = (out / name).stat().st_size
            totals.update(files=1, events=len(visits) - num_broken, broken_lines=num_broken, bytes=num_bytes)
            progress = {"step": "sample-logs", "done": totals["files"], "total": len(note["files"]), "unit": "files"}
            on_event("progress", progress)
            bots.update(visits.filter("is_bot")["key"].to_list())
    return {**totals, "bots": len(bots)}


def mix(values: np.ndarray) -> np.ndarray:
    """Returns a pseudorandom one-to-one mapping of uint64 to uint64 (the finalizer of splitmix64)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keys_of(user_numbers: np.ndarray, seed: int) -> np.ndarray:
    """Returns the ids of users as uint64, by number; distinct for distinct numbers."""
    return mix(np.asarray(user_numbers).astype(np.uint64) ^ mix(np.array([seed], np.uint64)))


def interests_of_keys(keys: np.ndarray, seed: int) -> np.ndarray:
    """Returns the interests of users by their keys (ids as numbers): int8 (n, 3) of TOPICS, the main one first, -1: none."""
    bits = mix(keys ^ mix(np.array([seed ^ 0x1A7E4E57], np.uint64)))
    draws = [(bits >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4)]
    interests = np.empty((len(keys), 3), np.int64)
    interests[:, 0] = np.searchsorted(np.cumsum(TOPIC_SHARES)[:-1], draws[0] / 65_536, side="right")
    # The other interests are the main one plus a step of 1 .. T-1; the third's step differs from the second's.
    second = (draws[1] % np.uint64(len(TOPICS) - 1)).astype(np.int64)
    third = (draws[2] % np.uint64(len(TOPICS) - 2)).astype(np.int64)
    third += third >= second
    interests[:, 1] = (interests[:, 0] + 1 + second) % len(TOPICS)
    interests[:, 2] = (interests[:, 0] + 1 + third) % len(TOPICS)
    for i, up_to in enumerate(NUM_INTERESTS_UP_TO):
        interests[draws[3] / 65_536 < up_to, i + 1 :] = -1
    return interests.astype(np.int8)


@dataclass(frozen=True)
class Part:
    """Consecutive users whose events are generated and written together."""

    number: int
    days: int
    seed: int
    keys: np.ndarray  # uint64[n]: ids, in the order of the users' first day
    interests: np.ndarray  # int8[n, 3]
    activity: np.ndarray  # float64[n]: cumulative sum of the users' expected extra sessions per day
    bot_keys: np.ndarray  # uint64[b]

    @property
    def num_known_from_start(self) -> int:
        return len(self.keys) if self.days == 1 else max(1, round(KNOWN_FROM_START * len(self.keys)))

    def num_known(self, day: int) -> int:
        """Returns the number of users whose first day is at most `day` (0, 1, ...)."""
        start = self.num_known_from_start
        return start + (len(self.keys) - start) * day // max(1, self.days - 1)


def make_part(number: int, num_parts: int, users: int, days: int, seed: int) -> Part:
    """Returns part `number`: users from `number * users // num_parts`, and every num_parts-th crawler."""
    user_numbers = np.arange(number * users // num_parts, (number + 1) * users // num_parts, dtype=np.int64)
    keys = keys_of(user_numbers, seed)
    num_bots = min(users // 1000, 2 + users // 50_000)  # numbered after the last user
    bot_keys = keys_of(users + np.arange(number, num_bots, num_parts, dtype=np.int64), seed)
    # Every user has one certain session. The number of others is log-normal: half of the users have few, some very many.
    mean_sessions = MEAN_USER_EVENTS / MEAN_SESSION_EVENTS - 1
    normal = np.random.default_rng([seed, 1, number]).standard_normal(len(keys))
    sessions = mean_sessions * np.minimum(np.exp(1.2 * normal - 0.72), 12)
    mean_presence = 1 if days == 1 else KNOWN_FROM_START + (1 - KNOWN_FROM_START) / 2
    activity = np.cumsum(sessions / (days * mean_presence))
    return Part(number, days, seed, keys, interests_of_keys(keys, seed), activity, bot_keys)


def draw_visits(part: Part, world: World, day: int) -> pl.DataFrame:
    """Returns the visits of a part's users and crawlers on a day (0, 1, ...), ordered by time. A pure function.

    Columns: key of the user, item, second of the day, is_bot; spelling and tail, uniform 16-bit draws of how the URL is
    written; broken, 0 or what the event lacks. Broken events are additional.
    """
    rng = np.random.default_rng([part.seed, 2, part.number, day])
    users, topics, lengths = _draw_sessions(part, day, rng)
    sections = _draw_session_sections(part.keys[users], topics, world, rng)
    session_of = np.repeat(np.arange(len(users)), lengths)
    items = _draw_pages(_draw_sections(sections[session_of], world, rng), world, day, part.days, rng)
    bot_keys, bot_items = _draw_crawls(part, world, day, rng)
    seconds = _draw_seconds(lengths, session_of, rng), rng.integers(0, DAY_SECONDS, len(bot_items))
    num = len(items) + len(bot_items)
    visits = pl.DataFrame({
        "key": np.concatenate([part.keys[users][session_of], bot_keys]),
        "item": np.concatenate([items, bot_items]),
        "second": np.concatenate(seconds),
        "spelling": rng.integers(0, 65_536, num, np.uint16),
        "tail": rng.integers(0, 65_536, num, np.uint16),
        "is_bot": np.arange(num) >= len(items),
        "broken": np.zeros(num, np.int8),
    })  # fmt: skip
    copied = visits.filter(pl.Series(rng.random(num) < BROKEN_RATIO))
    copied = copied.with_columns(broken=pl.Series(rng.integers(1, 4, len(copied), np.int8)))
    return pl.concat([visits, copied]).sort("second", maintain_order=True)


def _draw_sessions(part: Part, day: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the users (rows of the part), topics and numbers of events of the day's sessions."""
    known = part.num_known(day)
    # The certain session: on the first day of users who come later; spread over all days for the others.
    regulars = np.arange(day, part.num_known_from_start, part.days)
    newcomers = np.arange(part.num_known(max(0, day - 1)), known)
    week = [WEEKDAY_ACTIVITY[(FIRST_DAY + timedelta(days=i)).weekday()] for i in range(part.days)]
    expected = part.activity[known - 1] * week[day] / (sum(week) / part.days)
    drawn = np.sort(rng.random(rng.poisson(expected))) * part.activity[known - 1]
    extra = np.minimum(np.searchsorted(part.activity[:known], drawn, side="right"), known - 1)
    users = np.concatenate([regulars, newcomers, extra])
    interests = part.interests[users]
    num_interests = (interests >= 0).sum(axis=1)
    wish = rng.random(len(users), np.float32)
    which = (wish[:, None] >= INTEREST_UP_TO[num_interests - 1]).sum(axis=1)
    topics = interests[np.arange(len(users)), which].astype(np.int64)
    is_noise = rng.random(len(users), np.float32) < NOISE_SESSIONS
    topics[is_noise] = _draw_topics(int(is_noise.sum()), rng)
    lengths = np.minimum(rng.geometric(1 / MEAN_SESSION_EVENTS, len(users)), LONGEST_SESSION)
    return users, topics, lengths


def _draw_topics(num: int, rng: np.random.Generator) -> np.ndarray:
    """Returns random topics, drawn by popularity."""
    return np.searchsorted(np.cumsum(TOPIC_SHARES)[:-1], rng.random(num), side="right")


def _draw_rank(uniform: np.ndarray, num: np.ndarray | int) -> np.ndarray:
    """Returns ranks 0..num-1, rank r with probability log((r+2)/(r+1)) / log(num+1): Zipf's law, without a table."""
    return np.minimum(np.exp(uniform * np.log(np.add(num, 1.0))).astype(np.int64) - 1, np.subtract(num, 1))


def _draw_session_sections(keys: np.ndarray, topics: np.ndarray, world: World, rng: np.random.Generator) -> np.ndarray:
    """Returns the main section of each session: mostly the user's favourite of the topic, else drawn by popularity."""
    favourite = mix(keys ^ topics.astype(np.uint64)) / 2.0**64
    uniform = np.where(rng.random(len(keys), np.float32) < 0.6, favourite, rng.random(len(keys)))
    return topics * world.sections_per_topic + _draw_rank(uniform, world.sections_per_topic)


def _draw_sections(sections: np.ndarray, world: World, rng: np.random.Generator) -> np.ndarray:
    """Returns the section of each event: 3 in 4 in the session's section, most others in its topic, a few in any."""
    kind = rng.random(len(sections), np.float32)
    elsewhere = np.flatnonzero(kind > 0.75)
    is_anywhere = kind[elsewhere] > 0.92
    topics = sections[elsewhere] // world.sections_per_topic
    topics[is_anywhere] = _draw_topics(int(is_anywhere.sum()), rng)
    k = _draw_rank(rng.random(len(elsewhere)), world.sections_per_topic)
    sections[elsewhere] = topics * world.sections_per_topic + k
    return sections


def _draw_pages(sections: np.ndarray, world: World, day: int, days: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the page of each event: by popularity among the pages that exist on that day; 1 in 20 is a newest page."""
    start = world.section_start[:-1]
    share = 1.0 if days == 1 else 0.7 + 0.3 * day / (days - 1)
    num_pages = np.maximum(1, np.ceil(np.diff(world.section_start) * share)).astype(np.int64)[sections]
    rank = _draw_rank(rng.random(len(sections)), num_pages)
    newest = np.flatnonzero(rng.random(len(sections), np.float32) < 1 / 20)
    rank[newest] = num_pages[newest] - 1 - rank[newest]
    return start[sections] + rank


def _draw_seconds(lengths: np.ndarray, session_of: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the second of the day of each event: sessions begin by hourly activity; a page is read for 3 to 120 s."""
    hours = np.searchsorted(np.cumsum(HOUR_ACTIVITY), rng.random(len(lengths)) * sum(HOUR_ACTIVITY), side="right")
    begin = hours * 3600 + rng.integers(0, 3600, len(lengths))
    read = np.cumsum(rng.integers(3, 121, len(session_of)))
    ends = np.cumsum(lengths)
    until_end = read[ends - 1]
    before = until_end - (read[ends - lengths])
    begin = np.minimum(begin, DAY_SECONDS - 1 - before)  # a session ends on the day on which it begins
    return begin[session_of] + read - read[ends - lengths][session_of]


def _draw_crawls(part: Part, world: World, day: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns keys and pages of the crawlers. Each comes every third day and visits pages one by one."""
    keys = part.bot_keys[(np.arange(len(part.bot_keys)) + day + part.number) % 3 == 0]
    lengths = rng.integers(2500, 5000, len(keys))
    first = np.repeat(rng.integers(0, len(world.paths), len(keys)), lengths)
    return np.repeat(keys, lengths), (first + np.arange(len(first))) % len(world.paths)
