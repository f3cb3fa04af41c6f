"""Kernels: the inner loop of training, several implementations of one signature. Picked once, with the reason said."""

from dataclasses import dataclass

from trainer.errors import ConfigError
from trainer.kernels.signature import TrainUsers


@dataclass(frozen=True)
class Kernel:
    """A kernel, its name and why it was picked."""

    name: str
    reason: str
    train_users: TrainUsers


def pick_kernel(name: str = "cpu", threads: int = 0) -> Kernel:
    """The kernel called `name`: `cpu`, or `reference` for tests. Raises ConfigError for another name."""
    if name == "reference":
        from trainer.kernels import reference

        return Kernel("reference", "asked for by name; slow, one thread", reference.train_users)
    if name == "cpu":
        from trainer.kernels import cpu

        used = min(threads, cpu.max_threads()) if threads else cpu.max_threads()
        order = "deterministic" if used == 1 else "item rows shared without locks"
        return Kernel("cpu", f"numba on {used} thread{'s' if used > 1 else ''}, {order}", cpu.train_users)
    raise ConfigError(f"there is no kernel {name!r}: take cpu or reference")
