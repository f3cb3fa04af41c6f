"""The plan of several workers: how they share the item table, and one division into chunks and blocks for all. Pure.

Unless `train.sharing` names it, the first suitable one of trainer/plan/sharing.py is taken. Replicated: if the table fits every
worker, and summing its changes does not take too many bytes or the workers have GPUs (sharding would copy all users to them for
each block). Sharded: if the table can be divided. Asynchronous: otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.plan.alone import (
    MAX_BLOCKS,
    Budget,
    Division,
    Plan,
    explain_refusal,
    has_trail_on_device,
    largest_chunk,
    lay_out,
)
from surf2vec.trainer.plan.prediction import Rates
from surf2vec.trainer.plan.schedule import partition_order
from surf2vec.trainer.plan.sharing import EXCHANGES_PER_EPOCH, Share, Sharing, count_exchanges, sent_by_sum
from surf2vec.trainer.plan.sizes import Sizes, Work
from surf2vec.trainer.system.memory import PAGE_BYTES
from surf2vec.trainer.system.units import size

SUMMED_BYTES_PER_TOKEN = 100
"""If summing takes more bytes for each trained token, the table is divided. At a million tokens and a gigabyte a second, this is
a tenth of the time."""
WAITED_BYTES = 32 * 10**6
"""With larger blocks each worker has two, and passes one on while it trains the other, to avoid waiting."""


@dataclass(frozen=True)
class WorkerSpec:
    """A worker's work, budget and rates."""

    work: Work
    budget: Budget
    rates: Rates


@dataclass(frozen=True)
class SharingPlan:
    """How workers share, the reason for it, and the division that fits all of them.

    sent_bytes: the most that a worker sends in an epoch; turn_bytes: the part of it for passing on one item block.
    """

    sharing: Sharing
    num_blocks: int
    chunk_places: int
    sent_bytes: float = 0.0
    turn_bytes: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class TeamSpec:
    """The members by rank, their weights, the share of one member, and place_tokens[epoch][rank][place]."""

    members: Sequence[WorkerSpec]
    weights: Sequence[float]
    share: Share
    place_tokens: Sequence[Sequence[Sequence[int]]]

    @property
    def is_on_gpu(self) -> bool:
        return self.members[0].budget.device_bytes is not None


def form_team(members: Sequence[WorkerSpec], weights: Sequence[float], share: Share, config: TrainConfig) -> TeamSpec:
    """Return the team of these members, with their tokens at each place of each epoch."""
    orders = (partition_order(config.seed, epoch, len(share.tokens)) for epoch in range(config.epochs))
    return TeamSpec(members, weights, share, [share.place_tokens(order).tolist() for order in orders])


def plan_together(team: TeamSpec, sizes: Sizes, resumed_from: SharingPlan | None = None) -> list[Plan]:
    """Return the plan of every worker. `resumed_from`: that of a resumed training, which is kept as its order depends on it.

    Raises ConfigError when the settings do not allow `train.sharing`, ResourceError with the numbers when nothing fits.
    """
    chosen = choose_sharing(team, sizes) if resumed_from is None else keep_plan(team, sizes, resumed_from)
    sized, plans = replace(sizes, sharing=chosen.sharing), []
    num_users, num_blocks = sum(member.work.num_users for member in team.members), chosen.num_blocks
    has_trail = all(has_trail_on_device(each.work, sized, each.budget, num_blocks) for each in team.members)
    for rank, member in enumerate(team.members):
        most, own = team.share.most_per_place(rank), len(team.share.partitions[rank])
        division = Division(min(chosen.chunk_places * most, own), num_blocks)
        num_others = num_users - member.work.num_users
        plan = lay_out(member.work, sized, member.budget, member.rates, division, has_trail, num_others, rank == 0)
        sent_bytes = round(member.work.epochs * chosen.sent_bytes - chosen.turn_bytes)  # no block after the last turn
        reasons = (*plan.reasons, *_reasons(team, sized, chosen))
        plan = replace(
            plan, sharing=chosen.sharing, places_per_chunk=chosen.chunk_places, sent_bytes=sent_bytes, reasons=reasons
        )
        plans.append(plan)
    return plans


def choose_sharing(team: TeamSpec, sizes: Sizes) -> SharingPlan:
    """Return the best sharing that fits every worker."""
    wanted = sizes.config.sharing
    if wanted == "sharded" and not sizes.can_split:
        raise ConfigError(
            "train.sharing is sharded, but with train.dm or train.items_from the item table cannot be divided: "
            "take replicated or asynchronous"
        )
    if wanted != "auto":
        chosen = _fit(team, sizes, wanted) or _refuse(team, sizes, wanted)
        return replace(chosen, why="train.sharing is set to it")
    replicated = _fit(team, sizes, "replicated")
    sharded = _fit(team, sizes, "sharded") if sizes.can_split else None
    if replicated is None:  # nor asynchronous, which takes more memory
        last = "sharded" if sizes.can_split else "asynchronous"
        return replace(sharded or _refuse(team, sizes, last), why="a whole table does not fit every worker")
    if team.is_on_gpu:
        return replace(replicated, why="the table fits every GPU")
    token_bytes = replicated.sent_bytes / max(1, min(member.work.num_tokens for member in team.members))
    cost = f"a token costs {token_bytes:,.0f} bytes to add up"
    if token_bytes <= SUMMED_BYTES_PER_TOKEN:
        return replace(replicated, why=f"the table fits every worker, and {cost}, at most {SUMMED_BYTES_PER_TOKEN}")
    cost += f", more than {SUMMED_BYTES_PER_TOKEN}"
    if sharded:
        return replace(sharded, why=f"with all of it at each worker {cost}")
    asynchronous = _fit(team, sizes, "asynchronous")
    if asynchronous:
        return replace(asynchronous, why=f"the table cannot be divided, and {cost}")
    return replace(replicated, why="nothing else fits every worker")


def keep_plan(team: TeamSpec, sizes: Sizes, resumed_from: SharingPlan) -> SharingPlan:
    """Return the sharing that a training began with. Raises ResourceError if it no longer fits."""
    sized = replace(sizes, sharing=resumed_from.sharing)
    places = _chunk_places(team, sized, resumed_from.num_blocks)
    if resumed_from.num_blocks > 1:
        places = resumed_from.chunk_places if places >= resumed_from.chunk_places else 0
    if places == 0:
        raise ResourceError(
            f"this training began with {sized.sharing.num_workers} workers, {sized.sharing.mode}, in "
            f"{resumed_from.num_blocks} item blocks and chunks of {resumed_from.chunk_places} places, which no longer fit: "
            "raise --host-memory"
        )
    return replace(_plan_sharing(team, sized, resumed_from.num_blocks, places), why="this training began so")


def _sharing(team: TeamSpec, config: TrainConfig, mode: str) -> Sharing:
    num_tokens = sum(member.work.num_tokens for member in team.members)
    tokens = config.exchange_tokens or max(1.0, num_tokens / len(team.members) / EXCHANGES_PER_EPOCH)
    staleness = config.staleness if mode == "asynchronous" else 0
    return Sharing(mode, tuple(team.weights), tokens, staleness, cuts_places=not team.is_on_gpu)


def _fit(team: TeamSpec, sizes: Sizes, mode: str) -> SharingPlan | None:
    """Return this mode of sharing with a division that fits all workers; None if none fits."""
    sized = replace(sizes, sharing=_sharing(team, sizes.config, mode))
    for num_blocks in sized.sharing.block_counts(sizes.can_split, MAX_BLOCKS):
        places = _chunk_places(team, sized, num_blocks)
        if places == 0:
            continue
        is_single = sized.sharing.is_sharded and num_blocks == sized.sharing.num_workers
        if is_single and sized.block_bytes(num_blocks) > WAITED_BYTES:
            doubled_places = _chunk_places(team, sized, 2 * num_blocks)
            if doubled_places:
                return _plan_sharing(team, sized, 2 * num_blocks, doubled_places)
        return _plan_sharing(team, sized, num_blocks, places)
    return None


def _chunk_places(team: TeamSpec, sizes: Sizes, num_blocks: int) -> int:
    """Return the most places of a chunk that fit every worker; 0 if a worker has no room for one."""
    found = []
    for rank, member in enumerate(team.members):
        chunk = largest_chunk(member.work, sizes, member.budget, num_blocks)
        is_all = chunk == len(member.work.users)
        found.append(team.share.num_places if is_all else chunk // team.share.most_per_place(rank))
    return min(found)


def _plan_sharing(team: TeamSpec, sizes: Sizes, num_blocks: int, chunk_places: int) -> SharingPlan:
    sharing = sizes.sharing
    num_chunks = -(-team.share.num_places // chunk_places)
    most = [np.tile(np.max(epoch, axis=0) / num_blocks, num_blocks) for epoch in team.place_tokens]
    counts = [int(count_exchanges(tokens, sharing).sum()) for tokens in most]
    exchanged = sharing.exchanged_bytes(sizes.item_table_bytes, sizes.shared_bytes // max(1, num_blocks) * num_blocks)
    block_bytes = sizes.block_bytes(num_blocks)
    rows_bytes = 4 * block_bytes // sizes.row_bytes  # the block's row numbers
    turn_bytes = PAGE_BYTES + block_bytes + rows_bytes if sharing.is_sharded else 0
    exchanged += 0 if sharing.is_alone else sizes.trail_bytes  # every worker has the trail's item table
    summed_bytes = sum(counts) / len(counts) * sent_by_sum(exchanged, sharing.num_workers)
    sent_bytes = num_chunks * num_blocks * turn_bytes + summed_bytes
    return SharingPlan(sharing, num_blocks, chunk_places, sent_bytes, turn_bytes)


def _refuse(team: TeamSpec, sizes: Sizes, mode: str) -> SharingPlan:
    sized = replace(sizes, sharing=_sharing(team, sizes.config, mode))
    least = min(team.members, key=lambda member: member.budget.host_bytes)
    raise ResourceError(
        f"{len(team.members)} workers, {mode}: " + explain_refusal(least.work, sized, least.budget, None)
    )


def _reasons(team: TeamSpec, sizes: Sizes, chosen: SharingPlan) -> list[str]:
    num_tokens = max(1, sum(member.work.num_tokens for member in team.members))
    shares = ", ".join(f"{member.work.num_tokens / num_tokens:.1%}" for member in team.members)
    lines = [f"{len(team.members)} workers have {shares} of the tokens"]
    seconds = max(member.work.num_tokens / member.rates.tokens_per_second for member in team.members)
    sending = chosen.sent_bytes / min(member.rates.network_bytes_per_second for member in team.members)
    time_share = f"; about {sending / seconds:.0%} of the training's time" if sending and seconds else ""
    sent = f"a worker sends {size(round(chosen.sent_bytes))} an epoch{time_share}; taken because {chosen.why}"
    if chosen.sharing.is_sharded:
        held = chosen.num_blocks // chosen.sharing.num_workers
        lines.append(
            f"sharded: {chosen.num_blocks} item blocks of {size(sizes.block_bytes(chosen.num_blocks))} go round the workers, "
            f"{held} at each; {sent}"
        )
    else:
        bound = f", up to {chosen.sharing.staleness} sums late" if chosen.sharing.staleness else ""
        lines.append(
            f"{chosen.sharing.mode}: every worker has the item table of {size(sizes.item_table_bytes)}; changes are added up "
            f"after {chosen.sharing.exchange_tokens:,.0f} tokens{bound}; {sent}"
        )
    return lines
