"""The ladder's first rungs: PV-DBOW as one writes it in PyTorch, and the evaluation that is asked after each of its epochs.

What is learned is what our trainer learns: for each pair of a user and its item a softmax over the item and drawn ones,
corrected for how often they are drawn, with L2 on the rows that are touched, by Adagrad. Its settings were chosen once, on
the log of the ladder, for the quality after a few epochs.

    python -m tests.benchmarks.ladder_torch FOLDER WAY     a rung by itself; WAY: the fields of `Way` as JSON
"""

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

DIMENSIONS, NEGATIVES, EXPONENT = 128, 20, 0.75
BATCH_PAIRS, BLOCK_PAIRS = 1024, 8
LEARNING_RATE, L2, FIRST_RANGE = 0.15, 0.1, 0.1
BATCH_USERS, TOP = 1024, 20


@dataclass(frozen=True)
class Way:
    """How a loop runs. is_shared: BLOCK_PAIRS share their negatives. limit_seconds: where it is stopped, at an epoch's end."""

    is_shared: bool = False
    epochs: int = 20
    limit_seconds: float = 200
    seed: int = 1
    device: str = "cpu"


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

    def __init__(self, num_users: int, counts: NDArray[np.int64], device: str) -> None:
        super().__init__()
        self.users = nn.Embedding(num_users, DIMENSIONS, sparse=True)
        self.items = nn.Embedding(len(counts), DIMENSIONS, sparse=True)
        for table in (self.users, self.items):
            nn.init.uniform_(table.weight, -FIRST_RANGE, FIRST_RANGE)
        noise = torch.from_numpy(counts).float() ** EXPONENT
        self.register_buffer("noise", noise)
        self.register_buffer("corrections", (noise / noise.mean()).clamp(min=1e-30).log())
        self.to(device)

    def loss(self, users: torch.Tensor, items: torch.Tensor, block_pairs: int) -> torch.Tensor:
        """The mean loss of pairs, int[B] each; `block_pairs` of them share their negatives. An odd rest is left out."""
        block_pairs = min(block_pairs, len(users))
        num_blocks = len(users) // block_pairs
        users, items = users[: num_blocks * block_pairs], items[: num_blocks * block_pairs]
        drawn = torch.multinomial(self.noise, num_blocks * NEGATIVES, replacement=True).view(num_blocks, 1, NEGATIVES)
        u, v, negatives = self.users(users), self.items(items), self.items(drawn.squeeze(1))
        own = (u * v).sum(1, keepdim=True) - self.corrections[items, None]
        blocks = u.view(num_blocks, block_pairs, DIMENSIONS)
        others = torch.bmm(blocks, negatives.mT) - self.corrections[drawn]
        is_own = items.view(num_blocks, block_pairs, 1) == drawn
        others = others.masked_fill(is_own, -torch.inf).view(-1, NEGATIVES)
        scores = torch.cat((own, others.to(own.dtype)), dim=1)
        first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        return functional.cross_entropy(scores, first) + L2 * (u.square().sum(1) + v.square().sum(1)).mean()


@dataclass(frozen=True)
class Question:
    """Held-out users: their rows and items int64[m], and what each has seen: seen_items[i] by the user at seen_rows[i]."""

    rows: torch.Tensor
    items: torch.Tensor
    seen_rows: torch.Tensor
    seen_items: torch.Tensor

    @classmethod
    def read(cls, folder: Path, device: str) -> "Question":
        names = ("rows", "items", "seen_rows", "seen_items")
        return cls(*(torch.from_numpy(np.load(folder / f"question_{name}.npy")).to(device) for name in names))


def evaluate(users: torch.Tensor, items: torch.Tensor, question: Question, keeps_graph: bool) -> tuple[float, float]:
    """Held-out loss (a softmax over all items not seen) and hit@20 of vectors float32[n, D] and [V, D].

    With `keeps_graph` autograd notes every operation, and as losses are added up as tensors all its graph stays until the
    end: what comes of a loop without `torch.no_grad()`.
    """
    with nullcontext() if keeps_graph else torch.no_grad():
        loss, hits = torch.zeros((), device=items.device), 0
        for start in range(0, len(question.rows), BATCH_USERS):
            batch = slice(start, start + BATCH_USERS)
            wanted = question.items[batch]
            bounds = torch.tensor([start, start + len(wanted)], device=items.device)
            first, last = torch.searchsorted(question.seen_rows, bounds).tolist()
            scores = users[question.rows[batch]] @ items.T
            seen = question.seen_rows[first:last] - start, question.seen_items[first:last]
            scores = scores.index_put(seen, torch.tensor(-torch.inf, device=items.device))
            loss = loss + functional.cross_entropy(scores, wanted, reduction="sum")
            above = (scores > scores.gather(1, wanted[:, None])).sum(1)
            hits += int((above < TOP).sum())
    return float(loss.detach()) / len(question.rows), hits / len(question.rows)


def make_batches(folder: Path) -> DataLoader[Any]:
    """The batches of an epoch, users and items int32[B] each."""
    tables = [np.load(folder / f"pairs_{name}.npy", mmap_mode="r") for name in ("users", "items")]
    return DataLoader(Pairs(*tables), batch_size=BATCH_PAIRS, shuffle=True)


def train(folder: Path, way: Way) -> dict[str, Any]:
    """Train and evaluate after each epoch; returns the clock and what was found, and leaves the vectors in files.

    The clock begins before the first batch: imports, files and the first values of the vectors are not in it.
    """
    torch.manual_seed(way.seed)
    question = Question.read(folder, way.device)
    model = Doc2Vec(int(np.load(folder / "num_users.npy")), np.load(folder / "counts.npy"), way.device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
    batches = make_batches(folder)
    found: list[dict[str, float]] = []
    seconds, evaluating_seconds, start = 0.0, 0.0, time.perf_counter()
    while len(found) < way.epochs and seconds < way.limit_seconds:
        train_epoch(model, optimizer, batches, way)
        asked = time.perf_counter()
        heldout_loss, hit_at_20 = evaluate(model.users.weight, model.items.weight, question, keeps_graph=True)
        now = time.perf_counter()
        seconds, evaluating_seconds = now - start, evaluating_seconds + now - asked
        found.append({"seconds": seconds, "heldout_loss": heldout_loss, "hit_at_20": hit_at_20})
    for name, table in (("users", model.users), ("items", model.items)):
        np.save(folder / f"trained_{name}.npy", table.weight.detach().cpu().numpy())
    return (
        {"seconds": seconds, "evaluating_seconds": evaluating_seconds, "evaluations": found}
        | {"epochs": len(found), "is_stopped": len(found) < way.epochs}
        | {"device_bytes": torch.cuda.max_memory_allocated() if way.device == "cuda" else 0}
    )


def train_epoch(model: Doc2Vec, optimizer: torch.optim.Optimizer, batches: DataLoader[Any], way: Way) -> None:
    """A step for each batch."""
    for users, items in batches:
        loss = model.loss(users.to(way.device), items.to(way.device), BLOCK_PAIRS if way.is_shared else 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.sparse.check_sparse_tensor_invariants.disable()  # as by default; said aloud, or Adagrad warns
    print(json.dumps(train(Path(sys.argv[1]), Way(**json.loads(sys.argv[2])))))
