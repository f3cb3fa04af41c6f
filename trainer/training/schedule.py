"""The schedule of a training: maps its position, one integer, to the work there. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.kernels.signature import Pass
from surf2vec.trainer.plan.alone import Plan
from surf2vec.trainer.plan.schedule import (
    ScheduleStep,
    learning_rates,
    partition_order,
    step_at,
    tokens_before,
    user_order,
)
from surf2vec.trainer.plan.sharing import Share, count_exchanges, cut_users, ring_block
from surf2vec.trainer.store.tokens import Corpus, Histories, to_offsets
from surf2vec.trainer.training.curve import Sample, Targets, draw_sample
from surf2vec.trainer.training.item_blocks import ItemBlocks
from surf2vec.trainer.training.slots import Resident


@dataclass(frozen=True)
class PartitionPass:
    """One pass over the users of a micro-partition and their tokens of an item block: the work at `position`, or a part of it.

    index: the number of the pass at its position; is_last: whether it is the last one. resident: the users in memory; histories,
    work: with tokens that are rows of the block; targets: the objective's tables for these; cuts int64[k]: after how many users
    the workers exchange their changes. backward: the share of the trail's targets that are predicted backward.
    """

    position: int
    index: int
    is_last: bool
    step: ScheduleStep
    partition: int
    resident: Resident
    histories: Histories
    work: Pass
    targets: Targets
    cuts: NDArray[np.int64]
    backward: float

    def parts(self) -> Iterator[tuple[Pass, bool]]:
        """Yield the work in parts, and whether the workers exchange their changes after each part."""
        start = 0
        for end in self.cuts.tolist():
            yield self._part(start, end), True
            start = end
        if start < len(self.work.order) or not len(self.cuts):
            yield self._part(start, len(self.work.order)), False

    def _part(self, start: int, end: int) -> Pass:
        return replace(self.work, order=self.work.order[start:end], alphas=self.work.alphas[start:end])

    @property
    def num_users(self) -> int:
        return self.histories.num_users

    @property
    def num_tokens(self) -> int:
        """Tokens of all item blocks."""
        return int((self.histories.ends - self.histories.starts).sum())

    @cached_property
    def sample(self) -> Sample:
        """The sample that the curve measures. Users who stay in memory keep it, as it is the same in each epoch."""
        resident, block = self.resident, self.step.block
        if resident.sample is not None and resident.sample[0] == block:
            return resident.sample[1]
        sample = draw_sample(self.targets, self.histories)
        if resident.pages is None:
            resident.sample = block, sample
        return sample


@dataclass(frozen=True, eq=False)
class Schedule:
    """The work of a training: its settings, corpus, plan, effective recency and this worker's share of the users.

    backward: the share of the trail's targets that are predicted backward, at the beginning.
    """

    config: TrainConfig
    corpus: Corpus
    plan: Plan
    blocks: ItemBlocks
    recency: float
    share: Share
    backward: float

    @property
    def num_positions(self) -> int:
        return self.config.epochs * self.positions_per_epoch

    @property
    def positions_per_epoch(self) -> int:
        return self.share.num_places * self.plan.num_blocks

    def places(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return this worker's micro-partitions at each place of an epoch."""
        return _places(self.share, self.config.seed, epoch)[0]

    def step(self, position: int) -> ScheduleStep | None:
        """Return the step at a position; None after the end of training."""
        if position >= self.num_positions:
            return None
        plan, share = self.plan, self.share
        step = step_at(position, share.num_places, plan.chunk_places, plan.num_blocks)
        if not plan.sharing.is_sharded:
            return step
        return replace(step, block=ring_block(share.rank, step.turn, share.num_workers, plan.num_blocks))

    def partitions(self, step: ScheduleStep, first_place: int | None = None) -> list[int]:
        """Return the micro-partitions of the step's chunk in order, from `first_place` on if given."""
        start = step.chunk.start if first_place is None else first_place
        return [int(p) for place in self.places(step.epoch)[start : step.chunk.stop] for p in place]

    def partitions_at(self, step: ScheduleStep) -> list[int]:
        return self.places(step.epoch)[step.place].tolist()

    def num_exchanges(self, position: int) -> int:
        """Return how often the workers exchange changes at a position. With exchanges, all workers end the position together."""
        if self.plan.sharing.is_alone:
            return 0
        epoch, in_epoch = divmod(position, self.positions_per_epoch)
        return int(self._count_exchanges(epoch)[in_epoch])

    @lru_cache(maxsize=2)  # noqa: B019 (one schedule a process)
    def _count_exchanges(self, epoch: int) -> NDArray[np.int64]:
        """Return how often the workers exchange at each position of an epoch."""
        num_places, num_blocks, chunk = self.share.num_places, self.plan.num_blocks, self.plan.chunk_places
        most = self.share.place_tokens(partition_order(self.config.seed, epoch, len(self.share.tokens))).max(axis=0)
        chunks = (most[start : start + chunk] for start in range(0, num_places, chunk))
        tokens = np.concatenate([np.tile(chunk_tokens, num_blocks) for chunk_tokens in chunks]) / num_blocks
        return count_exchanges(tokens, self.plan.sharing)

    def make_pass(
        self, position: int, index: int, step: ScheduleStep, resident: Resident, targets: Targets
    ) -> PartitionPass:
        """Return the pass over one of a position's micro-partitions, with the item block of the step."""
        config, num_blocks = self.config, self.plan.num_blocks
        histories = resident.histories
        users = user_order(config.seed, step.epoch, histories.hashes)
        lengths = np.diff(histories.offsets)[users]
        own_tokens, partitions = int(self.corpus.tokens[self.share.own].sum()), self.partitions_at(step)
        _, offsets = _places(self.share, config.seed, step.epoch)
        in_place = int(self.corpus.tokens[partitions[:index]].sum())
        before = tokens_before(step, offsets, num_blocks) + in_place / num_blocks
        first_token, all_tokens = step.epoch * own_tokens + before, config.epochs * own_tokens
        alphas = learning_rates(config.alpha, config.min_alpha, first_token, lengths / num_blocks, all_tokens)
        histories = self.blocks.histories(histories, step.block)
        work = targets.make_pass(histories, users, alphas, self.recency, step.epoch)
        num_cuts = self.num_exchanges(position) if self.plan.sharing.cuts_places else 0
        cuts = cut_users(lengths, in_place, int(self.corpus.tokens[partitions].sum()), num_cuts)
        is_last = index == len(partitions) - 1
        backward = self.backward * (1 - first_token / max(1, all_tokens))
        return PartitionPass(
            position, index, is_last, step, partitions[index], resident, histories, work, targets, cuts, backward
        )


@lru_cache(maxsize=2)
def _places(share: Share, seed: int, epoch: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a worker's micro-partitions at each place of an epoch, and the tokens before each place."""
    places = share.places(partition_order(seed, epoch, len(share.tokens)))
    return places, to_offsets([share.tokens[partitions].sum() for partitions in places])
