"""Item blocks that go round the workers: each trains one of its few, passes it to the worker before it, and receives those of
the one after it. No row has two writers, and no block is on two workers.

With one block a worker it waits for the next after each turn; with more the passing is done while it trains another.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.store.images import Image
from trainer.system.pages import Bytes
from trainer.workers.group import Workers


@dataclass
class Held:
    """A block that a worker has, or that is on its way to it: then `arriving` is what to wait for."""

    block: int
    image: Image
    arriving: Any = None


class Ring:
    """The blocks of one worker; read: a block as it lies in the store or begins; make: the image of a block, not filled yet."""

    def __init__(
        self, workers: Workers, num_blocks: int, read: Callable[[int], Image], make: Callable[[int, Bytes | None], Image]
    ) -> None:  # fmt: skip
        self.workers, self.num_blocks = workers, num_blocks
        self.passed_bytes, self.wait_seconds = 0, 0.0
        self._read, self._make = read, make
        self._held: deque[Held] = deque()
        self._leaving: tuple[Any, Bytes] | None = None

    def begin(self, blocks: list[int]) -> Image:
        """Take up the blocks that this worker has; returns the first, which is trained first."""
        self._held = deque(Held(block, self._read(block)) for block in blocks)
        return self._held[0].image

    def turn(self) -> tuple[int, Image]:
        """Pass on the block that was trained; returns the next one, with its number."""
        started = time.perf_counter()
        trained = self._held.popleft()
        spare = None
        if self._leaving is not None:
            sending, spare = self._leaving
            self.workers.wait(sending)
        coming = (trained.block + self.num_blocks // self.workers.num) % self.num_blocks
        image = self._make(coming, spare)
        out, into = trained.image.pages[: trained.image.num_bytes], image.pages[: image.num_bytes]
        sending, arriving = self.workers.pass_on(out, into)
        self.passed_bytes += len(out)
        self._leaving = sending, trained.image.pages
        self._held.append(Held(coming, image, arriving))
        following = self._held[0]
        self._arrive(following)
        self.wait_seconds += time.perf_counter() - started
        return following.block, following.image

    def settle(self) -> list[tuple[int, Image]]:
        """Wait for what is on its way; returns the blocks that this worker has, with their numbers."""
        started = time.perf_counter()
        for held in self._held:
            self._arrive(held)
        self.wait_seconds += time.perf_counter() - started
        return [(held.block, held.image) for held in self._held]

    def _arrive(self, held: Held) -> None:
        if held.arriving is not None:
            self.workers.wait(held.arriving)
            held.arriving = None
