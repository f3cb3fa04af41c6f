"""The cleaning rules and the choice of held-out tokens, as pure functions of tables and arrays.

Events are a table (user int32, day int32, us int64, item int32), sorted by user and time; day counts from 1970, or is UNDATED:
then us is a position. Legend: E events, N users, I items.
"""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from surf2vec.trainer.store.tokens import Tokens, to_offsets

UNDATED = int(np.iinfo(np.int32).min)
MAX_CHOOSING, CHOOSING_SHARE, MAX_CHOOSING_SCORES = 5000, 10, 10**9
"""Settings are chosen by at most this many held-out users, by one of so many, and with at most so many scores of items."""


def drop_bots(events: pl.DataFrame, max_day_events: int) -> pl.DataFrame:
    """Return the events without users who have more than `max_day_events` on one UTC day; undated events do not count."""
    busy = events.filter(pl.len().over("user") > max_day_events, pl.col("day") != UNDATED)  # nearly always empty
    bots = busy.group_by("user", "day").len().filter(pl.col("len") > max_day_events)
    return events.filter(~pl.col("user").is_in(bots["user"].implode()))


def drop_repeats(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events without those that repeat the user and item of the event before."""
    is_same = [pl.col(name) == pl.col(name).shift() for name in ("user", "item")]
    return events.filter(~pl.all_horizontal(is_same).fill_null(False))


def find_first_visits(user: NDArray[Any], item: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which events are the first of their user and item, bool[E]; `user` [E] ascending, `item` int32[E] not negative.

    A stable sort by item leaves each item's users in order and each user's events in order of time. Two passes by
    16-bit digits, which numpy sorts by counting: four times as fast as sorting (user, item) pairs.
    """
    order = np.argsort(item.astype(np.uint16), kind="stable")
    order = order[np.argsort((item >> 16).astype(np.uint16)[order], kind="stable")]
    is_first = np.empty(len(item), dtype=bool)
    is_first[order] = (np.diff(item[order], prepend=-1) != 0) | (np.diff(user[order], prepend=-1) != 0)
    return is_first


def keep_in_vocabulary(lengths: NDArray[np.int64], item_ix: NDArray[np.int32]) -> Tokens:
    """Return histories without items outside the vocabulary. lengths int64[N]: events of each user; item_ix int32[E]: or -1."""
    is_known = item_ix >= 0
    return Tokens(to_offsets(is_known)[to_offsets(lengths)], item_ix[is_known])


def keep_newest(histories: Tokens, is_kept: NDArray[np.bool_], max_user_events: int) -> Tokens:
    """Return the newest `max_user_events` tokens of each user in is_kept, bool[N]; other users get none."""
    lengths = np.diff(histories.offsets)
    kept_lengths = np.where(is_kept, np.minimum(lengths, max_user_events), 0)
    first_kept = np.repeat(histories.offsets[1:] - kept_lengths, lengths)
    return Tokens(to_offsets(kept_lengths), histories.tokens[np.arange(len(histories.tokens)) >= first_kept])


def find_held_out(histories: Tokens) -> NDArray[np.int32]:
    """Return where in each user's tokens, at least one, the newest first visit to an item is, int32[N]; -1 if only at place 0."""
    offsets, tokens = histories.offsets, histories.tokens
    if not len(tokens):
        return np.full(len(offsets) - 1, -1, dtype=np.int32)
    starts = offsets[:-1]
    is_first = find_first_visits(np.repeat(np.arange(len(starts)), np.diff(offsets)), tokens)
    newest = np.where(is_first, np.arange(len(tokens)), -1)
    places = np.maximum.reduceat(newest, starts) - starts
    return np.where(places >= 1, places, -1).astype(np.int32)


def find_key_max(smallest_keys: NDArray[np.uint64], max_users: int) -> tuple[int, int]:
    """Return the largest key of the held-out users and their number, at most `max_users`.

    smallest_keys uint64, ascending: all keys, or at least the max_users + 1 smallest, which show whether the last is shared.
    """
    if len(smallest_keys) <= max_users:
        return (2**64 - 1 if max_users else -1), len(smallest_keys)
    num_held_out = int(np.searchsorted(smallest_keys, smallest_keys[max_users]))
    return (int(smallest_keys[num_held_out - 1]) if num_held_out else -1), num_held_out
