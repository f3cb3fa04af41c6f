"""The ladder's first step: PV-DBOW as one writes it in PyTorch, and the evaluation that is asked after each of its epochs.

What is learned is what our trainer learns: for each pair of a user and its item a softmax over the item and drawn ones,
corrected for how often they are drawn, with L2 on the rows that are touched, by Adagrad. Its settings were chosen once, on
the log of the ladder, for the quality after a few epochs.

    python -m tests.benchmarks.ladder_torch FOLDER EPOCHS
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

DIMENSIONS, NEGATIVES, EXPONENT = 128, 20, 0.75
BATCH_PAIRS = 1024
LEARNING_RATE, L2, FIRST_RANGE = 0.15, 0.1, 0.1
BATCH_USERS, TOP = 1024, 20


class Pairs(Dataset[tuple[Any, Any]]):
    """A pair of a user and one of its items a sample, out of two arrays int32[T]."""

    def __init__(self, users: NDArray[np.int32], items: NDArray[np.int32]) -> None:
        self.users, self.items = users, items

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, pair: int) -> tuple[Any, Any]:
        return self.users[pair], self.items[pair]


class Doc2Vec(nn.Module):
    """User and item vectors, and the noise that negatives come from; counts int64[V]."""

    def __init__(self, num_users: int, counts: NDArray[np.int64]) -> None:
        super().__init__()
        self.users = nn.Embedding(num_users, DIMENSIONS, sparse=True)
        self.items = nn.Embedding(len(counts), DIMENSIONS, sparse=True)
        for table in (self.users, self.items):
            nn.init.uniform_(table.weight, -FIRST_RANGE, FIRST_RANGE)
        noise = torch.from_numpy(counts).float() ** EXPONENT
        self.register_buffer("noise", noise)
        self.register_buffer("corrections", (noise / noise.mean()).clamp(min=1e-30).log())

    def loss(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """The mean loss of pairs, int[B] each."""
        drawn = torch.multinomial(self.noise, len(users) * NEGATIVES, replacement=True).view(-1, NEGATIVES)
        u, v, negatives = self.users(users), self.items(items), self.items(drawn)
        own = (u * v).sum(1, keepdim=True) - self.corrections[items, None]
        others = torch.bmm(u[:, None], negatives.mT)[:, 0] - self.corrections[drawn]
        others = others.masked_fill(items[:, None] == drawn, -torch.inf)
        scores = torch.cat((own, others), dim=1)
        first = torch.zeros(len(scores), dtype=torch.int64)
        return functional.cross_entropy(scores, first) + L2 * (u.square().sum(1) + v.square().sum(1)).mean()


def evaluate(users: torch.Tensor, items: torch.Tensor, question: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Held-out loss (a softmax over all items not seen) and hit@20 of vectors float32[n, D] and [V, D].

    Losses are added up as tensors, so that autograd keeps its graph until the end: what comes of a loop without
    `torch.no_grad()`.
    """
    loss, hits = torch.zeros(()), 0
    for start in range(0, len(question["rows"]), BATCH_USERS):
        batch = slice(start, start + BATCH_USERS)
        wanted = question["items"][batch]
        bounds = torch.tensor([start, start + len(wanted)])
        first, last = torch.searchsorted(question["seen_rows"], bounds).tolist()
        scores = users[question["rows"][batch]] @ items.T
        seen = question["seen_rows"][first:last] - start, question["seen_items"][first:last]
        scores = scores.index_put(seen, torch.tensor(-torch.inf))
        loss = loss + functional.cross_entropy(scores, wanted, reduction="sum")
        hits += int(((scores > scores.gather(1, wanted[:, None])).sum(1) < TOP).sum())
    return float(loss.detach()) / len(question["rows"]), hits / len(question["rows"])


def train(folder: Path, epochs: int) -> dict[str, Any]:
    """Train and evaluate after each epoch; returns the clock, and leaves the vectors in files.

    The clock begins before the first batch: imports, files and the first values of the vectors are not in it.
    """
    torch.manual_seed(1)
    names = ("rows", "items", "seen_rows", "seen_items")
    question = {name: torch.from_numpy(np.load(folder / f"question_{name}.npy")) for name in names}
    model = Doc2Vec(int(np.load(folder / "num_users.npy")), np.load(folder / "counts.npy"))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
    pairs = Pairs(*(np.load(folder / f"pairs_{name}.npy", mmap_mode="r") for name in ("users", "items")))
    batches = DataLoader(pairs, batch_size=BATCH_PAIRS, shuffle=True)
    start = time.perf_counter()
    for epoch in range(epochs):
        for users, items in batches:
            optimizer.zero_grad()
            model.loss(users, items).backward()
            optimizer.step()
        print(f"epoch {epoch + 1}:", *evaluate(model.users.weight, model.items.weight, question), file=sys.stderr)
    seconds = time.perf_counter() - start
    for name, table in (("users", model.users), ("items", model.items)):
        np.save(folder / f"trained_{name}.npy", table.weight.detach().numpy())
    return {"seconds": seconds, "epochs": epochs}


if __name__ == "__main__":
    torch.sparse.check_sparse_tensor_invariants.disable()  # as by default; said aloud, or Adagrad warns
    print(json.dumps(train(Path(sys.argv[1]), int(sys.argv[2]))))
