"""The course of a training: from its position, one integer, to what is done there. Pure."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from trainer.blocks import ItemBlocks
from trainer.config import TrainConfig
from trainer.corpus import Corpus, Histories
from trainer.curve import Sample, Targets, draw_sample
from trainer.draws import epoch_key
from trainer.kernels.signature import Pass
from trainer.plan import Plan
from trainer.schedule import (
    Step,
    learning_rates,
    partition_offsets,
    partition_order,
    step_at,
    tokens_before,
    user_order,
)
from trainer.slots import Resident


@dataclass(frozen=True)
class Visit:
    """The users of a micro-partition meet their tokens of an item block, once: what is done at `position`.

    resident: where the users are; histories, work: with tokens that are rows of the block; targets: what these are learned
    against.
    """

    position: int
    step: Step
    partition: int
    resident: Resident
    histories: Histories
    work: Pass
    targets: Targets

    @property
    def num_users(self) -> int:
        return self.histories.num_users

    @property
    def num_tokens(self) -> int:
        """Tokens of the users, those of other item blocks too."""
        return int((self.histories.ends - self.histories.starts).sum())

    @cached_property
    def sample(self) -> Sample:
        """What the curve looks at."""
        return draw_sample(self.targets, self.histories)


@dataclass(frozen=True)
class Course:
    """What a training does, by its settings, its corpus and its plan; recency: that of the log, which may have no times."""

    config: TrainConfig
    corpus: Corpus
    plan: Plan
    blocks: ItemBlocks
    recency: float

    @property
    def num_positions(self) -> int:
        return self.config.epochs * self.corpus.num_partitions * self.plan.num_blocks

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The order of micro-partitions in an epoch, int64[P]."""
        return _kept_order(self.config.seed, epoch, self.corpus.num_partitions)

    def step(self, position: int) -> Step | None:
        """The step at a position; None where training has ended by then."""
        if position >= self.num_positions:
            return None
        return step_at(position, self.corpus.num_partitions, self.plan.chunk_partitions, self.plan.num_blocks)

    def partitions(self, step: Step) -> list[int]:
        """The micro-partitions of the step's chunk, in order."""
        return self.order(step.epoch)[step.chunk.start : step.chunk.stop].tolist()

    def partition(self, step: Step) -> int:
        """The micro-partition of the step."""
        return int(self.order(step.epoch)[step.place])

    def steps_left(self, step: Step) -> int:
        """Positions until the chunk has met all blocks, this one included."""
        return step.chunk.stop - step.place + (self.plan.num_blocks - 1 - step.turn) * len(step.chunk)

    def visit(self, position: int, step: Step, resident: Resident, targets: Targets) -> Visit:
        """What is done at a position, with the micro-partition and the item block of its step."""
        config, num_blocks = self.config, self.plan.num_blocks
        histories = resident.histories
        users = user_order(config.seed, step.epoch, histories.hashes)
        lengths = np.diff(histories.offsets)[users] / num_blocks
        epoch_tokens = int(self.corpus.tokens.sum())
        order = self.order(step.epoch)
        before = tokens_before(step, partition_offsets(order, self.corpus.tokens), num_blocks)
        alphas = learning_rates(
            config.alpha, config.min_alpha, step.epoch * epoch_tokens + before, lengths, config.epochs * epoch_tokens
        )
        histories = self.blocks.histories(histories, step.block)
        work = Pass(
            config=config, tokens=histories.tokens, starts=histories.starts, ends=histories.ends,
            hashes=histories.hashes, order=users, alphas=alphas, sampling=targets.sampling, tree=targets.tree,
            recency=self.recency, epoch_key=epoch_key(config.seed, step.epoch),
        )  # fmt: skip
        return Visit(position, step, int(order[step.place]), resident, histories, work, targets)


@lru_cache(maxsize=2)
def _kept_order(seed: int, epoch: int, num_partitions: int) -> NDArray[np.int64]:
    return partition_order(seed, epoch, num_partitions)
