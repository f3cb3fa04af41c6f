"""Who visits what and when, in sample logs: people with interests, their sessions, and a few crawlers.

A user is a number. Its id and interests are pure functions of (seed, number), so that they can be told afterwards
without a file; sessions are drawn from one random stream a (part, day). A part is a range of users whose events of
one day fit in memory: that, and not the number of users, is what memory grows with.

Within a part, users are numbered in the order in which they first come: those who are known on a day are therefore
a prefix, and the visitors of a day are drawn from its cumulated activity in O(sessions), not O(users).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, timedelta

import numpy as np

from tasks.sample.world import TOPICS, World

FIRST_DAY = date(2026, 1, 1)
MEAN_USER_EVENTS = 25  # over all days, whatever their number
MEAN_SESSION_EVENTS = 4
LONGEST_SESSION = 40
KNOWN_FROM_START = 0.7  # share of users; the others first come on some later day
NOISE_SESSIONS = 0.1  # sessions on any popular topic, not on an interest
BROKEN_RATIO = 0.002  # broken lines a good one
DAY_SECONDS = 86_400
WEEKDAY_ACTIVITY = (1.0, 1.0, 1.0, 0.95, 0.9, 1.15, 1.25)  # Monday first
HOUR_ACTIVITY = (4, 2, 1, 1, 1, 2, 4, 7, 9, 9, 9, 10, 12, 11, 9, 9, 10, 12, 14, 17, 18, 16, 12, 7)  # UTC
TOPIC_SHARES = np.arange(1, len(TOPICS) + 1) ** -0.5 / (np.arange(1, len(TOPICS) + 1) ** -0.5).sum()
NUM_INTERESTS_UP_TO = (0.35, 0.75)  # share of users with one interest, with at most two; the others have three
# By number of interests: a draw in [0, 1) above the first is on the second interest, above the second on the third.
INTEREST_UP_TO = np.array([[1.0, 1.0], [0.7, 1.0], [0.6, 0.85]], np.float32)


def mix(values: np.ndarray) -> np.ndarray:
    """uint64 to uint64, one to one and without a pattern that shows (the finalizer of splitmix64)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keys_of(user_numbers: np.ndarray, seed: int) -> np.ndarray:
    """The 64 bits (uint64) that are a user's id, by number; different for different numbers."""
    return mix(np.asarray(user_numbers).astype(np.uint64) ^ mix(np.array([seed], np.uint64)))


def _interests_of_keys(keys: np.ndarray, seed: int) -> np.ndarray:
    """int8 (n, 3): topics by number, the main interest first; -1 where there are fewer."""
    bits = mix(keys ^ mix(np.array([seed ^ 0x1A7E4E57], np.uint64)))
    draws = [(bits >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4)]
    interests = np.empty((len(keys), 3), np.int64)
    interests[:, 0] = np.searchsorted(np.cumsum(TOPIC_SHARES)[:-1], draws[0] / 65_536, side="right")
    # The others are steps of 1 .. T-1 from the main one, the third's another than the second's.
    second = (draws[1] % np.uint64(len(TOPICS) - 1)).astype(np.int64)
    third = (draws[2] % np.uint64(len(TOPICS) - 2)).astype(np.int64)
    third += third >= second
    interests[:, 1] = (interests[:, 0] + 1 + second) % len(TOPICS)
    interests[:, 2] = (interests[:, 0] + 1 + third) % len(TOPICS)
    for i, up_to in enumerate(NUM_INTERESTS_UP_TO):
        interests[draws[3] / 65_536 < up_to, i + 1 :] = -1
    return interests.astype(np.int8)


def interests_of(user_numbers: np.ndarray, seed: int) -> np.ndarray:
    """The interests of users by number: int8 (n, 3) of topics (TOPICS[i]), the main one first, -1 for none."""
    return _interests_of_keys(keys_of(user_numbers, seed), seed)


def interests_of_user_ids(user_ids: Sequence[str], seed: int) -> np.ndarray:
    """The interests of users by the ids in a sample log made with this seed; as `interests_of`."""
    return _interests_of_keys(np.array([int(user_id, 16) for user_id in user_ids], np.uint64), seed)


def num_bots_for(users: int) -> int:
    """How many crawlers browse among so many users. They have the numbers after the last user's."""
    return min(users // 1000, 2 + users // 50_000)


@dataclass(frozen=True)
class Part:
    """Consecutive users whose events are made, and delivered, together.

    keys        uint64[n]   ids, in the order in which users first come
    interests   int8[n, 3]
    activity    float64[n]  cumulated: activity[i] - activity[i-1] is user i's expected number of extra sessions a day
    bot_keys    uint64[b]
    """

    number: int
    days: int
    seed: int
    keys: np.ndarray
    interests: np.ndarray
    activity: np.ndarray
    bot_keys: np.ndarray

    @property
    def num_known_from_start(self) -> int:
        return len(self.keys) if self.days == 1 else max(1, round(KNOWN_FROM_START * len(self.keys)))

    def num_known(self, day: int) -> int:
        """How many users have come up to and including this day (0, 1, ...)."""
        start = self.num_known_from_start
        return start + (len(self.keys) - start) * day // max(1, self.days - 1)


def make_part(number: int, num_parts: int, users: int, days: int, seed: int) -> Part:
    """Part `number` of all: users from `number * users // num_parts`, and every num_parts-th crawler."""
    user_numbers = np.arange(number * users // num_parts, (number + 1) * users // num_parts, dtype=np.int64)
    keys = keys_of(user_numbers, seed)
    bot_keys = keys_of(users + np.arange(number, num_bots_for(users), num_parts, dtype=np.int64), seed)
    # Every user has one sure session. The others are log-normal: half of the users have few, some very many.
    mean_sessions = MEAN_USER_EVENTS / MEAN_SESSION_EVENTS - 1
    normal = np.random.default_rng([seed, 1, number]).standard_normal(len(keys))
    sessions = mean_sessions * np.minimum(np.exp(1.2 * normal - 0.72), 12)
    mean_presence = 1 if days == 1 else KNOWN_FROM_START + (1 - KNOWN_FROM_START) / 2
    activity = np.cumsum(sessions / (days * mean_presence))
    return Part(number, days, seed, keys, _interests_of_keys(keys, seed), activity, bot_keys)


@dataclass(frozen=True)
class Visits:
    """Events of one part and day, in the order of time.

    key     uint64  the user's, or the crawler's
    item    int32   page
    section int32   its section
    second  int32   of the day, UTC
    spelling, tail  uint16  uniform draws: how host and end of the URL are written
    is_bot  bool
    broken  int8    0 for an event; 1 to 4 for a broken line made of one, which comes in addition
    """

    key: np.ndarray
    item: np.ndarray
    section: np.ndarray
    second: np.ndarray
    spelling: np.ndarray
    tail: np.ndarray
    is_bot: np.ndarray
    broken: np.ndarray

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: np.ndarray | slice) -> "Visits":
        return Visits(*(getattr(self, field.name)[rows] for field in fields(self)))


def draw_visits(part: Part, world: World, day: int) -> Visits:
    """All that the users and crawlers of a part do on a day (0, 1, ...), a pure function of its arguments."""
    rng = np.random.default_rng([part.seed, 2, part.number, day])
    users, topics, lengths = _draw_sessions(part, day, rng)
    session_sections = _draw_session_sections(part.keys[users], topics, world, rng)
    session_of = np.repeat(np.arange(len(users), dtype=np.int32), lengths)
    sections = _draw_sections(session_sections[session_of], world, rng)
    items = _draw_pages(sections, world, day, part.days, rng)
    bot_keys, bot_items, bot_seconds = _draw_crawls(part, world, day, rng)
    bot_sections = np.searchsorted(world.section_start, bot_items, side="right") - 1
    num_visits = len(items) + len(bot_items)
    visits = Visits(
        key=np.concatenate([part.keys[users][session_of], bot_keys]),
        item=np.concatenate([items, bot_items]),
        section=np.concatenate([sections, bot_sections]).astype(np.int32),
        second=np.concatenate([_draw_seconds(lengths, session_of, rng), bot_seconds]),
        spelling=rng.integers(0, 65_536, num_visits, np.uint16),
        tail=rng.integers(0, 65_536, num_visits, np.uint16),
        is_bot=np.arange(num_visits) >= len(items),
        broken=np.zeros(num_visits, np.int8),
    )
    return _in_order_with_broken(visits, rng)


def _draw_sessions(part: Part, day: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users (rows of the part), topics and numbers of events of the day's sessions."""
    known = part.num_known(day)
    # The sure session: on their first day for those who come later, for the others spread over all days.
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
    """Topics by popularity."""
    return np.searchsorted(np.cumsum(TOPIC_SHARES)[:-1], rng.random(num), side="right")


def _draw_rank(uniform: np.ndarray, num: np.ndarray | int) -> np.ndarray:
    """Ranks 0..num-1, rank r with probability log((r+2)/(r+1)) / log(num+1): Zipf's law, without a table."""
    return np.minimum(np.exp(uniform * np.log(np.add(num, 1.0))).astype(np.int64) - 1, np.subtract(num, 1))


def _draw_session_sections(keys: np.ndarray, topics: np.ndarray, world: World, rng: np.random.Generator) -> np.ndarray:
    """The section that a session is about: mostly the user's favourite of the topic, else any, by popularity."""
    favourite = mix(keys ^ topics.astype(np.uint64)) / 2.0**64
    uniform = np.where(rng.random(len(keys), np.float32) < 0.6, favourite, rng.random(len(keys)))
    return topics * world.sections_per_topic + _draw_rank(uniform, world.sections_per_topic)


def _draw_sections(sections: np.ndarray, world: World, rng: np.random.Generator) -> np.ndarray:
    """The section of each event: 3 in 4 stay in the session's, most others in its topic, a few go anywhere."""
    kind = rng.random(len(sections), np.float32)
    elsewhere = np.flatnonzero(kind > 0.75)
    is_anywhere = kind[elsewhere] > 0.92
    topics = sections[elsewhere] // world.sections_per_topic
    topics[is_anywhere] = _draw_topics(int(is_anywhere.sum()), rng)
    k = _draw_rank(rng.random(len(elsewhere)), world.sections_per_topic)
    sections[elsewhere] = topics * world.sections_per_topic + k
    return sections


def _draw_pages(sections: np.ndarray, world: World, day: int, days: int, rng: np.random.Generator) -> np.ndarray:
    """The page of each event: by popularity among those that exist by now; 1 in 20 is on the newest pages."""
    start = world.section_start[:-1]
    share = 1.0 if days == 1 else 0.7 + 0.3 * day / (days - 1)
    num_pages = np.maximum(1, np.ceil(np.diff(world.section_start) * share)).astype(np.int64)[sections]
    rank = _draw_rank(rng.random(len(sections)), num_pages)
    newest = np.flatnonzero(rng.random(len(sections), np.float32) < 1 / 20)
    rank[newest] = num_pages[newest] - 1 - rank[newest]
    return (start[sections] + rank).astype(np.int32)


def _draw_seconds(lengths: np.ndarray, session_of: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The second of the day of each event: sessions begin by the hour's activity, pages are read 3 to 120 s."""
    hours = np.searchsorted(np.cumsum(HOUR_ACTIVITY), rng.random(len(lengths)) * sum(HOUR_ACTIVITY), side="right")
    begin = hours * 3600 + rng.integers(0, 3600, len(lengths))
    read = np.cumsum(rng.integers(3, 121, len(session_of)))
    ends = np.cumsum(lengths)
    until_end = read[ends - 1]
    before = until_end - (read[ends - lengths])
    begin = np.minimum(begin, DAY_SECONDS - 1 - before)  # a session ends on the day on which it begins
    return (begin[session_of] + read - read[ends - lengths][session_of]).astype(np.int32)


def _draw_crawls(
    part: Part, world: World, day: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, pages and seconds of the crawlers, each of which comes every third day and takes pages one by one."""
    keys = part.bot_keys[(np.arange(len(part.bot_keys)) + day + part.number) % 3 == 0]
    lengths = rng.integers(2500, 5000, len(keys))
    pages = [rng.integers(world.num_items) + np.arange(n) for n in lengths]
    items = (np.concatenate(pages) % world.num_items if pages else np.empty(0)).astype(np.int32)
    return np.repeat(keys, lengths), items, rng.integers(0, DAY_SECONDS, len(items), np.int32)


def _in_order_with_broken(visits: Visits, rng: np.random.Generator) -> Visits:
    """Copies of a few events become broken lines; all are sorted by second, equal ones as they were."""
    copied = np.flatnonzero(rng.random(len(visits), np.float32) < BROKEN_RATIO)
    row = np.concatenate([np.arange(len(visits)), copied])
    broken = np.concatenate([visits.broken, rng.integers(1, 5, len(copied), np.int8)])
    # One sort of (second, position) packed in 64 bits is several times faster than a stable argsort.
    packed = np.sort(visits.second[row].astype(np.uint64) << np.uint64(32) | np.arange(len(row), dtype=np.uint64))
    order = (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return replace(visits.take(row[order]), broken=broken[order])
