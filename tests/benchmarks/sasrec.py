"""Ours beside SASRec (Kang and McAuley 2018), as an anchor of what order is worth: self-attention over a user's last items.

In plain PyTorch on the CPU: items have one table in and out, or two, positions are learned, blocks are a causal attention and a
point-wise layer with dropout, and the loss is a sampled softmax over NEGATIVES shared by a batch, corrected by the log of their
drawing probability (Klenitskiy and Vasilev 2023: with a softmax in place of its binary loss it is above BERT4Rec).
Targets are items that are new to the user, as they are what is asked. The last target of every SLICE-th user is left out of the
loss, and training ends when hit@20 on these has not risen for PATIENCE epochs; the best epoch counts. Of a few settings the one
that ranks best on the very items asked counts, which favours it, and its seconds are those of this training alone.
One thread each. Passed: our hit@20 at least .95 of its at a tenth of its time or less.
"""

import copy
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.tokens import Corpus
from tests.benchmarks.defaults import METRICS, SEED, Side, ask, ask_ours
from tests.benchmarks.harness import run_benchmark
from tests.benchmarks.logs import make_corpus_of
from tests.benchmarks.peers import Vectors, difference_in_errors, training_histories

LOGS = ("wikispeedia_unfinished", "yoochoose_100k")
HIT_MARK, TIME_MARK = 0.95, 0.1
THREADS = (
    1  # of both sides: PyTorch's wait for each other at every small product, and are slow on cores that others use
)
MOST_ITEMS = 50  # the last of a history
BATCH_USERS, SORTED_BATCHES = 64, 32
NEGATIVES, EXPONENT = 512, 0.5
EPOCHS, PATIENCE, SLICE = 60, 10, 10
RATE = 3e-3


@dataclasses.dataclass(frozen=True)
class Setting:
    """Numbers of a vector, blocks, the share that dropout leaves out, and whether items have one table in and out."""

    size: int
    blocks: int
    dropout: float
    is_tied: bool = True

    def tell(self) -> str:
        tables = "one table" if self.is_tied else "two tables"
        return f"{self.size} numbers, {self.blocks} blocks, dropout {self.dropout:g}, {tables}"


SETTINGS = (Setting(64, 1, 0.5), Setting(64, 1, 0.5, False), Setting(128, 1, 0.5, False), Setting(64, 2, 0.5, False))
"""Tried by hand, and below these: one table, dropout .2 (both logs), two with .3 (wikispeedia), 2 blocks of 128 (yoochoose)."""


class Block(nn.Module):
    """Causal attention with one head, then two point-wise layers, each on normed inputs and added to them."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        size = setting.size
        self.norms = nn.ModuleList([nn.LayerNorm(size), nn.LayerNorm(size)])
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.wide = nn.Sequential(
            nn.Linear(size, size),
            nn.ReLU(),
            nn.Dropout(setting.dropout),
            nn.Linear(size, size),
            nn.Dropout(setting.dropout),
        )
        self.dropout = setting.dropout

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """float32[B, L, D] to the same; what follows an item, padding too, does not touch it."""
        normed = self.norms[0](states)
        dropout = self.dropout if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(
            self.query(normed), self.key(normed), self.value(normed), dropout_p=dropout, is_causal=True
        )
        states = states + attended
        return states + self.wide(self.norms[1](states))


class SasRec(nn.Module):
    """The states of the positions of histories, float32[B, L, D], from their items int64[B, L], padded at the end."""

    def __init__(self, num_items: int, setting: Setting) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(num_items, setting.size), nn.Embedding(MOST_ITEMS, setting.size)
        self.outputs = self.items if setting.is_tied else nn.Embedding(num_items, setting.size)
        for table in dict.fromkeys((self.items, self.places, self.outputs)):
            nn.init.normal_(table.weight, std=setting.size**-0.5)
        self.dropout = nn.Dropout(setting.dropout)
        self.blocks = nn.Sequential(*(Block(setting) for _ in range(setting.blocks)))
        self.norm = nn.LayerNorm(setting.size)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        states = self.items(items) + self.places.weight[: items.shape[1]]
        return self.norm(self.blocks(self.dropout(states)))


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Histories of at least two items: items int64[n, MOST_ITEMS + 1], padded at the end; lengths int64[n]; is_target
    bool[n, MOST_ITEMS]: whether the item after a position is new to the user and in the loss; slice_rows, slice_places
    int64[k]: positions whose next item is left out of the loss, to end training by."""

    items: torch.Tensor
    lengths: NDArray[np.int64]
    is_target: torch.Tensor
    slice_rows: torch.Tensor
    slice_places: torch.Tensor


def read_sequences(histories: list[NDArray[np.int32]]) -> Sequences:
    """The last items of each history, what is new in them, and the slice."""
    histories = [history for history in histories if len(history) > 1]
    items = np.zeros((len(histories), MOST_ITEMS + 1), dtype=np.int64)
    is_target = np.zeros((len(histories), MOST_ITEMS), dtype=bool)
    left_out = []
    for row, history in enumerate(histories):
        is_new = np.zeros(len(history), dtype=bool)
        is_new[np.unique(history, return_index=True)[1]] = True
        last, is_new = history[-MOST_ITEMS - 1 :], is_new[-MOST_ITEMS - 1 :]
        items[row, : len(last)] = last
        is_target[row, : len(last) - 1] = is_new[1:]
        if row % SLICE == 0 and is_target[row].any():
            left_out.append((row, np.flatnonzero(is_target[row])[-1]))
    rows, places = (torch.tensor(column, dtype=torch.int64) for column in zip(*left_out, strict=True))
    is_target = torch.from_numpy(is_target)
    is_target[rows, places] = False
    lengths = np.array([min(len(history), MOST_ITEMS + 1) for history in histories])
    return Sequences(torch.from_numpy(items), lengths, is_target, rows, places)


def batches(lengths: NDArray[np.int64], random: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """All rows once, in batches drawn at random; each SORTED_BATCHES of them are sorted by length, for less padding."""
    order = random.permutation(len(lengths))
    chunk = BATCH_USERS * SORTED_BATCHES
    for first in range(0, len(order), chunk):
        rows = order[first : first + chunk]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        starts = np.arange(0, len(rows), BATCH_USERS)
        for start in random.permutation(starts):
            yield rows[start : start + BATCH_USERS]


def sampled_softmax(
    states: torch.Tensor, targets: torch.Tensor, negatives: torch.Tensor, table: torch.Tensor, log_odds: torch.Tensor
) -> torch.Tensor:
    """The mean loss of states float32[P, D] for targets int64[P] against shared negatives int64[K], corrected by log_odds [V]."""
    logits = states @ table[negatives].T - log_odds[negatives]
    logits = logits.masked_fill(targets[:, None] == negatives, -torch.inf)
    own = (states * table[targets]).sum(dim=1) - log_odds[targets]
    return (torch.logsumexp(torch.cat((own[:, None], logits), dim=1), dim=1) - own).mean()


def train_sasrec(corpus: Corpus, setting: Setting) -> tuple[Vectors, int]:
    """Vectors of all users and items, and the epoch that was best on the slice."""
    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    random, start = np.random.default_rng(SEED), time.perf_counter()
    histories = list(training_histories(corpus))
    sequences = read_sequences(histories)
    counts = torch.from_numpy(np.bincount(np.concatenate(histories), minlength=corpus.num_items))
    weights = counts.double() ** EXPONENT * (counts > 0)
    log_odds = (weights / weights.sum()).clamp(min=1e-12).log().float()
    model = SasRec(corpus.num_items, setting)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    best, best_hit, best_epoch = copy.deepcopy(model.state_dict()), -1.0, 0
    for epoch in range(EPOCHS):
        model.train()
        for rows in batches(sequences.lengths, random):
            width = int(sequences.lengths[rows].max()) - 1
            items, is_target = sequences.items[rows], sequences.is_target[rows, :width]
            states, targets = model(items[:, :width])[is_target], items[:, 1 : width + 1][is_target]
            negatives = torch.multinomial(weights, NEGATIVES, replacement=True)
            loss = sampled_softmax(states, targets, negatives, model.outputs.weight, log_odds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        hit = slice_hit(model, sequences)
        if hit > best_hit:
            best, best_hit, best_epoch = copy.deepcopy(model.state_dict()), hit, epoch
        elif epoch - best_epoch >= PATIENCE:
            break
    model.load_state_dict(best)
    users = last_states(model, histories)
    items = model.outputs.weight.detach().clone()
    items[counts == 0] = 0
    return Vectors(users, items.numpy(), time.perf_counter() - start), best_epoch + 1


@torch.no_grad()
def slice_hit(model: SasRec, sequences: Sequences) -> float:
    """hit@20 of the slice's next items among all that stand nowhere before in the user's row."""
    model.eval()
    hits = []
    for rows, places in zip(sequences.slice_rows.split(512), sequences.slice_places.split(512), strict=True):
        items, each = sequences.items[rows], torch.arange(len(rows))
        scores = model(items[:, :-1])[each, places] @ model.outputs.weight.T
        held = scores[each, items[each, places + 1]]
        is_seen = torch.arange(MOST_ITEMS + 1) <= places[:, None]
        scores[each[:, None].expand_as(items)[is_seen], items[is_seen]] = -torch.inf
        hits.append((scores > held[:, None]).sum(dim=1) < 20)
    return float(torch.cat(hits).double().mean())


@torch.no_grad()
def last_states(model: SasRec, histories: list[NDArray[np.int32]]) -> NDArray[np.float32]:
    """The state after the last item of each history, float32[n, D]."""
    model.eval()
    states = []
    for first in range(0, len(histories), 512):
        batch = [torch.from_numpy(history[-MOST_ITEMS:].astype(np.int64)) for history in histories[first : first + 512]]
        places = torch.tensor([len(history) - 1 for history in batch])
        padded = nn.utils.rnn.pad_sequence(batch, batch_first=True)
        states.append(model(padded)[torch.arange(len(batch)), places])
    return torch.cat(states).numpy()


def measure_sasrec(data: Path, log: str = "all") -> list[dict[str, Any]]:
    """A case a log; `log` names one of LOGS, or all."""
    cases = []
    for name in LOGS if log == "all" else (log,):
        with tempfile.TemporaryDirectory() as folder:
            corpus = make_corpus_of(name, data, Path(folder))
            ours = ask_ours(corpus, dataclasses.replace(TrainConfig(), seed=SEED, threads=THREADS), Path(folder))
            theirs = []
            for setting in SETTINGS:
                vectors, epochs = train_sasrec(corpus, setting)
                theirs.append(ask(corpus, f"{setting.tell()}, {epochs} epochs", vectors))
        cases.append(judge(name, ours, max(theirs, key=lambda side: side.mean("hit@20"))))
    return cases


def judge(log: str, ours: Side, sasrec: Side) -> dict[str, Any]:
    """The case of one log."""
    ratios = {f"{metric} ratio": ours.mean(metric) / sasrec.mean(metric) for metric in METRICS}
    errors = {f"{metric} s.e.": difference_in_errors(ours.values[metric], sasrec.values[metric]) for metric in METRICS}
    time_ratio = ours.seconds / sasrec.seconds
    return {
        "case": log, "ratio": ratios["hit@20 ratio"], "mark": f">= {HIT_MARK} of its hit@20 at <= {TIME_MARK} of its time",
        "passed": ratios["hit@20 ratio"] >= HIT_MARK and time_ratio <= TIME_MARK, "time ratio": time_ratio,
        "ours (hit@20, MRR@20)": ours.tell(), "SASRec (hit@20, MRR@20)": sasrec.tell(), "SASRec's setting": sasrec.setting,
    } | ratios | errors  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_benchmark("sasrec", __doc__ or "", measure_sasrec, {"log": "all"}))
