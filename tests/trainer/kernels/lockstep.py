"""A launch of the GPU kernel as a card may run it: `width` users in step, with the kernel's own draws. In torch, on the CPU.

Users in flight read item rows that others move. Here that is as bad as it can be: all users of a group read their rows of step t
before any of them moves one. Adagrad's sums grow in the order of the atomics, which a card does not promise: `seed` draws one,
None takes the programs' order and in each the order of lanes. With a width of 1 and that order it is the reference's arithmetic.
"""

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surf2vec.trainer.draws import NEGATIVE, SUBSAMPLE, counter, draws, mix_array
from surf2vec.trainer.kernels import Kernel
from surf2vec.trainer.kernels.device import (
    Accelerator,
    DevicePass,
    DeviceRows,
    DeviceSampling,
    Launch,
    Scratch,
    as_tensor,
    make_scratch,
)
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.model.objectives import MAX_SCORE, Sampling
from surf2vec.trainer.model.rows import EPSILON, Items, Rows
from tests.trainer.kernels import reference

if TYPE_CHECKING:  # these need pyarrow, and the agreement of the kernel does not
    from surf2vec.trainer.store.generation import Generation
    from surf2vec.trainer.store.tokens import Corpus


def make_launch(width: int, seed: int | None = 0) -> Launch:
    """A launch that trains `width` users at a time."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)

    def launch(users: DeviceRows, outputs: DeviceRows, work: DevicePass, scratch: Scratch) -> None:
        if not len(work.tokens):
            scratch.num_kept.zero_()
            return
        for first in range(0, len(work.order), width):
            group = Group(users, outputs, work, slice(first, first + width), generator)
            scratch.num_kept[first : first + len(group.order)] = group.count.int()
            for step in range(int(group.count.max())):
                group.take(step)

    return launch


def make_tile_launch(width: int) -> Launch:
    """A launch that trains `width` streams of tiles at a time, by the reference.

    All of them read their rows and Adagrad's sums of a step before any moves one; a card's sums are more recent.
    """

    def launch(users: DeviceRows, outputs: DeviceRows, work: DevicePass, scratch: Scratch) -> None:
        own, rows, on_host = Rows(**as_arrays(users)), Rows(**as_arrays(outputs)), pass_on_host(work)
        scratch.num_kept.zero_()
        bounds = list(pairwise(on_host.streams.tolist())) if len(on_host.tokens) else []
        for start in range(0, len(bounds), width):
            streams = [reference.tiles_of(on_host, *one) for one in bounds[start : start + width]]
            while streams:
                tiles = [(stream, tile) for stream in streams if (tile := next(stream, None))]
                moves = [move_alone(own, rows, *tile, on_host) for _, tile in tiles]
                for touched, vectors, squares in moves:
                    rows.vectors[touched] += vectors
                    rows.squares[touched] += squares
                scratch.num_kept[start] += sum(len(lanes) for _, (lanes, _) in tiles)
                streams = [stream for stream, _ in tiles]

    return launch


def move_alone(
    users: Rows, outputs: Rows, lanes: list[reference.Lane], negatives_K: np.ndarray, work: Pass
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Train a tile's users. Returns the item rows that it would move, and by what: they stay as they are."""
    touched = np.unique([*(lane.item for lane in lanes), *negatives_K])
    vectors, squares = outputs.vectors[touched], outputs.squares[touched]
    reference.train_tile(users, outputs, lanes, negatives_K, work)
    moves = touched, outputs.vectors[touched] - vectors, outputs.squares[touched] - squares
    outputs.vectors[touched], outputs.squares[touched] = vectors, squares
    return moves


def as_arrays(fields: Any) -> dict[str, Any]:
    """The fields of what is on the device, here the CPU: arrays that share the tensors' memory."""
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in vars(fields).items()}


def pass_on_host(work: DevicePass) -> Pass:
    """The pass that is on the device."""
    values = as_arrays(work) | {"sampling": Sampling(**as_arrays(work.sampling)), "tree": None}
    values["hashes"] = values["hashes"].view(np.uint64)
    del values["streams"]
    return Pass(**values)


class Group:
    """The users of a pass that are in flight together."""

    def __init__(
        self, users: DeviceRows, outputs: DeviceRows, work: DevicePass, part: slice, generator: torch.Generator | None
    ) -> None:
        self.users, self.outputs, self.work, self.generator = users, outputs, work, generator
        self.order, self.alphas = work.order[part], work.alphas[part]
        self.starts = work.starts[self.order]
        self.lengths = work.ends[self.order] - self.starts
        keys = work.hashes[self.order].numpy().view(np.uint64) ^ np.uint64(work.epoch_key)
        self.keys = mix_array(keys)
        self.free = (torch.arange(users.vectors.shape[1]) < work.config.num_free).float()
        places = torch.arange(max(int(self.lengths.max()), 1))[None, :].expand(len(self.order), -1)
        items = work.tokens[(self.starts[:, None] + places).clamp(max=max(len(work.tokens) - 1, 0))].long()
        at = counters(places.numpy(), SUBSAMPLE, np.zeros(1))
        high = torch.from_numpy((draws(self.keys[:, None], at) >> np.uint64(32)).astype(np.int64))
        kept = (places < self.lengths[:, None]) & (high < work.sampling.keep[items])
        self.count = kept.sum(1)
        self.positions = torch.argsort(~kept, dim=1, stable=True)

    def take(self, step: int) -> None:
        """Train the step's token of every user that has one."""
        work, config, rows, users = self.work, self.work.config, self.outputs, self.users
        active = (self.count > step).nonzero()[:, 0]
        user, alpha, position = self.order[active], self.alphas[active], self.positions[active, step]
        row = work.tokens[self.starts[active] + position].long()
        drawn = self.draw_negatives(active, position)
        u, own, others = users.vectors[user], rows.vectors[row], rows.vectors[drawn]
        pull, pulls = self.pulls((u * own).sum(1), torch.einsum("nd,nkd->nk", u, others), row, drawn)
        up = pull[:, None] * own + torch.einsum("nk,nkd->nd", pulls, others)
        if work.update_items:
            up += self.move_items(u, alpha, (row, own, pull), (drawn, pulls))
        age = (self.lengths[active] - 1 - position).float()
        weight = 1 / (1 + age * (1 / work.recency if work.recency else 0.0))
        l2 = config.l2 / self.lengths[active].clamp(min=1).float().sqrt()
        gradient = weight[:, None] * (up - l2[:, None] * u) * self.free
        rate = alpha
        if config.optimizer == "adagrad":
            users.squares[user] += gradient.square().mean(1)
            rate = alpha / (users.squares[user] + EPSILON).sqrt()
        users.vectors[user] = u + rate[:, None] * gradient

    def draw_negatives(self, active: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The items of each user's negatives, int64[m, K]."""
        sampling, numbers = self.work.sampling, np.arange(1, self.work.config.negative + 1)
        bits = draws(self.keys[active.numpy(), None], counters(position.numpy()[:, None], NEGATIVE, numbers))
        high, low = bits >> np.uint64(32), bits & np.uint64(2**32 - 1)
        slot = torch.from_numpy(((high * np.uint64(len(sampling.keep))) >> np.uint64(32)).astype(np.int64))
        below = torch.from_numpy(low.astype(np.int64)) < sampling.thresholds[slot]
        return torch.where(below, slot, sampling.aliases[slot].long())

    def pulls(
        self, score: torch.Tensor, scores: torch.Tensor, row: torch.Tensor, drawn: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """1 - probability of the token, and minus the probability of each negative; 0 of one that is the token itself."""
        is_other, config, corrections = drawn != row[:, None], self.work.config, self.work.sampling.corrections
        if config.objective == "sampled_softmax":
            score = score - (corrections[row] + config.handicap)
            scores = (scores - corrections[drawn]).masked_fill(~is_other, -math.inf)
            shares = torch.softmax(torch.cat((score[:, None], scores), 1), 1)
            return shares[:, 1:].sum(1), -shares[:, 1:]
        pulls = torch.where((scores.abs() < MAX_SCORE) & is_other, -torch.sigmoid(scores), 0.0)
        return torch.where(score.abs() < MAX_SCORE, torch.sigmoid(-score), 0.0), pulls

    def move_items(
        self, u: torch.Tensor, alpha: torch.Tensor, token: tuple[torch.Tensor, ...], negatives: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Move the rows of tokens and negatives. Returns what negatives that were drawn before add to their users' steps."""
        (row, own, pull), (drawn, pulls) = token, negatives
        gradient = pull[:, None] * u - self.work.config.item_l2 * own * self.free
        squares = torch.cat((gradient.square().mean(1)[:, None], pulls.square() * u.square().mean(1)[:, None]), 1)
        rows = torch.cat((row[:, None], drawn), 1)
        rates = alpha[:, None].expand_as(squares)
        if self.work.config.optimizer == "adagrad":
            rates = rates / (self.add_squares(rows.flatten(), squares.flatten()).view_as(squares) + EPSILON).sqrt()
        grows = rates[:, 1:] * pulls
        self.outputs.vectors.index_add_(0, row, rates[:, :1] * gradient)
        moves = grows[:, :, None] * u[:, None, :]
        self.outputs.vectors.index_add_(0, drawn.flatten(), moves.flatten(0, 1))
        is_before = (drawn[:, :, None] == drawn[:, None, :]).tril(-1)
        added = (is_before * grows[:, None, :]).sum(2)
        return (pulls * added).sum(1)[:, None] * u

    def add_squares(self, rows: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
        """Add mean squares to Adagrad's sums, one after the other. Returns the sum of its row after each."""
        num = len(rows)
        order = torch.arange(num) if self.generator is None else torch.randperm(num, generator=self.generator)
        order = order[torch.argsort(rows[order], stable=True)]
        sums = squares[order].double().cumsum(0)
        is_first = torch.ones(num, dtype=torch.bool)
        is_first[1:] = rows[order][1:] != rows[order][:-1]
        before = torch.where(is_first, sums - squares[order], 0.0).cummax(0).values
        after = torch.empty_like(squares)
        after[order] = (self.outputs.squares[rows[order]] + (sums - before)).float()
        self.outputs.squares.index_add_(0, rows, squares)
        return after


def counters(positions: np.ndarray, purpose: int, numbers: np.ndarray) -> np.ndarray:
    """surf2vec.trainer.draws.counter of arrays."""
    return np.uint64(counter(0, purpose, 0)) + (
        (positions.astype(np.uint64) << np.uint64(16)) + numbers.astype(np.uint64)
    )


def simulate(launch: Launch, users: Rows, items: Items, work: Pass) -> int:
    """Train by such a launch rows on the host, in place. Returns how many tokens subsampling kept."""

    def as_tensors(fields: Any) -> dict[str, Any]:
        return {
            name: as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in vars(fields).items()
        }

    values = as_tensors(work) | {"sampling": DeviceSampling(**as_tensors(work.sampling))}
    values["streams"] = torch.from_numpy(work.streams)
    del values["tree"]
    scratch = make_scratch(len(work.hashes), len(work.tokens), torch.device("cpu"))
    launch(DeviceRows(**as_tensors(users)), DeviceRows(**as_tensors(items.outputs)), DevicePass(**values), scratch)
    return int(scratch.num_kept[: len(work.order)].sum())


def lane_spread(work: Pass, num_orders: int = 4) -> float:
    """The largest difference of a number that other orders of the atomics make, one user at a time, from rows in mid-training."""
    ends = []
    for seed in (None, *range(num_orders)):
        users, items = middle_rows(work)
        simulate(make_launch(1, seed), users, items, work)
        ends.append(np.concatenate([users.vectors.ravel(), items.outputs.vectors.ravel()]))
    return float(max(np.abs(end - ends[0]).max() for end in ends[1:]))


def middle_rows(work: Pass) -> tuple[Rows, Items]:
    """Rows as in the middle of a training: Adagrad's step from a sum of zero makes much of a small gradient's last digit."""
    config, rng = work.config, np.random.default_rng(1)

    def draw(num_rows: int, spread: float) -> Rows:
        vectors = rng.normal(0, spread, (num_rows, config.interest_size)).astype(np.float32)
        return Rows(vectors, np.full(num_rows, 0.01, dtype=np.float32))

    users = draw(len(work.hashes), 0.1)
    users.vectors[:, config.num_free :] = config.bias
    return users, Items(draw(len(work.sampling.keep), 0.3), draw(0, 0.0))


def kernel_in_flight(launch: Launch) -> Kernel:
    """A kernel for the engine of a device, on the CPU, with such a launch."""

    def train_users(users: Rows, items: Items, work: Pass) -> int:
        return simulate(launch, users, items, work)

    return Kernel("gpu", "a simulation", train_users, Accelerator(torch.device("cpu"), launch))


def held_out_hits(corpus: "Corpus", generation: "Generation") -> np.ndarray:
    """Whether a held-out user's item is among the 20 that score highest of those that the user had not seen, bool[n]."""
    outputs, hits = generation.read_items(), []
    for partition in range(corpus.num_partitions):
        part, users = corpus.read(partition), generation.read_users(partition)
        for user in np.flatnonzero(part.is_evaluated):
            scores = outputs @ users[user]
            held_out = part.tokens[part.ends[user]]
            scores[part.tokens[part.starts[user] : part.ends[user]]] = -np.inf
            hits.append(np.count_nonzero(scores > scores[held_out]) < 20)
    return np.array(hits)
