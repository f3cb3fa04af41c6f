"""The kernel for CPUs, in numba: each thread trains streams of users, whose rows stay in the cache over all of their tokens.

No two threads write one user's row. Item rows are shared without locks (Hogwild, Recht et al., NIPS 2011): with several threads
an update may be lost, and the result differs in its last digits from run to run. One thread is deterministic and agrees with
the reference of the tests, up to the rounding of reordered sums. With gradient accumulation any number of threads gives the same
bits: items do not change while users are trained (README.md derives why alpha stays as it is). The trail's targets are trained in
the same streams of tiles.
"""

import functools
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TRAIL_BIAS, TrainConfig
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.kernels.compiled_draws import draw_each, score_each
from surf2vec.trainer.kernels.compiled_trail import sum_pages
from surf2vec.trainer.kernels.llvm import LINE_NUMBERS
from surf2vec.trainer.kernels.model import Lanes, Ledger, Noise, Paths, Rule, Table, Tile, Work
from surf2vec.trainer.kernels.signature import INFERENCE_LANES, TRAIL_RATE, TRAIL_TILE_USERS, Pass, backward_of
from surf2vec.trainer.kernels.streams import train_streams
from surf2vec.trainer.kernels.tiles import ROW_BLOCK, padded, scratch_rows
from surf2vec.trainer.model.objectives import Sampling, TrailTables
from surf2vec.trainer.model.rows import EPSILON, Items, Rows, TrailItems
from surf2vec.trainer.model.trees import Tree

_pool = functools.cache(lambda threads: ThreadPoolExecutor(threads - 1, "kernel"))
_kept = threading.local()


def max_threads() -> int:
    """Return the threads that this process may use. Workers that torchrun started on one machine share its cores."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def used_threads(config: TrainConfig) -> int:
    """Return the threads that a training with these settings uses."""
    return min(config.threads or max_threads(), max_threads())


def is_compiled() -> bool:
    """Return whether machine code for training is in the cache."""
    return any(Path(train_streams.stats.cache_path).glob("*.train_streams-*.nbc"))


def train_users(users: Rows, items: Items, work: Pass) -> int:
    """Train the users `work.order` once, in place, without the GIL. Returns how many tokens subsampling kept."""
    rows = (users, items.outputs, items.inputs)
    noise, rule, accumulate = _noise(work.sampling), rule_of(work), work.config.accumulate
    if not work.update_items:  # users of a tile start together, and should end together
        by_length = np.argsort((work.ends - work.starts)[work.order], kind="stable")
        work = replace(work, order=work.order[by_length], alphas=work.alphas[by_length])
        return train_tiles(rows, noise, rule._replace(is_frozen=True, num_lanes=INFERENCE_LANES), work)
    if accumulate == 1:
        return train_tiles(rows, noise, rule, work)
    num_kept = 0
    for start in range(0, len(work.order), accumulate):
        step = slice(start, start + accumulate)
        part = replace(work, order=work.order[step], alphas=work.alphas[step])
        ledger = make_ledger((work.ends - work.starts)[part.order], rule.num_negatives, users.vectors.shape[1])
        num_kept += train_tiles(rows, noise, rule._replace(is_frozen=True, is_accumulating=True), part, ledger)
        move_items(items.outputs, ledger, work.config, part.alphas[-1])
    return num_kept


def train_trail(trail: TrailItems, work: Pass, tables: TrailTables, backward: float) -> int:
    """Train the targets of the users `work.order`, in place. Returns the number of targets.

    backward: the share of targets that are predicted from the pages after them.
    """
    config, work = work.config, replace(work, alphas=np.float32(TRAIL_RATE) * work.alphas)
    rule = rule_of(work)._replace(
        is_softmax=True, is_dm=False, has_tree=False, has_trail=True, is_adagrad=True, window=config.trail_window,
        handicap=np.float32(math.log(config.negative_weight)), num_negatives=config.trail_negative,
        num_lanes=TRAIL_TILE_USERS, num_free=config.trail_size, l2_in_sums=np.float32(0),
        backward=4.0 * backward_of(backward),
    )  # fmt: skip
    noise = Noise(*read_only(tables.thresholds, tables.aliases, tables.corrections, tables.l2s, tables.shares))
    nobody = Rows(trail.outputs.vectors[:0], trail.outputs.squares[:0])
    return train_tiles((nobody, trail.outputs, trail.inputs, trail.lags), noise, rule, work)


def trail_vectors(
    trail: TrailItems,
    tokens: NDArray[np.int32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    window: int,
    skipped: NDArray[np.int32] | None = None,
) -> NDArray[np.float32]:
    """Return the trails of histories tokens[starts[i] : ends[i]], float32[n, D]. skipped int32[n]: pages to leave out."""
    vectors = np.empty((len(starts), trail.inputs.vectors.shape[1]), dtype=np.float32)
    skipped = np.full(len(starts), -1, dtype=np.int32) if skipped is None else skipped
    inputs, lags, *histories = read_only(trail.inputs.vectors, trail.lags.vectors, tokens, starts, ends, skipped)
    sum_pages(inputs, lags, window, np.float32(TRAIL_BIAS), *histories, vectors)
    return vectors


def draw_negatives(
    keys: NDArray[np.uint64], purpose: int, tables: Sampling | TrailTables, num: int
) -> NDArray[np.int64]:
    """Draw `num` items of the noise for each key uint64[n]: int64[n, num], at position 0, for a purpose."""
    items = np.empty((len(keys), num), dtype=np.int64)
    draw_each(*read_only(keys), purpose, _noise(tables), items)
    return items


def score_rows(
    users: NDArray[np.float32], outputs: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return dot products float32[n, K] of users float32[n, D] with their rows int64[n, K] of outputs float32[V, D]."""
    scores = np.empty(rows.shape, dtype=np.float32)
    score_each(*read_only(users, outputs, rows), scores)
    return scores


def train_tiles(rows: tuple[Rows, ...], noise: Noise, rule: Rule, work: Pass, ledger: Ledger | None = None) -> int:
    """Train streams of tiles; rows: of users, outputs and inputs, and of lags for a trail. Returns the number of targets."""
    longest, size = int((work.ends - work.starts).max(initial=0)), rows[1].vectors.shape[1]
    num_items = len(noise.aliases) if rule.has_trail else 0
    paths, num_path_rows = _paths(work.tree), work.tree.max_path_rows if work.tree else 0
    window = rule.window if rule.is_dm or rule.has_trail else 0
    sizes = (size, rule.num_lanes, rule.num_negatives, window, 1 << longest.bit_length(), num_items, num_path_rows)
    nothing = Rows(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.float32))
    tables = (Table(one.vectors, one.squares) for one in (*rows, nothing)[:4])
    taken = np.zeros(LINE_NUMBERS, dtype=np.int64)
    ledger = ledger or make_ledger(np.zeros(0, dtype=np.int64), 0, 0)
    arrays = (work.tokens, work.starts, work.ends, work.hashes, work.order, work.alphas, work.sampling.keep)
    users = Work(*read_only(*arrays))
    shared = (*tables, noise, paths, rule, users, ledger, np.uint64(work.epoch_key), work.streams, taken)
    name, threads = "trail" if rule.has_trail else "tile", used_threads(work.config)

    def train() -> int:
        return int(train_streams(*shared, *_own(name, sizes)))

    others = [_pool(threads).submit(train) for _ in range(1, threads)]
    return train() + sum(other.result() for other in others)


def _own(name: str, sizes: tuple[int, ...]) -> tuple[Lanes, Tile]:
    """Return the calling thread's arrays, which it keeps: making them takes a tenth of a small visit's time."""
    if getattr(_kept, name, (None,))[0] != sizes:
        setattr(_kept, name, (sizes, _tile(*sizes)))
    return getattr(_kept, name)[1]


def _tile(
    num_dims: int, num_lanes: int, num_negatives: int, window: int, longest: int, num_items: int, num_path_rows: int
) -> tuple[Lanes, Tile]:
    """Return lanes and a tile for users with up to `longest` tokens; window: of a trail or PV-DM; num_items: with a trail."""
    width, length, height = padded(num_lanes), padded(num_dims), padded(num_negatives, ROW_BLOCK)
    has_words = window > 0 and num_items == 0
    shapes = {
        "hiddens": (width, length),
        "steps": (width, length),
        "negatives": (height, length),
        "negative_steps": (height, length),
        "across": (length, width),
        "scores": (height, width),
        "users": (width if has_words else 0, length),
    }
    names = "rows next_rows corrections own_rows own_scores totals dots squares hidden_squares rates item_l2 alpha l2 scales"
    arrays = {name: scratch_rows(*shape) for name, shape in shapes.items()}
    arrays |= {name: scratch_rows(1, padded(max(height, width)))[0] for name in names.split()}
    arrays |= {name: scratch_rows(1, padded(num_path_rows))[0] for name in ("path_rows", "path_pulls")}
    arrays |= {name: arrays[name].view(np.uint32) for name in ("rows", "next_rows", "own_rows", "path_rows")}
    if not has_words:
        arrays["users"] = arrays["hiddens"]
    users, firsts, num_targets, following, lengths = (np.zeros(width, dtype=np.int64) for _ in range(5))
    targets, seen = np.zeros((width, longest + 1), np.int32), np.zeros(num_items, np.int64)
    listed = np.zeros(longest + 1 if num_items else 0, np.int32)
    keys = np.zeros(width, np.uint64)
    lanes = Lanes(users, keys, firsts, num_targets, following, targets, listed, seen, np.zeros(1, np.int64))
    looked = (width, 2 * window)
    return lanes, Tile(
        **arrays, same=np.zeros(height, np.int32), last_of=np.zeros(num_items, np.int32),
        context=np.zeros(looked, np.uint32), lags=np.zeros(looked, np.int64), factors=np.zeros(looked, np.float32),
        lengths=lengths, lag_steps=np.zeros(2 * window, np.float32),
    )  # fmt: skip


def _noise(tables: Sampling | TrailTables) -> Noise:
    none = np.zeros(0, dtype=np.float32)
    return Noise(*read_only(tables.thresholds, tables.aliases, tables.corrections, none, none))


def read_only(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return read-only views: otherwise numba compiles once for arrays in memory and once for those mapped from files."""
    views = tuple(array.view() for array in arrays)
    for view in views:
        view.flags.writeable = False
    return views


def _paths(tree: Tree | None) -> Paths:
    none = np.zeros(0, dtype=np.int32)
    tree = tree or Tree(none, none.view(np.uint32), none, none, 0)
    parents, slots, first_rows, widths = read_only(tree.parents, tree.slots, tree.first_rows, tree.widths)
    return Paths(parents, slots, first_rows, widths, tree.num_classes)


def rule_of(work: Pass) -> Rule:
    """Return the settings of a training, for the interest. In a tree users take turns, and nothing is drawn."""
    config = work.config
    return Rule(
        is_softmax=config.objective == "sampled_softmax",
        handicap=np.float32(config.handicap),
        is_adagrad=config.optimizer == "adagrad",
        is_dm=bool(config.dm),
        has_tree=bool(config.hs),
        is_frozen=False,
        is_accumulating=False,
        window=config.window,
        num_negatives=0 if config.hs else config.negative,
        num_lanes=config.num_lanes,
        num_free=config.num_free,
        recency=np.float32(work.recency),
        l2=np.float32(config.l2),
        item_l2=np.float32(config.item_l2),
        l2_in_sums=np.float32(1),
        has_trail=False,
        backward=0.0,
        bias=np.float32(TRAIL_BIAS),
    )


def make_ledger(lengths: NDArray[np.int64], num_negatives: int, num_dims: int) -> Ledger:
    """Return an empty ledger for users with so many tokens each, int64[M]."""
    ends = np.cumsum(lengths)
    num_predictions = int(ends[-1]) if len(ends) else 0
    rows = np.full((num_predictions, 1 + num_negatives), -1, dtype=np.int32)
    pulls = np.empty(rows.shape, dtype=np.float32)
    return Ledger(ends - lengths, np.empty((num_predictions, num_dims), dtype=np.float32), rows, pulls)


def move_items(outputs: Rows, ledger: Ledger, config: TrainConfig, alpha: np.float32) -> None:
    """Move each row in the ledger by the sum of its gradients: pull * hidden, less L2 for each prediction of its own.

    Raises ConfigError where scipy is not installed.
    """
    try:
        from scipy.sparse import csr_array  # a bare machine for training without accumulation has no scipy
    except ModuleNotFoundError:
        message = (
            "train.accumulate above 1 needs scipy, which is not installed: install it, or set train.accumulate to 1"
        )
        raise ConfigError(message) from None
    is_kept = ledger.rows[:, 0] >= 0
    hiddens, pulls = ledger.hiddens[is_kept], ledger.pulls[is_kept]
    rows, places = np.unique(ledger.rows[is_kept], return_inverse=True)
    places = places.reshape(pulls.shape)
    predictions = np.repeat(np.arange(len(pulls)), pulls.shape[1])
    sums = csr_array((pulls.ravel(), (places.ravel(), predictions)), shape=(len(rows), len(pulls))) @ hiddens
    own_places, nums = np.unique(places[:, 0], return_counts=True)
    num_free = config.num_free  # L2 is not for the bias
    l2s = np.float32(config.item_l2) * nums.astype(np.float32)[:, None]
    sums[own_places, :num_free] -= l2s * outputs.vectors[rows[own_places], :num_free]
    rates = np.full(len(rows), alpha, dtype=np.float32)
    if config.optimizer == "adagrad":
        outputs.squares[rows] += np.einsum("rd,rd->r", sums, sums) / np.float32(sums.shape[1])
        rates /= np.sqrt(outputs.squares[rows] + np.float32(EPSILON))
    sums *= rates[:, None]
    outputs.vectors[rows] += sums
