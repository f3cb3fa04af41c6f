"""The kernel for NVIDIA GPUs, in Triton. A program trains a stream of users, whose rows stay in registers.

It agrees with the reference of the tests, with the same draws in the same order, for PV-DBOW in tiles.
`check_supported` lists the settings that need the CPU. The programs of an order run in parallel and share item rows without
locks (Hogwild). A row is read once a token and moved by atomic adds, so no step is lost, but a step may be computed from a row
that others moved since. Adagrad's rate comes from the sum after the program has added to it: if a thousand programs update one
fresh row, each makes a smaller step than the one before. Vectors are read past the first-level cache (.cg), which does not see
other processors' atomics. So a run on a GPU is not deterministic in its last digits. In Triton's interpreter (TRITON_INTERPRET=1,
tests) programs run one after the other, and it is deterministic. README.md counts the bytes a pair.
"""

import math
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from surf2vec.trainer.config import TRAIL_BIAS, TrainConfig
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.kernels.device import DeviceRecord, copy_back, make_scratch, on_device
from surf2vec.trainer.kernels.programs import list_targets, list_users, round_user
from surf2vec.trainer.kernels.signature import LEAST_LAG, TRAIL_TILE_USERS, Pass, backward_of
from surf2vec.trainer.kernels.tile_program import train_stream
from surf2vec.trainer.model.objectives import TrailTables
from surf2vec.trainer.model.rows import Items, Rows, TrailItems

MAX_TILE_VALUES, MAX_BLOCK_VALUES = 8192, 4096
"""Values that a program holds of a tile's users (8 warps of 32 threads with 32 values each), and of a block of negatives."""
VALUES_PER_THREAD = 32
KEEP_CHUNK, TRAIL_CHUNK, LIST_CHUNK, SCORED_VALUES = 64, 32, 128, 2**21
PRECISION = "tf32"
"""Of the factors in a tile's products: 11 bits on tensor cores, and sums of 24 bits. Before sm_80 all have 24."""
WIDE_ATOMICS = 90
"""The compute capability from which on one atomic add moves 16 bytes."""


def check_supported(config: TrainConfig) -> None:
    """Raise ConfigError, naming the setting, for settings that this kernel does not support."""
    for name, only in (("dm", 0), ("hs", 0), ("accumulate", 1), ("objective", "sampled_softmax")):
        value = getattr(config, name)
        if value != only:
            raise ConfigError(
                f"kernel gpu trains with train.{name} = {only} only, not {value}: change it, or train on the CPU"
            )
    if config.tile_users == 1:
        raise ConfigError("kernel gpu trains users in tiles: set train.tile_users above 1, or train on the CPU")
    lanes, dims = padded(config.tile_users), padded(max(config.interest_size, config.trail_size))
    if (values := lanes * max(lanes, dims)) > MAX_TILE_VALUES:
        raise ConfigError(
            f"kernel gpu holds at most {MAX_TILE_VALUES:,} values of a tile, but train.tile_users {config.tile_users} and "
            f"train.vector_size {config.vector_size} need {values:,}: lower one of them, or train on the CPU"
        )


def find_device() -> torch.device:
    """Return the GPU, or the CPU with Triton's interpreter. Raises ResourceError when there is neither."""
    if not isinstance(train_stream, triton.JITFunction):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        reason = "it lists none"
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:  # no driver, one that is too old, or torch for CPUs only
            reason = str(error).splitlines()[0]
        raise ResourceError(f"kernel gpu needs an NVIDIA GPU, and torch sees none here ({reason}): train on the CPU")
    return torch.device("cuda")


def train_users(users: Rows, items: Items, work: Pass) -> int:
    """Train the users `work.order` once, in place. Returns how many tokens subsampling kept.

    Copies all rows to the device and back. trainer/training/device_engine.py copies users while others are trained.
    """
    device = find_device()
    rows, outputs = on_device(users, device), on_device(items.outputs, device)
    check_supported(work.config)
    scratch = make_scratch(len(work.hashes), len(work.tokens), device)
    launch(rows, outputs, on_device(work, device, streams=work.streams), scratch)
    copy_back(rows, users)
    copy_back(outputs, items.outputs)
    return int(scratch.num_targets[: len(work.order)].sum())


def train_trail(trail: TrailItems, work: Pass, tables: TrailTables, backward: float) -> int:
    """Train the targets of the users `work.order` as trainer.kernels.cpu.train_trail. Copies all to the device and back."""
    device = find_device()
    rows, scratch = on_device(trail, device, **vars(tables)), make_scratch(len(work.hashes), len(work.tokens), device)
    launch_trail(rows, on_device(work, device, streams=work.streams), scratch, backward)
    copy_back(rows, trail)
    return int(scratch.num_targets[: len(work.order)].sum())


def round_to_bfloat16(users: Rows, work: Pass) -> NDArray[np.uint16]:
    """Return users' vectors as bfloat16 bits, as first_rows.round_to_bfloat16. Copies all to the device and back."""
    device, (num_users, num_dims) = find_device(), users.vectors.shape
    halves = torch.empty(num_users, num_dims, dtype=torch.int16, device=device)
    round_users(on_device(users, device), halves, on_device(work, device), make_scratch(num_users, 0, device))
    return halves.cpu().numpy().view(np.uint16)


def launch(users: DeviceRecord, outputs: DeviceRecord, work: DeviceRecord, scratch: DeviceRecord) -> None:
    """Start a pass over the users `work.order` on the device, in the current stream, without waiting."""
    config = work.config
    rows = (users.vectors, users.squares, outputs.vectors, outputs.squares, None, None, None, None)
    numbers = (1 / work.recency if work.recency else 0.0, float(config.l2), float(config.item_l2), config.handicap)
    constants = {
        "D": config.interest_size, "K": config.negative, "B": negatives_at_once(config.negative, config.interest_size),
        "M": config.tile_users, "W": 0, "NUM_FREE": config.num_free, "IS_TRAIL": False,
        "IS_ADAGRAD": config.optimizer == "adagrad", "IS_FROZEN": not work.update_items,
    }  # fmt: skip
    tables = DeviceRecord(**vars(work.sampling), shares=work.sampling.keep, l2s=None)
    _launch(work, scratch, rows, tables, 0, numbers, constants)


def launch_trail(trail: DeviceRecord, work: DeviceRecord, scratch: DeviceRecord, backward: float) -> None:
    """Start the training of the trail on the device, in the current stream, without waiting.

    It has the scratch arrays of the interest; so a pass's users and its trail are trained one after the other.
    """
    config = work.config
    tables = [tensor for rows in (trail.outputs, trail.inputs, trail.lags) for tensor in (rows.vectors, rows.squares)]
    constants = {
        "D": config.trail_size, "K": config.trail_negative, "B": negatives_at_once(config.trail_negative, config.trail_size),
        "M": TRAIL_TILE_USERS, "W": config.trail_window, "NUM_FREE": config.trail_size, "IS_TRAIL": True, "IS_ADAGRAD": True,
        "IS_FROZEN": False,
    }  # fmt: skip
    numbers = (0.0, 0.0, 0.0, math.log(config.negative_weight))
    _launch(work, scratch, (None, None, *tables), trail, backward_of(backward), numbers, constants)


def _launch(
    work: DeviceRecord, scratch: DeviceRecord, rows: tuple[Any, ...], tables: DeviceRecord, backward: int,
    numbers: tuple[float, ...], constants: dict[str, Any],
) -> None:  # fmt: skip
    """List the targets of each user, then the users of each stream that have any, and train them, an inner loop without branches.

    backward: as of `list_targets`.
    """
    num_users, num_streams, is_trail = len(work.order), len(work.streams) - 1, constants["IS_TRAIL"]
    if num_users == 0:
        return
    keys, capability = _unmixed_keys(work, scratch), find_capability(rows[2].device)
    list_targets[(num_users,)](
        work.tokens, work.starts, work.ends, keys, work.order, tables.shares, scratch.listed, scratch.targets,
        scratch.num_targets, backward, IS_TRAIL=is_trail, CHUNK=TRAIL_CHUNK if is_trail else KEEP_CHUNK, num_warps=1,
    )  # fmt: skip
    list_users[(num_streams,)](
        work.streams, scratch.num_targets, scratch.coming, scratch.num_coming, CHUNK=LIST_CHUNK, num_warps=1
    )
    train_stream[(num_streams,)](
        *rows, work.tokens, work.starts, work.ends, keys, work.order, work.alphas, scratch.targets, scratch.num_targets,
        work.streams, scratch.coming, scratch.num_coming, tables.thresholds, tables.aliases, tables.corrections, tables.l2s,
        len(rows[2]), *numbers, **constants, HAS_WIDE_ATOMICS=capability >= WIDE_ATOMICS, PRECISION=PRECISION,
        num_warps=num_warps(work.config, capability, is_trail),
    )  # fmt: skip


def score_trail(
    trail: DeviceRecord, work: DeviceRecord, sample: tuple[torch.Tensor, ...], scores: torch.Tensor
) -> None:
    """Write the scores of a sample's tokens, as of `TrailSlot.draw`, to scores float32[S, 1 + K], without waiting."""
    lag_W = torch.arange(work.config.trail_window, device=scores.device)
    weight_W = trail.lags.vectors[: len(lag_W), 0].clamp(min=LEAST_LAG)
    num_at_once = max(1, SCORED_VALUES // (scores.shape[1] * trail.outputs.vectors.shape[1]))
    for starts, places, rows, found in zip(*(one.split(num_at_once) for one in (*sample, scores)), strict=False):
        at_SW = places[:, None] - 1 - lag_W
        pages_SW = work.tokens[at_SW.clamp(min=0)].long()
        weights_SW = weight_W * ((at_SW >= starts[:, None]) & (pages_SW != rows[:, :1]))
        sums_SD = (weights_SW[:, :, None] * trail.inputs.vectors[pages_SW]).sum(1)
        sums_SD /= weights_SW.square().sum(1, keepdim=True).clamp(min=1e-12).sqrt().sqrt()
        sums_SD[:, -1] = TRAIL_BIAS
        torch.sum(trail.outputs.vectors[rows] * sums_SD[:, None], dim=2, out=found[: len(rows)])


def round_users(users: DeviceRecord, halves: torch.Tensor, work: DeviceRecord, scratch: DeviceRecord) -> None:
    """Write the vectors of a pass's users as bfloat16 to halves int16[n, D], with the bits of first_rows.round_to_bfloat16."""
    num_users, num_dims = users.vectors.shape
    round_user[(num_users,)](
        users.vectors.view(torch.int32), _unmixed_keys(work, scratch), halves, D=num_dims, num_warps=1
    )


def _unmixed_keys(work: DeviceRecord, scratch: DeviceRecord) -> torch.Tensor:
    """Return the users' keys of the epoch, int64[N], which each program mixes."""
    key = np.uint64(work.epoch_key).view(np.int64).item()
    return torch.bitwise_xor(work.hashes, key, out=scratch.keys[: len(work.hashes)])


def padded(num: int) -> int:
    """Return how many a program holds for so many lanes, negatives or dimensions."""
    return int(max(16, triton.next_power_of_2(num)))


def negatives_at_once(num_negatives: int, num_dims: int) -> int:
    """Return how many negatives a program holds at once; more are read block after block."""
    return max(16, min(padded(num_negatives), MAX_BLOCK_VALUES // padded(num_dims)))


def num_warps(config: TrainConfig, capability: int, is_trail: bool = False) -> int:
    """Return the warps of a program: those that train most on a multiprocessor, by the table in docs/card.md.

    Fewer warps take fewer instructions a pair, and wait less for each other. Before sm_90 a tile needs twice as many to keep its
    values in registers, before sm_80, where tensor cores do not take float32, twice as many again.
    """
    if is_trail:  # two sums of the lanes
        held = max(negatives_at_once(config.trail_negative, config.trail_size), 2 * TRAIL_TILE_USERS)
        values, scale = held * padded(config.trail_size), 1 if capability >= 80 else 2
    else:
        lanes, dims = padded(config.tile_users), padded(config.interest_size)
        held = max(negatives_at_once(config.negative, config.interest_size), lanes)
        values, scale = held * max(dims, lanes), 1 if capability >= 90 else 2 if capability >= 80 else 4
    return min(max(values // VALUES_PER_THREAD // 32 * scale, 1), 8)


def find_capability(device: torch.device) -> int:
    """Return the card's compute capability, 90 for sm_90; 90 for the interpreter."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
