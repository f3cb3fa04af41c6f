"""The kernel for NVIDIA GPUs, in Triton: a program takes a user, whose row stays in registers over all of its tokens.

It agrees with the reference of the tests, with the same draws in the same order, for PV-DBOW with drawn items, where each token
has negatives of its own: users do not walk in tiles here. `check_supported` lists the settings that need the CPU. The programs
of an order run in parallel and share item rows without locks (Hogwild). A row is read once a token and moved by atomic adds, so
no step is lost, but a step may be computed from a row that others moved since. Adagrad's rate comes from the sum that the
atomic add returns: if a thousand programs update one fresh row, each makes a smaller step than the one before. Vectors are read
past the first-level cache (.cg), which does not see other processors' atomics. So a run on a GPU is not deterministic in its
last digits. In Triton's interpreter (TRITON_INTERPRET=1, tests) programs run one after the other, and it is deterministic.

Bytes a pair, D dims, K private negatives, float32. Naive: user, positive and negatives are read and written,
2 * 4 D (2 + K) = 7,168 at D 128, K 5. Here: the user's row moves once a history of T tokens, 8 D / T; rows of items 8 D (1 + K),
6,144; the alias table and corrections 32-byte sectors, 96 (1 + K) at most, which mostly stay in the second-level cache.
"""

from typing import Any

import numpy as np
import torch
import triton

from trainer.config import TrainConfig
from trainer.errors import ConfigError, ResourceError
from trainer.kernels.device import Accelerator, DevicePass, DeviceRows, DeviceSampling, Scratch, Stream, make_scratch
from trainer.kernels.programs import keep_tokens, train_user
from trainer.kernels.signature import Pass
from trainer.model.objectives import Sampling
from trainer.model.rows import Items, Rows

MAX_NUMBERS = 32_768
"""Numbers of item rows that a program holds: 16 warps of 32 threads with 64 registers each for them."""

NUMBERS_A_THREAD = 32
KEEP_CHUNK = 64


def check_supported(config: TrainConfig) -> None:
    """Raise ConfigError, naming the setting, for settings that this kernel does not support."""
    for name, only in (("dm", 0), ("dbow_words", 0), ("hs", 0), ("accumulate", 1)):
        value = getattr(config, name)
        if value != only:
            raise ConfigError(
                f"kernel gpu trains with train.{name} = {only} only, not {value}: change it, or train on the CPU"
            )
    num_rows = triton.next_power_of_2(config.negative)
    num_numbers = num_rows * max(triton.next_power_of_2(config.interest_size), num_rows)
    if num_numbers > MAX_NUMBERS:
        raise ConfigError(
            f"kernel gpu holds at most {MAX_NUMBERS:,} numbers a token, but train.negative {config.negative} and "
            f"train.vector_size {config.interest_size} need {num_numbers:,}: lower one of them, or train on the CPU"
        )


def find_device() -> torch.device:
    """Return the GPU, or the CPU with Triton's interpreter. Raises ResourceError when there is neither."""
    if not isinstance(train_user, triton.JITFunction):
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
    device_users, device_outputs = copy_rows(users, device), copy_rows(items.outputs, device)
    check_supported(work.config)
    scratch = make_scratch(len(work.hashes), len(work.tokens), device)
    launch(device_users, device_outputs, copy_pass(work, copy_sampling(work.sampling, device)), scratch)
    for host_rows, device_rows in ((users, device_users), (items.outputs, device_outputs)):
        host_rows.vectors[:] = device_rows.vectors.cpu().numpy()
        host_rows.squares[:] = device_rows.squares.cpu().numpy()
    return int(scratch.num_kept[: len(work.order)].sum())


def time_launch(accelerator: Accelerator, users: Rows, items: Items, work: Pass) -> float:
    """Return the seconds in which the device trains a pass, with all data on it; the second of two, measured by its events."""
    device = accelerator.device
    rows, outputs = copy_rows(users, device), copy_rows(items.outputs, device)
    device_pass = copy_pass(work, copy_sampling(work.sampling, device))
    scratch, stream = make_scratch(len(work.hashes), len(work.tokens), device), Stream(device)
    for _ in range(2):
        started = stream.mark()
        stream.run(lambda: accelerator.launch(rows, outputs, device_pass, scratch))
        ended = stream.mark()
        ended.wait()
    return ended.seconds_since(started)


def launch(users: DeviceRows, outputs: DeviceRows, work: DevicePass, scratch: Scratch) -> None:
    """Start a pass over the users `work.order` on the device, in the current stream, without waiting.

    Subsampling is a separate launch, which writes the kept positions of a history from the start of its tokens on. The
    inner loop is then without branches.
    """
    config, num_users = work.config, len(work.order)
    num_items, dims = outputs.vectors.shape
    if num_users == 0:
        return
    key = np.uint64(work.epoch_key).view(np.int64).item()
    keys = torch.bitwise_xor(work.hashes, key, out=scratch.keys[: len(work.hashes)])
    keep_tokens[(num_users,)](
        work.tokens, work.starts, work.ends, keys, work.order, work.sampling.keep, scratch.kept, scratch.num_kept,
        CHUNK=KEEP_CHUNK, num_warps=1,
    )  # fmt: skip
    train_user[(num_users,)](
        users.vectors, users.squares, outputs.vectors, outputs.squares,
        work.tokens, work.starts, work.ends, keys, work.order, work.alphas, scratch.kept, scratch.num_kept,
        work.sampling.thresholds, work.sampling.aliases, work.sampling.corrections,
        num_items, 1 / work.recency if work.recency else 0.0, float(config.l2), float(config.item_l2), config.handicap,
        D=dims, K=config.negative, NUM_FREE=config.num_free,
        IS_SOFTMAX=config.objective == "sampled_softmax", IS_ADAGRAD=config.optimizer == "adagrad",
        IS_FROZEN=not work.update_items, num_warps=num_warps(config),
    )  # fmt: skip


def num_warps(config: TrainConfig) -> int:
    """Return the warps of a program: a thread has `NUMBERS_A_THREAD` numbers of item rows; 1 for 128 dims and 5 negatives."""
    warps = (
        triton.next_power_of_2(config.negative)
        * triton.next_power_of_2(config.interest_size)
        // (32 * NUMBERS_A_THREAD)
    )
    return min(max(triton.next_power_of_2(warps + 1) // 2, 1), 16)


def copy_rows(rows: Rows, device: torch.device) -> DeviceRows:
    """Copy rows to the device."""
    return DeviceRows(**_copies(rows, device))


def copy_sampling(sampling: Sampling, device: torch.device) -> DeviceSampling:
    """Copy the sampling tables to the device; once for a training."""
    return DeviceSampling(**_copies(sampling, device))


def copy_pass(work: Pass, sampling: DeviceSampling) -> DevicePass:
    """Copy a pass to the device of `sampling`."""
    copies = _copies(work, sampling.keep.device) | {"sampling": sampling}
    return DevicePass(**{name: value for name, value in copies.items() if name != "tree"})


def _copies(fields: Any, device: torch.device) -> dict[str, Any]:
    """Return the fields of a dataclass, with arrays copied to the device; uint64 becomes int64 of the same bits."""
    copies = dict(vars(fields))
    for name, value in copies.items():
        if isinstance(value, np.ndarray):
            copies[name] = torch.tensor(value.view(np.int64) if value.dtype == np.uint64 else value, device=device)
    return copies
