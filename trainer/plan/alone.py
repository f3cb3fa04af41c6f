"""The memory planner: chooses chunks, item blocks and slots for the budgets, or refuses with the numbers. Pure.

Always in memory are the process itself, one item block with its sampling tables or tree, and a copy of it while a commit is
written. The rest of the budget is divided into slots for chunks of users: one slot if all users fit, otherwise three. The item
table is divided into blocks only if it leaves no room for slots, because blocks change the result. Of the divisions that fit, the
planner takes the one that moves fewest bytes.
"""

from dataclasses import dataclass, replace

from surf2vec.trainer.errors import ResourceError
from surf2vec.trainer.plan.prediction import Prediction, Rates, predict
from surf2vec.trainer.plan.sharing import ALONE, Sharing
from surf2vec.trainer.plan.sizes import MEASURED_TOKENS, TOKEN_BYTES, Sizes, Work, device_bytes, tray_bytes
from surf2vec.trainer.system.memory import DEVICE_CONTEXT_BYTES
from surf2vec.trainer.system.units import size, two_sizes

SCHEDULE_BYTES_PER_USER = 8 * 5 + 4  # hash, start, end, place in the order, offset; learning rate
BUFFER_BYTES = 32 * 10**6  # of Parquet and numpy, while a micro-partition is read, ordered and measured
BUFFER_BYTES_PER_USER = 64
IMAGE_BYTES = 3 * 4096  # a file's header, and the rest of its last page
ARRAY_BYTES = 2 * 4096  # the same for the file of an array
MAX_BLOCKS = 256
NUM_SLOTS = 3  # read ahead, trained, written behind


@dataclass(frozen=True)
class Budget:
    """Memory of the process, its use before training (overhead), the store's free disk, and memory of the GPU, if any.

    context_bytes: what driver and libraries take of the GPU's.
    """

    host_bytes: int
    overhead_bytes: int
    disk_free_bytes: int
    device_bytes: int | None = None
    context_bytes: int = DEVICE_CONTEXT_BYTES


@dataclass(frozen=True)
class Division:
    """How users and items are divided: micro-partitions a chunk, and item blocks."""

    chunk_partitions: int
    num_blocks: int


@dataclass(frozen=True)
class Plan(Prediction):
    """How a training uses memory, disk and time; `reasons` is the arithmetic in words.

    place_bytes: the memory for a micro-partition's users and tokens while it is in a slot; None if all users stay in memory and
    tokens are mapped. slot_bytes: of the users of a chunk. moved_bytes: the bytes that an epoch reads from the store, and writes
    to it, because of the division. sent_bytes: to other workers, predicted for the complete training. places_per_chunk: with
    several workers, equal for all. trail_on_device: whether a GPU trains the trail.
    """

    num_partitions: int
    chunk_partitions: int
    num_chunks: int
    num_blocks: int
    place_bytes: tuple[int, int] | None
    slot_bytes: int
    item_bytes: int
    device_bytes: int
    overhead_bytes: int
    peak_bytes: int
    budget_bytes: int
    disk_bytes: int
    moved_bytes: int
    reasons: tuple[str, ...] = ()
    sharing: Sharing = ALONE
    places_per_chunk: int | None = None
    sent_bytes: int = 0
    trail_on_device: bool = False

    @property
    def chunk_places(self) -> int:
        """The places of a chunk in the epoch's order: for one worker a place is a micro-partition."""
        return self.places_per_chunk or self.chunk_partitions

    @property
    def is_resident(self) -> bool:
        """Whether one chunk has all users, which then stay in memory over all epochs."""
        return self.num_chunks == 1


def plan_training(work: Work, sizes: Sizes, budget: Budget, rates: Rates, began: Division | None = None) -> Plan:
    """Choose chunks, item blocks and slots.

    `began`: the division of a resumed training. With several blocks it is kept, as the order depends on it.

    Raises ResourceError, with the numbers and a remedy, when slots of one micro-partition do not fit the budget,
    or when the disk cannot hold two generations.
    """
    division = _choose_division(work, sizes, budget, began)
    if division is None:
        raise ResourceError(explain_refusal(work, sizes, budget, began))
    has_trail = has_trail_on_device(work, sizes, budget, division.num_blocks)
    return lay_out(work, sizes, budget, rates, division, has_trail)


def lay_out(
    work: Work,
    sizes: Sizes,
    budget: Budget,
    rates: Rates,
    division: Division,
    trail_on_device: bool,
    num_others: int = 0,
    commits_items: bool = True,
) -> Plan:
    """Return the plan for a division that fits. trail_on_device: the same for all workers; num_others: users of other workers on
    the same disk; commits_items: whether this worker writes the items shared by all. Raises ResourceError when the disk cannot
    hold two generations.
    """
    disk_bytes = 2 * ((work.num_users + num_others) * sizes.user_bytes + sizes.item_table_bytes + sizes.trail_bytes)
    if disk_bytes > budget.disk_free_bytes:
        needed, free = two_sizes(disk_bytes, budget.disk_free_bytes)
        raise ResourceError(
            f"two generations need {needed} of disk and {free} are free: free space or lower train.vector_size"
        )
    num_blocks, sharing = division.num_blocks, sizes.sharing
    num_chunks = -(-len(work.users) // division.chunk_partitions)
    slots_bytes, item_bytes = _slots_bytes(work, sizes, division), _item_bytes(work, sizes, budget, num_blocks)
    num_committed = num_blocks // sharing.num_workers if sharing.is_sharded else int(commits_items)
    committed_bytes = num_committed * sizes.block_bytes(num_blocks) + sizes.trail_bytes * commits_items
    moved_bytes = _moved_bytes(work, sizes, division)
    resident_bytes = work.num_users * sizes.user_bytes if num_chunks == 1 else 0
    cost = predict(work, num_blocks, moved_bytes, committed_bytes, resident_bytes, rates)
    plan = Plan(
        num_partitions=len(work.users),
        chunk_partitions=division.chunk_partitions,
        num_chunks=num_chunks,
        num_blocks=num_blocks,
        place_bytes=None if num_chunks == 1 else _place_bytes(work, sizes),
        slot_bytes=slots_bytes if num_chunks == 1 else slots_bytes // NUM_SLOTS,
        item_bytes=item_bytes,
        device_bytes=_device_bytes(work, sizes, budget, num_blocks, trail_on_device) if budget.device_bytes else 0,
        overhead_bytes=budget.overhead_bytes,
        peak_bytes=budget.overhead_bytes + item_bytes + slots_bytes,
        budget_bytes=budget.host_bytes,
        disk_bytes=disk_bytes,
        moved_bytes=moved_bytes,
        trail_on_device=trail_on_device,
        **vars(cost),
    )
    return replace(plan, reasons=_reasons(plan, work, sizes, budget, rates))


def _choose_division(work: Work, sizes: Sizes, budget: Budget, began: Division | None) -> Division | None:
    """Return one block if that fits, otherwise the division that moves fewest bytes; None if none fits."""
    if began and began.num_blocks > 1:
        return began if _slots_bytes(work, sizes, began) <= _left_bytes(work, sizes, budget, began.num_blocks) else None
    choices = range(2, MAX_BLOCKS + 1) if sizes.can_split and not began else []
    if chunk_partitions := largest_chunk(work, sizes, budget, 1):
        return Division(chunk_partitions, 1)
    divisions = [Division(largest_chunk(work, sizes, budget, num_blocks), num_blocks) for num_blocks in choices]
    possible = [division for division in divisions if division.chunk_partitions]
    return min(possible, key=lambda division: _moved_bytes(work, sizes, division), default=None)


def largest_chunk(work: Work, sizes: Sizes, budget: Budget, num_blocks: int) -> int:
    """Return how many micro-partitions fit a slot."""
    left_bytes, num_partitions = _left_bytes(work, sizes, budget, num_blocks), len(work.users)
    if _slots_bytes(work, sizes, Division(num_partitions, num_blocks)) <= left_bytes:
        return num_partitions
    each_bytes = _slots_bytes(work, sizes, Division(1, num_blocks)) if num_partitions > 1 else left_bytes + 1
    return min(max(left_bytes, 0) // each_bytes, num_partitions - 1)


def _slots_bytes(work: Work, sizes: Sizes, division: Division) -> int:
    """Return the bytes of the slots: one for all users, or NUM_SLOTS for the largest micro-partitions."""
    if division.chunk_partitions >= len(work.users):
        sample_bytes = 8 * MEASURED_TOKENS * (4 + sizes.config.negative)  # of a micro-partition, kept for the curve
        users_bytes = work.num_users * (sizes.user_bytes + SCHEDULE_BYTES_PER_USER)
        return users_bytes + len(work.users) * (IMAGE_BYTES + sample_bytes)
    each_bytes = sum(_place_bytes(work, sizes)) + work.most_users * SCHEDULE_BYTES_PER_USER
    return NUM_SLOTS * division.chunk_partitions * each_bytes


def _left_bytes(work: Work, sizes: Sizes, budget: Budget, num_blocks: int) -> int:
    """Return the bytes left for slots; -1 if the GPU's budget does not suffice."""
    if budget.device_bytes is not None and _device_bytes(work, sizes, budget, num_blocks) > budget.device_bytes:
        return -1
    return budget.host_bytes - budget.overhead_bytes - _item_bytes(work, sizes, budget, num_blocks)


def _device_bytes(work: Work, sizes: Sizes, budget: Budget, num_blocks: int, has_trail: bool = False) -> int:
    return budget.context_bytes + device_bytes(work, sizes, num_blocks, has_trail)


def has_trail_on_device(work: Work, sizes: Sizes, budget: Budget, num_blocks: int) -> bool:
    """Return whether the GPU can train the trail: beside one item block, whose tokens the trail needs, and where it fits."""
    if budget.device_bytes is None or not (sizes.trail_bytes and sizes.config.interest_size) or num_blocks > 1:
        return False
    return _device_bytes(work, sizes, budget, 1, has_trail=True) <= budget.device_bytes


def _item_bytes(work: Work, sizes: Sizes, budget: Budget, num_blocks: int) -> int:
    """Return the bytes in memory beside the slots: items, and work space for a micro-partition."""
    users_bytes = work.most_users * (sizes.work_bytes + BUFFER_BYTES_PER_USER)
    pinned_bytes = tray_bytes(work, sizes) if budget.device_bytes else 0
    items_bytes = sizes.item_bytes(num_blocks) + sizes.accumulation_bytes(work, num_blocks)
    return items_bytes + users_bytes + BUFFER_BYTES + pinned_bytes


def _place_bytes(work: Work, sizes: Sizes) -> tuple[int, int]:
    """Return the bytes of the largest users' file of a micro-partition, and of the largest tokens' file."""
    return work.most_users * sizes.user_bytes + IMAGE_BYTES, work.most_tokens * TOKEN_BYTES + ARRAY_BYTES


def _moved_bytes(work: Work, sizes: Sizes, division: Division) -> int:
    """Return the bytes that an epoch reads, and writes: every user once, and a block at each change of block."""
    num_chunks = -(-len(work.users) // division.chunk_partitions)
    users_bytes = work.num_users * sizes.user_bytes if num_chunks > 1 else 0
    if sizes.sharing.is_sharded:  # blocks come from other workers, not from the disk
        return users_bytes
    return users_bytes + num_chunks * (division.num_blocks - 1) * sizes.block_bytes(division.num_blocks)


def _reasons(plan: Plan, work: Work, sizes: Sizes, budget: Budget, rates: Rates) -> tuple[str, ...]:
    users_bytes = sizes.user_bytes + SCHEDULE_BYTES_PER_USER
    lines = [
        f"{work.num_users:,} users x {users_bytes:,} B = {size(work.num_users * users_bytes)}; {sizes.num_items:,} items "
        f"and buffers take {size(plan.item_bytes)}; the process itself {size(plan.overhead_bytes)}"
    ]
    if sizes.trail_bytes:
        beside = "" if sizes.user_bytes else "; nothing is trained for users, who take only their place in the order"
        lines.append(f"of that the trail's item table takes {size(sizes.trail_bytes)}, and never is divided{beside}")
    if plan.num_blocks > 1 and sizes.sharing.is_alone:
        lines.append(
            f"with the whole item table nothing fits: {plan.num_blocks} item blocks of "
            f"{size(sizes.block_bytes(plan.num_blocks))}, every chunk meets each"
        )
    if plan.is_resident:
        lines.append(
            f"all users fit the budget of {size(plan.budget_bytes)}: one chunk stays in memory over all epochs"
        )
    else:
        lines.append(
            f"all users do not fit the budget of {size(plan.budget_bytes)}: {plan.num_chunks} chunks of "
            f"{plan.chunk_partitions} micro-partitions go through {NUM_SLOTS} slots of {size(plan.slot_bytes)}, each "
            "loaded once an epoch"
        )
    lines.append(
        f"peak {size(plan.peak_bytes)} of {size(plan.budget_bytes)}; an epoch reads and writes {size(plan.moved_bytes)} each; "
        f"two generations on disk {size(plan.disk_bytes)} of {size(budget.disk_free_bytes)} free"
    )
    if budget.device_bytes is not None:
        lines.append(
            f"on the GPU {size(plan.device_bytes)} of {size(budget.device_bytes)}, {size(budget.context_bytes)} of it its "
            "context"
        )
        if sizes.trail_bytes and sizes.config.interest_size:
            lines.append(_explain_trail(plan, work, sizes, budget))
    lines.append(
        f"{work.epochs * work.num_tokens:,} tokens at {rates.tokens_per_second:,.0f} a second ({rates.source}), disk "
        f"{size(int(rates.read_bytes_per_second))}/s read, {size(int(rates.write_bytes_per_second))}/s written: "
        f"about {plan.seconds:,.0f} s; in all {size(plan.read_bytes)} are read and {size(plan.written_bytes)} written, "
        f"with {plan.num_commits:,} commit{'' if plan.num_commits == 1 else 's'}"
    )
    return tuple(lines)


def _explain_trail(plan: Plan, work: Work, sizes: Sizes, budget: Budget) -> str:
    """Return in words who trains the trail, and why."""
    if plan.trail_on_device:
        return "the GPU trains the trail, too"
    needed = size(_device_bytes(work, sizes, budget, 1, has_trail=True))
    why = "the items are divided" if plan.num_blocks > 1 else f"both would need {needed} there"
    if has_trail_on_device(work, sizes, budget, plan.num_blocks):
        why = "both do not fit the GPU of every worker"
    return f"the CPU trains the trail beside the GPU, as {why}"


def explain_refusal(work: Work, sizes: Sizes, budget: Budget, began: Division | None) -> str:
    """Return a message with the needs of the smallest division, and a remedy."""
    choices = [began.num_blocks] if began else sizes.sharing.block_counts(sizes.can_split, MAX_BLOCKS)
    if budget.device_bytes is not None:
        smallest_bytes = min(_device_bytes(work, sizes, budget, num_blocks) for num_blocks in choices)
        if smallest_bytes > budget.device_bytes:
            needed, given = two_sizes(smallest_bytes, budget.device_bytes)
            return (
                f"the smallest plan needs {needed} on the GPU, {size(budget.context_bytes)} of it for its context, "
                f"but the budget is {given}: raise --device-memory, lower train.vector_size, or raise "
                "store.partitions (of a root with events by `surf2vec repartition`)"
            )
    num_blocks = min(choices, key=sizes.item_bytes)
    chunk = began.chunk_partitions if began and began.num_blocks > 1 else 1
    slots_bytes = min(_slots_bytes(work, sizes, Division(each, num_blocks)) for each in (chunk, len(work.users)))
    item_bytes = _item_bytes(work, sizes, budget, num_blocks)
    needed, given = two_sizes(budget.overhead_bytes + item_bytes + slots_bytes, budget.host_bytes)
    blocks = f" in {num_blocks} blocks" if num_blocks > 1 else ""
    why = "this training, as it began," if began else "the smallest plan"
    saving = f"; train.trail_weight=0 saves {size(sizes.trail_images_bytes)}" if sizes.trail_bytes else ""
    return (
        f"{why} needs {needed}: {size(budget.overhead_bytes)} for the process, {size(item_bytes)} for "
        f"{sizes.num_items:,} items{blocks} and buffers, and {size(slots_bytes)} for slots of micro-partitions of up to "
        f"{work.most_users:,} users and {work.most_tokens:,} tokens, but the budget is {given}: raise "
        "--host-memory, lower train.vector_size, or raise store.partitions (of a root with events by `surf2vec repartition`)"
        f"{saving}"
    )
