"""The trail's kernel does what the reference does, whoever trains beside whom, and learns the order of pages."""

import dataclasses
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from surf2vec.trainer.config import TRAIL_BIAS, TrainConfig
from surf2vec.trainer.draws import epoch_key
from surf2vec.trainer.kernels.cpu import trail_vectors, train_trail
from surf2vec.trainer.kernels.first_rows import begin_trail
from surf2vec.trainer.kernels.signature import STREAM_USERS, TRAIL_TILE_USERS, Pass
from surf2vec.trainer.model.objectives import make_sampling, make_trail_tables
from surf2vec.trainer.model.rows import TrailItems
from tests.trainer.kernels import reference_trail
from tests.trainer.kernels.work import make_work


def make_config(**settings: float) -> TrainConfig:
    plain = {"vector_size": 19, "epochs": 1, "trail_negative": 5, "threads": 1, "trail_window": 3}
    return TrainConfig(parts="trail", **plain | settings)  # type: ignore[arg-type]


def make_tables(work: Pass, num_items: int = 30) -> tuple[TrailItems, "reference_trail.TrailTables", Pass]:
    counts = np.bincount(work.tokens, minlength=num_items)
    tables = make_trail_tables(counts, work.config)
    sampling = dataclasses.replace(work.sampling, thresholds=tables.thresholds, aliases=tables.aliases)
    trail = begin_trail(work.config, num_items)
    rng = np.random.default_rng(1)
    for rows, num_free in (
        (trail.outputs, 0),
        (trail.inputs, 2),
    ):  # vectors that are not small, so that everything moves
        rows.vectors[:, : rows.vectors.shape[1] - num_free] = rng.normal(
            0, 0.3, (num_items, rows.vectors.shape[1] - num_free)
        )
    return trail, tables, dataclasses.replace(work, sampling=sampling)


def arrays(trail: TrailItems) -> list[np.ndarray]:
    return [array for rows in (trail.outputs, trail.inputs, trail.lags) for array in (rows.vectors, rows.squares)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"vector_size": 64, "trail_negative": 16}, {"trail_window": 1}, {"trail_l2": 0.0}, {"trail_window": 11}],
)
@pytest.mark.parametrize("backward", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_users", [1, TRAIL_TILE_USERS - 1, 3 * TRAIL_TILE_USERS, STREAM_USERS + 40])
def test_it_does_what_the_reference_does(settings: dict[str, float], backward: float, num_users: int) -> None:
    trail, tables, work = make_tables(make_work(make_config(**settings), num_users))
    expected = deepcopy(trail)
    wanted = reference_trail.train_trail(expected, work, tables, backward)
    assert train_trail(trail, work, tables, backward) == wanted
    for found, other in zip(arrays(trail), arrays(expected), strict=True):
        np.testing.assert_allclose(found, other, atol=2e-5, rtol=1e-4)


def test_users_without_two_pages_train_nothing() -> None:
    trail, tables, work = make_tables(make_work(make_config(), 40))
    before, short = deepcopy(trail), dataclasses.replace(work, ends=np.minimum(work.starts + 1, work.ends))
    assert train_trail(trail, short, tables, 0.5) == 0
    # The context of every target is the target itself.
    same = dataclasses.replace(work, tokens=np.full_like(work.tokens, 7))
    train_trail(trail, same, tables, 0.5)
    for found, other in zip(arrays(trail), arrays(before), strict=True):
        np.testing.assert_array_equal(found, other)


def test_the_trail_of_a_history_is_the_weighted_sum_of_its_last_pages() -> None:
    trail, _, work = make_tables(make_work(make_config(), 40))
    found = trail_vectors(trail, work.tokens, work.starts, work.ends, 3)
    skipped = np.full(len(work.starts), 2, np.int32)
    without = trail_vectors(trail, work.tokens, work.starts, work.ends, 3, skipped)
    for user, (start, end) in enumerate(zip(work.starts, work.ends, strict=True)):
        for vectors, pages in (
            (found, [(lag, page) for lag, page in enumerate(work.tokens[start:end][::-1][:3])]),
            (without, [(lag, page) for lag, page in enumerate(work.tokens[start:end][::-1][:3]) if page != 2]),
        ):
            weights = np.array([trail.lags.vectors[lag, 0] for lag, _ in pages], np.float32)
            wanted = weights @ trail.inputs.vectors[[page for _, page in pages]] if pages else np.zeros(19, np.float32)
            wanted = wanted / max((weights**2).sum(), 1e-12) ** 0.25
            wanted[-1] = TRAIL_BIAS
            np.testing.assert_allclose(vectors[user], wanted, atol=1e-6)


def make_cycles(num_users: int, num_items: int, step: int) -> Pass:
    """Histories of 6 pages; after page i comes page i + step."""
    starts = np.arange(num_users, dtype=np.int64) * 6
    first = np.random.default_rng(0).integers(0, num_items, num_users)
    tokens = ((first[:, None] + step * np.arange(6)) % num_items).astype(np.int32).ravel()
    config = TrainConfig(parts="trail", vector_size=16, threads=1, trail_negative=16, trail_window=4, epochs=12)
    counts = np.bincount(tokens, minlength=num_items)
    return Pass(
        config=config, tokens=tokens, starts=starts, ends=starts + 6, hashes=first.astype(np.uint64) * 7 + 1 + starts.view("u8"),
        order=np.arange(num_users), alphas=np.full(num_users, config.alpha, np.float32),
        sampling=make_sampling(counts, config), tree=None, recency=0.0, epoch_key=0,
    )  # fmt: skip


def learn_cycles(
    train: Callable[..., int], num_users: int, num_items: int, backward: float
) -> tuple[float, np.ndarray]:
    """The share of histories whose next page has the highest score after a training, and the weights of the pages before."""
    work = make_cycles(num_users, num_items, 3)
    trail = begin_trail(work.config, num_items)
    tables = make_trail_tables(np.bincount(work.tokens, minlength=num_items), work.config)
    for epoch in range(work.config.epochs):
        share = backward * (1 - epoch / work.config.epochs)
        train(trail, dataclasses.replace(work, epoch_key=epoch_key(1, epoch)), tables, share)
    found = trail_vectors(trail, work.tokens, work.starts, work.ends, 4) @ trail.outputs.vectors.T
    # Pages seen are no targets, and learn no score.
    np.put_along_axis(found, work.tokens.reshape(-1, 6), -np.inf, axis=1)
    ahead = (work.tokens[work.ends - 1] + 3) % num_items
    return float((found.argmax(axis=1) == ahead).mean()), trail.lags.vectors[:4, 0]


@pytest.mark.parametrize("backward", [0.0, 0.5])
def test_it_learns_which_page_comes_next(backward: float) -> None:
    """Popularity knows nothing here, and a bag of pages cannot tell the page ahead from the page behind."""
    share, lags = learn_cycles(train_trail, 2000, 40, backward)
    assert share > 0.99
    assert lags[0] > lags[1:].max(), "the page just before tells the most"
