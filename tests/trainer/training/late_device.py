"""A made-up device for trainer.training.device_engine: it acts as late as it may, its streams in any order."""

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from surf2vec.trainer.kernels import Kernel


def kernel_of(launch: Callable[..., Any], device: str = "cpu", gpu: Any = None, **others: Any) -> Kernel:
    """A kernel that trains the interest by `launch`; the rest is of `gpu`, if given, or of `others`."""
    module = SimpleNamespace(**(vars(gpu) if gpu else {}) | {"launch": launch} | others)
    train_users = gpu.train_users if gpu else launch
    return Kernel("gpu", "a test's", train_users, device=torch.device(device), gpu=module)


class LateDevice:
    """Streams that do nothing until somebody waits, and then any that is ready, by chance: a race that events allow happens."""

    def __init__(self, seed: int) -> None:
        self.random, self.streams, self.num_done = random.Random(seed), [], 0
        self.current: LateStream | None = None

    def stream(self, _: torch.device) -> "LateStream":
        self.streams.append(LateStream(self))
        return self.streams[-1]

    def run_until(self, event: "LateEvent") -> None:
        while not event.has_come:
            ready = [stream for stream in self.streams if stream.is_ready]
            assert ready, "every stream waits for another"
            self.random.choice(ready).do_next()
            self.num_done += 1


class LateEvent:
    def __init__(self, device: LateDevice) -> None:
        self.device, self.has_come = device, False

    def wait(self) -> None:
        self.device.run_until(self)

    def seconds_since(self, earlier: "LateEvent") -> float:
        assert self.has_come
        assert earlier.has_come
        return 0.0


class LateStream:
    def __init__(self, device: LateDevice) -> None:
        self.device, self.asked = device, deque()

    @property
    def is_ready(self) -> bool:
        return bool(self.asked) and (not isinstance(self.asked[0], LateEvent) or self.asked[0].has_come)

    def do_next(self) -> None:
        work = self.asked.popleft()
        if not isinstance(work, LateEvent):
            self.device.current = self
            work()
            self.device.current = None

    def run(self, work: Callable[[], None]) -> None:
        self.asked.append(work)

    def after(self, event: LateEvent) -> None:
        self.asked.append(event)

    def mark(self) -> LateEvent:
        event = LateEvent(self.device)
        self.asked.append(lambda: setattr(event, "has_come", True))
        return event
