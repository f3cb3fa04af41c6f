"""Where vectors are trained: on the GPU when there is one and a budget for it was given, otherwise on the CPU; and why."""

from dataclasses import dataclass

from tasks.config import ResourcesConfig
from trainer.config import TrainConfig
from trainer.errors import ConfigError, ResourceError
from trainer.units import parse_bytes


@dataclass(frozen=True)
class Device:
    """The kernel's name, the budget on the GPU or None, and what is to be said of the choice, if anything."""

    kernel: str
    memory_bytes: int | None
    reason: str = ""


def pick_device(config: TrainConfig, resources: ResourcesConfig) -> Device:
    """The device for these settings on this machine."""
    if not resources.device_memory:
        return Device("cpu", None)
    from trainer.kernels.gpu import check_supported, find_device

    try:
        check_supported(config)
        find_device()
    except (ConfigError, ResourceError) as error:
        return Device("cpu", None, f"resources.device_memory is not used: {error}")
    return Device("gpu", parse_bytes(resources.device_memory))
