"""Kernels: the inner loop of training, in several implementations of one signature. Picked once, with a logged reason."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.errors import ConfigError, ResourceError
from surf2vec.trainer.kernels.signature import TrainUsers
from surf2vec.trainer.system.memory import free_device_bytes

if TYPE_CHECKING:  # torch takes a second to import, and the CPU kernel does without
    import torch


@dataclass(frozen=True)
class Kernel:
    """A kernel. reason: describes the choice for the log; device: of its rows, if not the host's memory; gpu: the module that
    trains there (kernels/gpu.py); free_bytes: on the device before this process used it, if known.
    """

    name: str
    reason: str
    train_users: TrainUsers
    device: "torch.device | None" = None
    gpu: Any = None
    free_bytes: int | None = None


def pick_kernel(name: str, config: TrainConfig) -> Kernel:
    """Return the kernel called `name`: `cpu` or `gpu`.

    Raises ConfigError for another name or for settings that the kernel does not support, ResourceError without a GPU.
    """
    if name == "cpu":
        from surf2vec.trainer.kernels import cpu

        used = cpu.used_threads(config)
        is_deterministic = used == 1 or config.accumulate > 1
        tiles = f"tiles of {config.num_lanes} users, " if config.has_tiles else ""
        order = "deterministic" if is_deterministic else "item rows shared without locks"
        return Kernel("cpu", f"numba on {used} thread{'s' if used > 1 else ''}, {tiles}{order}", cpu.train_users)
    if name == "gpu":
        gpu = import_gpu()
        gpu.check_supported(config)
        device = gpu.find_device()
        where = "Triton's interpreter" if device.type == "cpu" else "Triton on the GPU, item rows shared without locks"
        reason, free_bytes = f"{where}, tiles of {config.tile_users} users", free_device_bytes()
        return Kernel("gpu", reason, gpu.train_users, device=device, gpu=gpu, free_bytes=free_bytes)
    raise ConfigError(f"there is no kernel {name!r}: take cpu or gpu")


def import_gpu() -> Any:
    """Return the module of the GPU kernel. Raises ResourceError where torch or Triton is not installed."""
    try:
        from surf2vec.trainer.kernels import gpu
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise ResourceError(
            f"kernel gpu needs {error.name}, which is not installed: install the extra surf2vec[torch] with a CUDA build of "
            "torch, which brings triton, or train on the CPU"
        ) from None
    return gpu
