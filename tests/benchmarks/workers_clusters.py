"""What the cost model says of machines that are not here: PREDICTED, nothing of it was measured.

The planner divides the work, as the trainer would (tests/benchmarks/workers_cost.py); the figures of machines are those of
data sheets, and assumptions where it says so. Training: 5 private negatives, 128 dimensions, 25 tokens a user, float32.
"""

import math
from dataclasses import replace
from typing import Any

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, ResourceError
from tests.benchmarks.workers_cost import (
    ALONE,
    Device,
    Epoch,
    Memory,
    Network,
    Volume,
    named,
    plan_epoch,
    predict_epoch,
)
from tests.benchmarks.workers_quality import MODES

TOKENS_A_USER, NUM_ITEMS, ROW_BYTES = 25, 10_000_000, 516
USERS = (20_000_000, 200_000_000)
USERS_A_PARTITION = 50_000
WORKERS = (1, 8, 64, 512)
"""One GPU; one machine of eight; eight machines; sixty-four."""
GPUS_PER_MACHINE = 8

PAIRS_PER_SECOND = 300e6  # our mark for an H200 (design, section 6), not its limit
TOUCHED_BYTES_PER_SECOND = 4.8e12  # H200, HBM3e, data sheet
HOST_LINK_BYTES_PER_SECOND = 64e9  # PCIe 5.0 x16, one way, data sheet
NVLINK_BYTES_PER_SECOND = 450e9  # NVLink 4, one way, data sheet
NETWORK_BYTES_PER_SECOND = 50e9  # one ConnectX-7 of 400 Gbit/s a machine, data sheet
NVLINK_HOP_SECONDS, NETWORK_HOP_SECONDS = 3e-6, 6e-6  # assumed: a step of NCCL, of few bytes
MEETING_HOP_SECONDS = 30e-6  # assumed: a step of gloo over TCP, which tells numbers round a ring
REMAPPING_SECONDS = (
    5.6e-9  # measured on one core here: a token is looked up in its block and users are ordered, each visit
)
DEVICE_MEMORY, HOST_MEMORY = 140 * 10**9, 250 * 10**9  # a GPU's, and its share of a machine of 2 TB

GPU = Device(
    PAIRS_PER_SECOND,
    ROW_BYTES / TOKENS_A_USER / HOST_LINK_BYTES_PER_SECOND,
    TOUCHED_BYTES_PER_SECOND,
    is_overlapped=True,
)
"""A visit copies the users to the GPU, and home at the same time."""
REMAPPED = replace(GPU, visit_seconds=max(GPU.visit_seconds, REMAPPING_SECONDS))
"""As the trainer is now: with several item blocks the host looks up every token at each visit, while the GPU trains."""


def predict_clusters() -> list[dict[str, Any]]:
    """A case for each size, number of workers, and way that fits."""
    cases = []
    for num_users in USERS:
        alone = predict_epoch(plan(num_users, 1, "auto"), GPU).total
        for num_workers in WORKERS:
            for mode in MODES if num_workers > 1 else ("auto",):
                try:
                    cases.append(show(num_users, alone, plan(num_users, num_workers, mode)))
                except (ConfigError, ResourceError):
                    continue  # the planner refuses it
    return cases


def plan(num_users: int, num_workers: int, mode: str) -> Epoch:
    """An epoch of so many users, in a power of two of micro-partitions, four a worker at least."""
    num_partitions = 2 ** math.ceil(math.log2(max(num_users / USERS_A_PARTITION, 4 * num_workers)))
    users = [num_users // num_partitions] * num_partitions
    volume = Volume(users, [num * TOKENS_A_USER for num in users], NUM_ITEMS)
    config = named(TrainConfig(negative=5, parts="interest"), mode)  # several GPUs refuse a path
    return plan_epoch(volume, num_workers, config, Memory(HOST_MEMORY, DEVICE_MEMORY))


def network(num_workers: int) -> Network:
    """Between GPUs of one machine NVLink; of several the slowest link of the ring, each machine's one way out."""
    if num_workers == 1:
        return ALONE
    is_one = num_workers <= GPUS_PER_MACHINE
    bytes_per_second = NVLINK_BYTES_PER_SECOND if is_one else NETWORK_BYTES_PER_SECOND
    hop = NVLINK_HOP_SECONDS if is_one else NETWORK_HOP_SECONDS
    sum_seconds = 2 * math.ceil(math.log2(num_workers)) * hop  # NCCL adds few bytes up in trees since 2.4
    return Network(bytes_per_second, bytes_per_second, sum_seconds, hop, (num_workers - 1) * MEETING_HOP_SECONDS)


def show(num_users: int, alone: float, epoch: Epoch) -> dict[str, Any]:
    """A row of the table. Efficiency, the ratio: what one GPU takes, over what all of them together do."""
    links = network(epoch.num_workers)
    seconds = predict_epoch(epoch, REMAPPED if epoch.num_blocks > 1 else GPU, links)
    return {
        "case": f"PREDICTED, {num_users // 10**6} M users, {epoch.num_workers} GPUs, {epoch.mode}",
        "ratio": alone / seconds.total / epoch.num_workers, "mark": "none", "passed": True,
        "epoch, seconds": seconds.total, "training": seconds.training, "summing": seconds.summing,
        "passing": seconds.passing, "meeting": seconds.meeting, "a worker sends": round(epoch.sent_bytes),
        "blocks": epoch.num_blocks, "without remapping": predict_epoch(epoch, GPU, links).total,
    }  # fmt: skip
