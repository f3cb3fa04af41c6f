"""Attacks on the privacy of a release, from its files alone: who was in the log, what somebody saw, who is who in another one.

They are simple on purpose: nearest neighbours, a loss, a beam search, a rotation. What they find is a lower bound of what can be
found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import rankdata

from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.release_reader import unit_rows
from surf2vec.tasks.release.trail_sums import TrailSums, scale_of
from surf2vec.tasks.release.url_rules import KnownItems, UrlRules
from tests.roots.releases import read_items, read_users

Floats = NDArray[np.float32]
BOOTSTRAPS = 300
BEAM = 30


@dataclass(frozen=True)
class Release:
    """What anybody reads in a release. users float32[n, D]; items float32[V, D]; counts int64[V]: of items.

    interest, trail, activity: the columns of each part. noise: of the trails, as a share of their length.
    """

    names: list[str]
    users: Floats
    urls: list[str]
    items: Floats
    counts: NDArray[np.int64]
    parts: dict[str, slice]
    sums: TrailSums | None
    noise: float = 0.0

    @classmethod
    def open(cls, folder: Path) -> "Release":
        users, (urls, items), manifest = read_users(folder), read_items(folder), open_folder(folder).manifest
        counts = pq.read_table(folder / "item_vectors" / "part-00000.parquet", columns=["count"])["count"].to_numpy()
        parts = {name: slice(*columns) for name, columns in manifest["parts"].items()}
        sums = open_folder(folder).trail_sums if "trail" in parts else None
        noise = manifest.get("storage", {}).get("noise", 0.0)
        return cls(list(users), np.stack(list(users.values())), urls, items, counts, parts, sums, noise)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {url: row for row, url in enumerate(self.urls)}

    @property
    def interest(self) -> slice:
        return self.parts["interest"]

    @property
    def trail(self) -> slice:
        return self.trail_sums.columns

    @property
    def trail_sums(self) -> TrailSums:
        if self.sums is None:
            raise SystemExit("so few events have no order, and the release no trail to attack: draw more --users")
        return self.sums

    def sum_trails(self, pages: Sequence[Sequence[str]]) -> Floats:
        """The trails of lists of pages, float32[n, D2]."""
        return self.trail_sums.sum_pages(self.trail_sums.choose_last(*KnownItems(self.numbers, UrlRules()).find(pages)))

    def find_items(self, pages: Sequence[str]) -> list[int]:
        """The rows of the pages that the release knows, without repeats in a row."""
        known = [self.numbers[page] for page in pages if page in self.numbers]
        return [row for place, row in enumerate(known) if place == 0 or known[place - 1] != row]


def estimate_interests(release: Release, pages: Sequence[Sequence[str]]) -> Floats:
    """The mean of the item vectors of the pages, in the columns of the interest without its bias, float32[n, D1 - 1]."""
    items = unit_rows(release.items[:, release.interest][:, :-1])
    return np.stack([items[release.find_items(one)].mean(axis=0) for one in pages])


def score_by_nearest_trail(release: Release, pages: Sequence[Sequence[str]]) -> Floats:
    """Membership: how near the trail of these pages is to that of some user of the release, float32[n]."""
    there, here = release.users[:, release.trail], release.sum_trails(pages)
    distances = [np.min(np.linalg.norm(there - one, axis=1)) for one in here]
    return -np.array(distances, np.float32)


def score_by_nearest_interest(release: Release, pages: Sequence[Sequence[str]]) -> Floats:
    """Membership: the greatest cosine of the estimated interest with that of a user of the release, float32[n]."""
    there = unit_rows(release.users[:, release.interest][:, :-1])
    return np.max(unit_rows(estimate_interests(release, pages)) @ there.T, axis=1)


def score_by_loss(release: Release, pages: Sequence[Sequence[str]]) -> Floats:
    """Membership: the mean log probability of each next page by the pages before it, float32[n]."""
    items = release.items[:, release.trail]
    scores = []
    for one in pages:
        rows = release.find_items(one)
        histories = [[release.urls[row] for row in rows[:end]] for end in range(1, len(rows))]
        logits = release.sum_trails(histories) @ items.T
        scores.append(float(np.mean(logits[np.arange(len(histories)), rows[1:]] - logsumexp(logits, axis=1))))
    return np.array(scores, np.float32)


def auc(members: Floats, others: Floats, seed: int = 1) -> tuple[float, float, float]:
    """The area under the curve, and its 95 % interval by bootstrap over the candidates."""
    rng = np.random.default_rng(seed)
    drawn = [_auc(rng.choice(members, len(members)), rng.choice(others, len(others))) for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return _auc(members, others), float(low), float(high)


def _auc(members: Floats, others: Floats) -> float:
    """By the sum of ranks (Mann and Whitney), where equal scores share their mean rank: sklearn takes 20 times as long."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    return float((ranks.mean() - (len(members) + 1) / 2) / len(others))


def rebuild_pages(release: Release, trail: Floats) -> list[int]:
    """The last pages of a user, nearest first, by the trail float32[D2]: a beam search for each length.

    Those whose sum is nearest; if there is noise, of its known length, those that are most likely as pages are frequent.
    """
    sums = release.trail_sums
    inputs, best, least = sums.inputs[:-1], list[int](), np.inf
    variance = np.mean((trail / sums.weight) ** 2) * release.noise**2 / (1 + release.noise**2)
    surprises = -2 * variance * np.log(release.counts / release.counts.sum())
    squares = np.einsum("vd,vd->v", inputs, inputs)
    for length in range(1, len(sums.lags) + 1):
        scale = scale_of(np.array([np.sum(sums.lags[:length] ** 2)], np.float32))[0]
        target = (trail / sums.weight - sums.bias) / scale
        beams: list[tuple[list[int], Floats]] = [([], target)]
        for lag in sums.lags[:length]:
            beams = extend_beams(beams, inputs, squares, lag, surprises / scale**2)
        pages, rest = beams[0]
        error = float(np.sqrt(rest @ rest * scale**2 + surprises[pages].sum()))
        if error < least - 1e-4:
            best, least = pages, error
    return best


def extend_beams(
    beams: list[tuple[list[int], Floats]], inputs: Floats, squares: Floats, lag: np.float32, surprises: Floats
) -> list[tuple[list[int], Floats]]:
    """The BEAM best continuations by one page each: the smallest rest and surprise, a page never the one before it."""
    found = []
    for pages, rest in beams:
        before = rest @ rest + surprises[pages].sum()
        errors = before - 2 * lag * (inputs @ rest) + lag * lag * squares + surprises
        if pages:
            errors[pages[-1]] = np.inf
        for row in np.argpartition(errors, min(BEAM, len(errors) - 1))[:BEAM]:
            found.append((float(errors[row]), [*pages, int(row)], rest - lag * inputs[row]))
    found.sort(key=lambda one: one[0])
    return [(pages, rest) for _, pages, rest in found[:BEAM]]


def rotation(from_rows: Floats, to_rows: Floats) -> Floats:
    """The rotation float32[D, D] that brings rows nearest to others of the same things (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(from_rows.T @ to_rows)
    return (left @ right).astype(np.float32)


def link_users(one: Release, other: Release) -> NDArray[np.intp]:
    """For each user of one release the row of the nearest in the other: spaces are aligned by the pages that both have."""
    urls = {url: row for row, url in enumerate(other.urls)}
    mine = [row for row, url in enumerate(one.urls) if url in urls]
    theirs = [urls[one.urls[row]] for row in mine]
    similarity = np.zeros((len(one.users), len(other.users)), np.float32)
    for a, b, rows, targets in (
        (
            one.users[:, one.interest],
            other.users[:, other.interest],
            one.items[:, one.interest],
            other.items[:, other.interest],
        ),
        (
            one.users[:, one.trail],
            other.users[:, other.trail],
            one.trail_sums.inputs[:-1],
            other.trail_sums.inputs[:-1],
        ),
    ):
        turn = rotation(rows[mine], targets[theirs])
        similarity += unit_rows(center(a @ turn)) @ unit_rows(center(b)).T
    return np.argmax(similarity, axis=1)


def center(rows: Floats) -> Floats:
    return rows - rows.mean(axis=0)
