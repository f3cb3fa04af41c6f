"""What the tests of the trainer share: memory that nobody filled holds NaN, or -1 as a whole number, so that it is not read."""

import sys
from typing import Any

import numpy as np
import pytest

from surf2vec.trainer.system.memory import Bytes, make_pages
from surf2vec.trainer.training import slots

POISON = 0xFF
"""A byte of which every float is NaN."""


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """For arrays and tensors that are to be filled, and for pages into which files are read and visits are copied.

    Not for pages of new tables: the system gives zeros, and that is how a table begins.
    """
    empty = np.empty

    def make_array(*arguments: Any, **named: Any) -> Any:
        array = empty(*arguments, **named)
        if array.dtype != object:
            array.reshape(-1).view(np.uint8).fill(POISON)
        return array

    def make_poisoned_pages(num_bytes: int) -> Bytes:
        pages = make_pages(num_bytes)
        pages.fill(POISON)
        return pages

    monkeypatch.setattr(np, "empty", make_array)
    monkeypatch.setattr(slots, "make_pages", make_poisoned_pages)
    if device := sys.modules.get("surf2vec.trainer.kernels.device"):  # it imports torch, as only some tests do
        monkeypatch.setattr(device, "make_pages", make_poisoned_pages)
    if torch := sys.modules.get("torch"):
        poison_tensors(monkeypatch, torch)


def poison_tensors(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    """For tensors, the same."""
    empty = torch.empty

    def make_tensor(*arguments: Any, **named: Any) -> Any:
        tensor = empty(*arguments, **named)
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
        if tensor.is_cuda:  # the engine's streams do not wait for the one that fills it
            torch.cuda.current_stream(tensor.device).synchronize()
        return tensor

    monkeypatch.setattr(torch, "empty", make_tensor)
