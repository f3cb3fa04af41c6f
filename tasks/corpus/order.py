"""Tests whether the order of events says anything: whether the page before an event predicts it better than an earlier page does.

If the events of a user could as well stand in any other order, the page just before an event and any earlier one are alike. So
pairs (page, page after it) of each half of the users are learned. In the other half, an event's pair with the page just before it
should then be known as often as its pair with a page drawn from those before.
"""

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.store.tokens import Corpus, Histories

MAX_USERS = 20_000
LIMIT = 3.5
"""An order means something above so many standard errors of a sum whose mean is zero."""


def has_order(corpus: Corpus) -> bool:
    """Return whether the order of a corpus's tokens means something, by at most about MAX_USERS users."""
    parts: list[Histories] = []
    for partition in range(corpus.num_partitions):
        if sum(part.num_users for part in parts) < MAX_USERS:
            parts.append(corpus.read(partition))
    differences = np.concatenate(measure_order(parts, corpus.num_items))
    return float(differences.sum()) > LIMIT * float((differences**2).sum()) ** 0.5


def measure_order(parts: list[Histories], num_items: int) -> list[NDArray[np.float64]]:
    """Return for the users of each part by how much more often the page just before an event has a pair with it that the other
    half of the users know than an earlier page has, float64[n].
    """
    rng = np.random.default_rng(0)
    pairs = [_pairs(part, rng, num_items) for part in parts]
    learned = [np.unique(np.concatenate([near[user % 2 == half] for user, near, _ in pairs])) for half in (0, 1)]
    found = []
    for (user, *both), part in zip(pairs, parts, strict=True):
        by_even, by_odd = ([np.isin(keys, known, kind="sort") for keys in both] for known in learned)
        near, far = np.where(user % 2 == 1, by_even, by_odd)
        sums = np.bincount(user, near.astype(float) - far, part.num_users)
        counts = np.bincount(user, minlength=part.num_users)
        found.append(sums[counts > 0] / counts[counts > 0])
    return found


def _pairs(
    part: Histories, rng: np.random.Generator, num_items: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return of each event but a user's first two: the user, the pair with the page before it, and that with one drawn from
    the pages before that. A pair is first page * num_items + page; pairs of a page with itself are left out, since repeats are.
    """
    lengths = np.diff(part.offsets)
    user = np.repeat(np.arange(part.num_users), lengths)
    place = np.arange(len(part.tokens)) - part.offsets[user]
    events = np.flatnonzero(place >= 2)
    drawn = events - 2 - (rng.random(len(events)) * (place[events] - 1)).astype(np.int64)
    tokens = part.tokens.astype(np.int64)
    page, before, earlier = tokens[events], tokens[events - 1], tokens[drawn]
    is_pair = (page != before) & (page != earlier)
    near, far = before * num_items + page, earlier * num_items + page
    return user[events][is_pair], near[is_pair], far[is_pair]
