"""Where vectors are trained: on GPUs when there are some and a budget for them was given, otherwise on the CPU; by how many
workers; and why.
"""

from dataclasses import dataclass

from tasks.config import ResourcesConfig
from trainer.config import TrainConfig
from trainer.errors import ConfigError, ResourceError
from trainer.system.units import parse_bytes


@dataclass(frozen=True)
class Device:
    """The kernel's name, the budgets on the GPUs in bytes (one for all, or one for each), and what is to be said of the choice,
    if anything.
    """

    kernel: str
    budgets: tuple[int, ...] = ()
    reason: str = ""

    @property
    def memory_bytes(self) -> int | None:
        """The budget on any of the GPUs."""
        return min(self.budgets, default=None)


def pick_device(config: TrainConfig, resources: ResourcesConfig) -> Device:
    """The device for these settings on this machine."""
    if not resources.device_memory:
        return Device("cpu")
    from trainer.kernels.gpu import check_supported, find_device

    try:
        check_supported(config)
        find_device()
    except (ConfigError, ResourceError) as error:
        return Device("cpu", reason=f"resources.device_memory is not used: {error}")
    return Device("gpu", tuple(parse_bytes(text) for text in resources.device_memory.split(",")))


def count_workers(device: Device, resources: ResourcesConfig) -> int:
    """How many workers train on this machine. Raises ConfigError where there are fewer GPUs, or not a budget for each."""
    num_devices = count_devices() if device.kernel == "gpu" else 1
    num_workers = resources.workers or num_devices
    if device.kernel == "gpu" and num_workers > num_devices:
        raise ConfigError(
            f"resources.workers is {num_workers}, one for each GPU, and {num_devices} are here: lower it, or set 0 to take all"
        )
    if len(device.budgets) > 1 and len(device.budgets) != num_workers:
        raise ConfigError(
            f"resources.device_memory has {len(device.budgets)} budgets for {num_workers} workers: give one, or one for each"
        )
    return num_workers


def count_devices() -> int:
    """The GPUs of this machine; 1 where their kernel runs without one, under Triton's interpreter."""
    import torch

    return max(1, torch.cuda.device_count())
