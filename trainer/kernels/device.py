"""What a kernel finds on a device: rows, tables and a pass, as tensors. trainer/training/device_engine.py puts them there."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.config import TrainConfig


@dataclass(frozen=True)
class DeviceRows:
    """trainer.model.rows.Rows on the device: vectors float32[n, D], in one piece; squares float32[n]."""

    vectors: torch.Tensor
    squares: torch.Tensor


@dataclass(frozen=True)
class DeviceSampling:
    """trainer.model.objectives.Sampling on the device. thresholds, keep int64[V]; aliases int32[V]; corrections float32[V]."""

    thresholds: torch.Tensor
    aliases: torch.Tensor
    keep: torch.Tensor
    corrections: torch.Tensor


@dataclass(frozen=True)
class DevicePass:
    """trainer.kernels.signature.Pass on the device.

    hashes int64[N]: the bits of the unsigned hashes, for torch does no arithmetic on uint64; the rest as in Pass.
    """

    config: TrainConfig
    tokens: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    hashes: torch.Tensor
    order: torch.Tensor
    alphas: torch.Tensor
    sampling: DeviceSampling
    recency: float
    epoch_key: int
    update_items: bool = True


@dataclass(frozen=True)
class Scratch:
    """What a pass writes for itself, for as many users and tokens as it has or more.

    keys int64[N]; kept int32[T]: the positions that subsampling keeps of a history, where its tokens begin; num_kept int32[M].
    """

    keys: torch.Tensor
    kept: torch.Tensor
    num_kept: torch.Tensor


def make_scratch(num_users: int, num_tokens: int, device: torch.device) -> Scratch:
    """Scratch for passes of up to so many users and tokens."""
    return Scratch(
        torch.empty(num_users, dtype=torch.int64, device=device),
        torch.empty(num_tokens, dtype=torch.int32, device=device),
        torch.empty(num_users, dtype=torch.int32, device=device),
    )


Launch = Callable[[DeviceRows, DeviceRows, DevicePass, Scratch], None]
"""`launch(users, items, work, scratch)` has the device train users as a kernel does, in the current stream; it does not wait."""


@dataclass(frozen=True)
class Accelerator:
    """A device, and the way to train what is on it."""

    device: torch.device
    launch: Launch
