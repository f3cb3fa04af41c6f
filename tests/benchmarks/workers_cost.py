"""What an epoch of several workers takes, from bytes and rates: a model, to ask about machines that are not here. Pure.

    training   tokens of the slowest worker at each place, each by its rate; and for each item block its users meet a visit
    summing    exchanges x (latency + bytes / bandwidth), and the table's bytes that adding up touches in memory
    passing    turns x (latency + block / bandwidth)
    meeting    places at whose end workers exchange x latency of telling each other a few numbers

Where a device computes while it sends, passing with two blocks a worker and asynchronous sums cost what training does not
cover, and so do visits. Not in it: commits, reading chunks that do not fit, and what workers wait for each other by chance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.plan.alone import Budget
from surf2vec.trainer.plan.schedule import partition_order
from surf2vec.trainer.plan.shares import count_exchanges, share_users
from surf2vec.trainer.plan.sizes import Work, training_sizes
from surf2vec.trainer.plan.together import Member, Team, Way, choose_way

TOUCHES = {"alone": 0, "replicated": 8, "sharded": 8, "asynchronous": 13}
"""How often trainer/workers/exchange.py reads or writes each byte that it adds up: subtract, add, copy; more where
nobody waits."""
FREE = 10**15
"""Disk, which the model does not ask for."""


@dataclass(frozen=True)
class Device:
    """What a worker has to itself. visit_seconds: beside learning, of each of its tokens for each item block;
    touched_bytes_per_second: read and written in memory; is_overlapped: whether it sends while it computes.
    """

    tokens_per_second: float
    visit_seconds: float
    touched_bytes_per_second: float
    is_overlapped: bool


@dataclass(frozen=True)
class Network:
    """What a worker sends a second while all do, in sums and in passing; the latency of a sum, a pass and a meeting."""

    sum_bytes_per_second: float
    pass_bytes_per_second: float
    sum_seconds: float
    pass_seconds: float
    meet_seconds: float


ALONE = Network(math.inf, math.inf, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Epoch:
    """What an epoch is for the slowest worker; bytes: what one worker sends."""

    mode: str
    num_workers: int
    tokens: float
    num_meetings: int = 0
    num_blocks: int = 1
    num_exchanges: float = 0.0
    summed_bytes: float = 0.0
    num_turns: int = 0
    passed_bytes: float = 0.0

    @property
    def sent_bytes(self) -> float:
        return self.summed_bytes + self.passed_bytes


@dataclass(frozen=True)
class Seconds:
    """The parts of an epoch."""

    training: float
    summing: float
    passing: float
    meeting: float

    @property
    def total(self) -> float:
        return self.training + self.summing + self.passing + self.meeting


def predict_epoch(epoch: Epoch, device: Device, network: Network = ALONE) -> Seconds:
    """How long it takes."""
    learning = epoch.tokens / device.tokens_per_second
    visiting = epoch.tokens * epoch.num_blocks * device.visit_seconds
    training = max(learning, visiting) if device.is_overlapped else learning + visiting
    summing = epoch.num_exchanges * network.sum_seconds + epoch.summed_bytes / network.sum_bytes_per_second
    passing = epoch.num_turns * network.pass_seconds + epoch.passed_bytes / network.pass_bytes_per_second
    if device.is_overlapped and epoch.mode == "asynchronous":
        summing = max(0.0, summing - training)
    if device.is_overlapped and epoch.num_blocks >= 2 * epoch.num_workers:
        passing = max(0.0, passing - training)
    added_up = epoch.summed_bytes * epoch.num_workers / max(1, 2 * (epoch.num_workers - 1))
    touching = TOUCHES[epoch.mode] * added_up / device.touched_bytes_per_second
    return Seconds(training, summing + touching, passing, epoch.num_meetings * network.meet_seconds)


@dataclass(frozen=True)
class Volume:
    """What is trained: users and tokens of each micro-partition, and items."""

    users: Sequence[int]
    tokens: Sequence[int]
    num_items: int


@dataclass(frozen=True)
class Memory:
    """Of a worker: of its process, and of its GPU, where it has one."""

    host_bytes: int
    device_bytes: int | None = None


def plan_epoch(volume: Volume, num_workers: int, config: TrainConfig, memory: Memory) -> Epoch:
    """An epoch, the first, as the trainer's planner divides it among workers with as much memory each.

    Raises ConfigError or ResourceError where the planner refuses.
    """
    tokens = np.array(volume.tokens, dtype=np.int64)
    if num_workers == 1:
        return Epoch("alone", 1, float(tokens.sum()))
    weights = [1.0] * num_workers
    share = share_users(0, tokens, weights)
    budget = Budget(memory.host_bytes, 0, FREE, memory.device_bytes)
    members = [
        Member(Work([volume.users[p] for p in own], tokens[own].tolist(), 1, config.commit_seconds), budget, None, None)
        for own in share.partitions
    ]
    places = share.place_tokens(partition_order(config.seed, 0, len(tokens)))
    team = Team(members, weights, share, [places.tolist()])
    way = choose_way(team, training_sizes(config, volume.num_items, None), config)
    return describe_epoch(way, places)


def describe_epoch(way: Way, place_tokens: NDArray[np.int64]) -> Epoch:
    """An epoch with tokens int64[W, places], shared in this way."""
    sharing, num_blocks = way.sharing, way.num_blocks
    most = place_tokens.max(axis=0)
    made = count_exchanges(np.tile(most / num_blocks, num_blocks), sharing)
    is_waited = sharing.mode != "asynchronous"
    num_turns = -(-len(most) // way.chunk_places) * num_blocks if sharing.is_sharded else 0
    return Epoch(
        sharing.mode, sharing.num_workers, float(most.sum() if is_waited else place_tokens.sum(axis=1).max()),
        num_meetings=int((made > 0).sum()), num_blocks=num_blocks, num_exchanges=int(made.sum()),
        summed_bytes=way.sent_bytes - num_turns * way.turn_bytes, num_turns=num_turns,
        passed_bytes=num_turns * way.turn_bytes,
    )  # fmt: skip


def named(config: TrainConfig, mode: str) -> TrainConfig:
    """The same settings with a way of sharing."""
    return replace(config, sharing=mode)  # type: ignore[arg-type]
