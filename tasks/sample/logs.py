"""Sample logs: realistic browsing of any number of users, in bounded memory. The same arguments give the same bytes.

A day is one file, or several parts. A part is a range of users whose events of one day fit in memory: about a million. A user is
a number. Its id and interests are pure functions of (seed, number), so that they can be computed later without a file. The visits
of a part on a day are drawn from a random stream of their own.
"""

import math
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from surf2vec.tasks.sample.world import TOPICS, Format, World, make_events, make_tails, make_world, write_events
from surf2vec.trainer.draws import draws
from surf2vec.trainer.errors import ConfigError, InputError, ResourceError
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.system.files import replace_file

PART_EVENTS = 1_000_000  # of one day; determines the memory needed
MOST_PART_USERS = 2_000_000
FIRST_DAY = date(2026, 1, 1)
DAY_SECONDS = 86_400
MEAN_USER_EVENTS = 25  # over all days, for any number of days
MEAN_SESSION_EVENTS = 4
LONGEST_SESSION = 40
KNOWN_FROM_START = 0.7  # share of users; the others first visit on a later day
NOISE_SESSIONS = 0.1  # share of sessions on a popular topic instead of an interest
BROKEN_RATIO = 0.002  # broken lines per good line
WEEKDAY_ACTIVITY = (1.0, 1.0, 1.0, 0.95, 0.9, 1.15, 1.25)  # Monday first
HOUR_ACTIVITY = np.array((4, 2, 1, 1, 1, 2, 4, 7, 9, 9, 9, 10, 12, 11, 9, 9, 10, 12, 14, 17, 18, 16, 12, 7))  # UTC
TOPIC_ENDS = np.cumsum(np.arange(1, len(TOPICS) + 1) ** -0.5)  # by popularity
NUM_INTERESTS_UP_TO = (0.35, 0.75)  # share of users with one interest, with at most two; the others have three
INTEREST_UP_TO = (0.65, 0.88)  # share of sessions on the main interest, on the first two


def write_sample_logs(
    out: Path, users: int, days: int, items: int, seed: int, format: Format, on_event: OnEvent = ignore_event
) -> dict[str, int]:
    """Write logs of this many users and days (from 2026-01-01 on) into the folder `out`: about 25 events per user.

    Files of an earlier call with the same arguments are written again. Returns `{"files", "events", "bytes", "users",
    "broken_lines", "bots"}`; events are good lines, including crawlers'. Raises ConfigError for arguments out of bounds,
    InputError if `out` has other files, ResourceError if it cannot be written.
    """
    sizes = {"users": (users, 1, 10**9), "days": (days, 1, 3_650), "items": (items, len(TOPICS), 10**8)}
    for name, (value, least, most) in (sizes | {"seed": (seed, 0, 2**63 - 1)}).items():
        if not least <= value <= most:
            raise ConfigError(f"--{name} is {value:,}, but it has to be from {least:,} to {most:,}")
    num_parts = math.ceil(users / min(MOST_PART_USERS, PART_EVENTS * days // MEAN_USER_EVENTS))
    names = list_names(num_parts, days, format)
    try:
        out.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in out.iterdir() if not path.name.startswith(".")} - set(names.values())
        if others:
            raise InputError(f"{out} has other files, such as {min(others)}: use another folder with --out")
        totals = dict.fromkeys(("files", "events", "bytes", "broken_lines"), 0) | {"users": users}
        world, tails, bots = make_world(items), make_tails(seed), set[int]()
        for (number, day), name in names.items():
            if day == 0:
                part = make_user_range(number, num_parts, users, days, seed)
            visits = draw_visits(part, world, day)
            with replace_file(out / name) as path:
                write_events(make_events(visits, FIRST_DAY + timedelta(day), world, tails), visits, path, format)
            bots.update(visits.filter("is_bot")["key"])
            num_broken = visits.filter(pl.col("broken") > 0).height
            added = {"files": 1, "broken_lines": num_broken, "events": len(visits) - num_broken}
            for key, count in (added | {"bytes": (out / name).stat().st_size}).items():
                totals[key] += count
            log_progress(on_event, "sample-logs", totals["files"], len(names), "files")
    except OSError as error:
        raise ResourceError(
            f"cannot write sample logs to {out}: {error.strerror or error}; use another folder with --out"
        ) from None
    message = "{files:,} files, {events:,} events of {users:,} users, {broken_lines:,} broken lines, {bytes:,} bytes"
    log(on_event, f"sample logs in {out}: {message.format(**totals)}")
    return totals | {"bots": len(bots)}


def list_names(num_parts: int, days: int, format: Format) -> dict[tuple[int, int], str]:
    ending = "log" if format == "combined" else format
    return {
        (part, day): f"{FIRST_DAY + timedelta(day)}.{f'part-{part:03}.' if num_parts > 1 else ''}{ending}"
        for part in range(num_parts)
        for day in range(days)
    }


def mix(values: np.ndarray) -> np.ndarray:
    """Return a pseudorandom one-to-one mapping of uint64 to uint64."""
    return draws(values, np.ones(1, np.uint64))


def keys_of(user_numbers: np.ndarray, seed: int) -> np.ndarray:
    """Return the ids of users as uint64, by number; distinct for distinct numbers."""
    return mix(np.asarray(user_numbers).astype(np.uint64) ^ mix(np.array([seed], np.uint64)))


def interests_of_keys(keys: np.ndarray, seed: int) -> np.ndarray:
    """Return the interests of users by their keys (ids as numbers): int8 (n, 3) of TOPICS, the main one first, -1: none."""
    bits = mix(keys ^ mix(np.array([seed ^ 0x1A7E4E57], np.uint64)))
    main, step, number = (((bits >> np.uint64(16 * i)) & np.uint64(0xFFFF)) / 65_536 for i in range(3))
    steps = 1 + (step * ((len(TOPICS) - 1) // 2)).astype(np.int64)  # two steps are no full circle: topics are distinct
    interests = (_pick_topics(main)[:, None] + steps[:, None] * np.arange(3)) % len(TOPICS)
    num_interests = 1 + np.searchsorted(NUM_INTERESTS_UP_TO, number, side="right")
    return np.where(np.arange(3) < num_interests[:, None], interests, -1).astype(np.int8)


@dataclass(frozen=True)
class UserRange:
    """Consecutive users, and some crawlers, whose events are generated and written together."""

    number: int
    days: int
    seed: int
    keys: np.ndarray  # uint64[n]: ids
    interests: np.ndarray  # int8[n, 3]
    sessions: np.ndarray  # float64[n]: expected sessions per day, beside the certain one
    certain_day: np.ndarray  # int64[n]: the day of a session that every user has
    first_day: np.ndarray  # int64[n]
    bot_keys: np.ndarray  # uint64[b]


def make_user_range(number: int, num_parts: int, users: int, days: int, seed: int) -> UserRange:
    """Return part `number`: users from `number * users // num_parts`, and every num_parts-th crawler."""
    keys = keys_of(np.arange(number * users // num_parts, (number + 1) * users // num_parts), seed)
    num_bots = min(users // 1000, 2 + users // 50_000)  # numbered after the last user
    rng = np.random.default_rng([seed, 1, number])
    certain_day = rng.integers(0, days, len(keys))
    first_day = np.where(rng.random(len(keys)) < KNOWN_FROM_START, 0, certain_day)
    # The number of sessions is log-normal: half of the users have few, some very many.
    mean_days = days * KNOWN_FROM_START + (days + 1) / 2 * (1 - KNOWN_FROM_START)
    sessions = np.minimum(np.exp(1.2 * rng.standard_normal(len(keys)) - 0.72), 12)
    sessions *= (MEAN_USER_EVENTS / MEAN_SESSION_EVENTS - 1) / mean_days
    bot_keys = keys_of(users + np.arange(number, num_bots, num_parts), seed)
    return UserRange(
        number, days, seed, keys, interests_of_keys(keys, seed), sessions, certain_day, first_day, bot_keys
    )


def draw_visits(part: UserRange, world: World, day: int) -> pl.DataFrame:
    """Return the visits of a part's users and crawlers on a day (0, 1, ...), ordered by time. A pure function.

    Columns: key of the user, item, second of the day, is_bot; spelling and tail, uniform 16-bit draws of how the URL is
    written; broken, 0 or what the event lacks. Broken events are additional.
    """
    rng = np.random.default_rng([part.seed, 2, part.number, day])
    week = [WEEKDAY_ACTIVITY[(FIRST_DAY + timedelta(n)).weekday()] for n in range(part.days)]
    expected = part.sessions * (part.first_day <= day) * (week[day] / np.mean(week))
    users = np.repeat(np.arange(len(expected)), rng.poisson(expected) + (part.certain_day == day))
    lengths = np.minimum(rng.geometric(1 / MEAN_SESSION_EVENTS, len(users)), LONGEST_SESSION)
    sections = np.repeat(_draw_main_sections(part, users, world, rng), lengths)
    items = _draw_pages(_draw_sections(sections, world, rng), world, day, part.days, rng)
    # Each crawler comes every third day and visits pages one by one.
    crawlers = part.bot_keys[(np.arange(len(part.bot_keys)) + day + part.number) % 3 == 0]
    crawled = rng.integers(2500, 5000, len(crawlers))
    first = np.repeat(rng.integers(0, len(world.pages), len(crawlers)), crawled)
    num = len(items) + len(first)
    visits = pl.DataFrame(
        {
            "key": np.concatenate([np.repeat(part.keys[users], lengths), np.repeat(crawlers, crawled)]),
            "item": np.concatenate([items, (first + np.arange(len(first))) % len(world.pages)]),
            "second": np.concatenate([_draw_seconds(lengths, rng), rng.integers(0, DAY_SECONDS, len(first))]),
            "spelling": rng.integers(0, 65_536, num, np.uint16),
            "tail": rng.integers(0, 65_536, num, np.uint16),
            "is_bot": np.arange(num) >= len(items),
            "broken": np.zeros(num, np.int8),
        }
    )
    copied = visits.filter(pl.Series(rng.random(num) < BROKEN_RATIO))
    copied = copied.with_columns(broken=pl.Series(rng.integers(1, 4, len(copied), np.int8)))
    return pl.concat([visits, copied]).sort("second", maintain_order=True)


def _pick_topics(uniform: np.ndarray) -> np.ndarray:
    """Return topics by popularity, for draws in [0, 1)."""
    return np.searchsorted(TOPIC_ENDS, uniform * TOPIC_ENDS[-1], side="right")


def _pick_ranks(uniform: np.ndarray, num: np.ndarray | int) -> np.ndarray:
    """Return ranks 0..num-1, rank r with probability log((r+2)/(r+1)) / log(num+1): Zipf's law, without a table."""
    return np.minimum(np.exp(uniform * np.log(np.add(num, 1.0))).astype(np.int64) - 1, np.subtract(num, 1))


def _draw_main_sections(part: UserRange, users: np.ndarray, world: World, rng: np.random.Generator) -> np.ndarray:
    """Return the main section of each session: of one of the user's interests, mostly the user's favourite section of it."""
    interests = part.interests[users]
    wish = np.searchsorted(INTEREST_UP_TO, rng.random(len(users)), side="right")
    topics = interests[np.arange(len(users)), np.minimum(wish, (interests >= 0).sum(axis=1) - 1)].astype(np.int64)
    is_noise = rng.random(len(users)) < NOISE_SESSIONS
    topics[is_noise] = _pick_topics(rng.random(is_noise.sum()))
    favourite = mix(part.keys[users] ^ topics.astype(np.uint64)) / 2.0**64
    uniform = np.where(rng.random(len(users)) < 0.6, favourite, rng.random(len(users)))
    return topics * world.sections_per_topic + _pick_ranks(uniform, world.sections_per_topic)


def _draw_sections(sections: np.ndarray, world: World, rng: np.random.Generator) -> np.ndarray:
    """Return the section of each event: 3 in 4 in the session's section, most others in its topic, a few in any."""
    kind, num = rng.random(len(sections)), len(sections)
    topics = np.where(kind > 0.92, _pick_topics(rng.random(num)), sections // world.sections_per_topic)
    elsewhere = topics * world.sections_per_topic + _pick_ranks(rng.random(num), world.sections_per_topic)
    return np.where(kind > 0.75, elsewhere, sections)


def _draw_pages(sections: np.ndarray, world: World, day: int, days: int, rng: np.random.Generator) -> np.ndarray:
    """Return the page of each event: by popularity among the pages that exist on that day; 1 in 20 is a newest page."""
    share = 1.0 if days == 1 else 0.7 + 0.3 * day / (days - 1)
    num_pages = np.maximum(1, np.ceil(np.diff(world.section_start) * share)).astype(np.int64)[sections]
    rank = _pick_ranks(rng.random(len(sections)), num_pages)
    is_newest = rng.random(len(sections)) < 1 / 20
    return world.section_start[sections] + np.where(is_newest, num_pages - 1 - rank, rank)


def _draw_seconds(lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the second of the day of each event: sessions begin by hourly activity; a page is read for 3 to 120 s."""
    hours = rng.choice(24, len(lengths), p=HOUR_ACTIVITY / HOUR_ACTIVITY.sum())
    begin = hours * 3600 + rng.integers(0, 3600, len(lengths))
    read = np.cumsum(rng.integers(3, 121, lengths.sum()))
    last = np.cumsum(lengths) - 1
    first = last - lengths + 1
    latest = DAY_SECONDS - 1 - (read[last] - read[first])  # a session ends on the day on which it begins
    return np.repeat(np.minimum(begin, latest) - read[first], lengths) + read
