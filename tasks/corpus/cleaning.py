"""The rules of cleaning that follow a user's events in order, and what is held out of the tokens: arrays in, arrays out.

SQL has sorted the events by user and time, so each rule is a pass over whole columns of one micro-partition.
Legend: E events, N users, I items; a user's events are contiguous and in order of time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.store.tokens import gather_spans

UNDATED = np.iinfo(np.int32).min


@dataclass(frozen=True)
class UserEvents:
    """Events of one micro-partition: user int32[E], ascending; day int32[E] since 1970 or UNDATED; item int32[E]."""

    user: NDArray[np.int32]
    day: NDArray[np.int32]
    item: NDArray[np.int32]

    def select(self, keep: NDArray[np.bool_]) -> "UserEvents":
        """The events where `keep` bool[E] is true."""
        return UserEvents(self.user[keep], self.day[keep], self.item[keep])


@dataclass(frozen=True)
class Tokens:
    """Tokens of one micro-partition: tokens int32[E]; user i's are tokens[offsets[i]:offsets[i+1]], offsets int64[N+1]."""

    offsets: NDArray[np.int64]
    tokens: NDArray[np.int32]

    def take(self, rows: NDArray[np.int64]) -> "Tokens":
        """Those of some users, in their order; row -1 has none."""
        lengths = np.diff(self.offsets, append=self.offsets[-1])[rows]
        return Tokens(*gather_spans(self.tokens, self.offsets[rows], lengths))


def find_bots(events: UserEvents, num_users: int, max_day_events: int) -> NDArray[np.bool_]:
    """Users with more than `max_day_events` events on one UTC day, bool[N]; undated events have no day to count on."""
    is_bot = np.zeros(num_users, dtype=bool)
    if np.bincount(events.user, minlength=1).max() <= max_day_events:
        return is_bot  # nobody has so many events at all: nearly always
    is_dated = events.day != UNDATED
    if not is_dated.all():
        events = events.select(is_dated)
    starts = np.flatnonzero(_starts_run(events.user, events.day))
    num_events = np.diff(starts, append=len(events.user))
    is_bot[events.user[starts[num_events > max_day_events]]] = True
    return is_bot


def find_last_days(events: UserEvents, num_users: int) -> NDArray[np.int32]:
    """The day of each user's newest event, int32[N]; UNDATED where there is none with a day."""
    last_days = np.full(num_users, UNDATED, dtype=np.int32)
    starts = np.flatnonzero(_starts_run(events.user))
    if len(events.user):
        last_days[events.user[starts]] = np.maximum.reduceat(events.day, starts)
    return last_days


def find_repeats(events: UserEvents) -> NDArray[np.bool_]:
    """Events of the same user and item as the event before, bool[E]."""
    return ~_starts_run(events.user, events.item)


def find_first_visits(user: NDArray, item: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Events whose item is new to their user, bool[E]; `user` [E] is ascending, `item` int32[E] not negative.

    A stable sort by item leaves each item's users in order and each user's events in order of time. Two passes by
    16-bit digits, which numpy sorts by counting: four times as fast as sorting (user, item) pairs.
    """
    order = np.argsort(item.astype(np.uint16), kind="stable")
    order = order[np.argsort((item >> 16).astype(np.uint16)[order], kind="stable")]
    is_first = np.empty(len(item), dtype=bool)
    is_first[order] = _starts_run(item[order], user[order])
    return is_first


def count_item_users(events: UserEvents, num_items: int) -> NDArray[np.int64]:
    """Distinct users of each item, int64[I]."""
    return np.bincount(events.item[find_first_visits(events.user, events.item)], minlength=num_items)


def keep_in_vocabulary(lengths: NDArray[np.int64], item_ix: NDArray[np.int32]) -> Tokens:
    """The histories without events of items outside the vocabulary (item_ix -1).

    lengths int64[N] events of each user, item_ix int32[E].
    """
    is_known = item_ix >= 0
    known_before = np.concatenate(([0], np.cumsum(is_known, dtype=np.int64)))
    return Tokens(known_before[_to_offsets(lengths)], item_ix[is_known])


def keep_newest(histories: Tokens, is_kept: NDArray[np.bool_], max_user_events: int) -> Tokens:
    """The newest `max_user_events` tokens of each of the users in is_kept bool[N]."""
    ends = histories.offsets[1:]
    lengths = np.diff(histories.offsets)
    kept_lengths = np.where(is_kept, np.minimum(lengths, max_user_events), 0)
    first_kept = np.repeat(ends - kept_lengths, lengths)
    tokens = histories.tokens[np.arange(len(histories.tokens)) >= first_kept]
    return Tokens(_to_offsets(kept_lengths[is_kept]), tokens)


def find_held_out(histories: Tokens) -> NDArray[np.int32]:
    """Place in each user's tokens of the newest whose item is new to the user, at place 1 or later, else -1; int32[N].

    Every user must have a token.
    """
    offsets, tokens = histories.offsets, histories.tokens
    if not len(tokens):
        return np.full(len(offsets) - 1, -1, dtype=np.int32)
    starts = offsets[:-1]
    is_first = find_first_visits(np.repeat(np.arange(len(starts)), np.diff(offsets)), tokens)
    newest = np.where(is_first, np.arange(len(tokens)), -1)
    places = np.maximum.reduceat(newest, starts) - starts
    return np.where(places >= 1, places, -1).astype(np.int32)


def find_key_max(smallest_keys: NDArray[np.uint64], max_users: int) -> tuple[int, int]:
    """The largest key of the held-out users and how many they are: never more than `max_users`.

    smallest_keys uint64, ascending: all keys, or the max_users + 1 smallest, which show whether the last is shared.
    """
    if len(smallest_keys) <= max_users:
        return (2**64 - 1 if max_users else -1), len(smallest_keys)
    num_held_out = int(np.searchsorted(smallest_keys, smallest_keys[max_users]))
    return (int(smallest_keys[num_held_out - 1]) if num_held_out else -1), num_held_out


def _starts_run(*columns: NDArray) -> NDArray[np.bool_]:
    """Rows that differ from the row before in any of the columns, bool[E]; the first row does."""
    starts = np.ones(len(columns[0]), dtype=bool)
    starts[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        starts[1:] |= column[1:] != column[:-1]
    return starts


def _to_offsets(lengths: NDArray) -> NDArray[np.int64]:
    """Where each user begins, and the end: int64[N+1]."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
