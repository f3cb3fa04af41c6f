"""The losses of ten steps of each objective, as a table of text: `python -m tests.trainer.golden_losses` writes it anew.

A difference means that training does other arithmetic than before. Where that is wanted, write the table anew, and say why.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from surf2vec.trainer.kernels.cpu import score_rows, trail_vectors, train_trail
from surf2vec.trainer.store.tokens import Histories
from surf2vec.trainer.training.curve import Targets, draw_sample, softmax_losses, sum_losses
from tests.trainer.kernels import reference_trail
from tests.trainer.kernels.test_trail import make_tables
from tests.trainer.kernels.work import SETTINGS, make_config, make_rows, make_work, train_users_of

GOLDEN = Path(__file__).parent / "golden_losses.txt"
KERNELS = ("reference", "cpu")
NUM_STEPS = 10


def run_steps(kernel: str, name: str) -> Iterator[float]:
    """The mean loss of the sample of the curve after each step, a tenth of the users."""
    work = make_work(make_config(**SETTINGS[name]))
    users, items = make_rows(work)
    train = train_users_of(kernel, work.config)
    targets = Targets(work.config, work.sampling, work.tree)
    offsets, nobody = np.append(work.starts, work.ends[-1]), np.zeros(len(work.ends), dtype=bool)
    sample = draw_sample(targets, Histories(work.hashes, work.tokens, offsets, work.ends, nobody))
    num_users = len(work.order) // NUM_STEPS
    for start in range(0, len(work.order), num_users):
        step = slice(start, start + num_users)
        train(users, items, replace(work, order=work.order[step], alphas=work.alphas[step]))
        loss, num, *_ = sum_losses(targets, users.vectors, items.outputs.vectors, sample)
        yield loss / num


def run_trail_steps(kernel: str) -> Iterator[float]:
    """The mean loss of the users' last tokens among all items, after each step of the trail, a tenth of the users."""
    work = make_work(make_config(parts="trail", trail_negative=5, trail_window=3), num_users=200)
    trail, tables, work = make_tables(work)
    ends, num_items = work.ends[work.ends > work.starts], len(tables.aliases)
    starts, items = work.starts[work.ends > work.starts], work.tokens[ends - 1]
    others = np.tile(np.arange(num_items), (len(items), 1))
    train = reference_trail.train_trail if kernel == "reference" else train_trail
    num_users = len(work.order) // NUM_STEPS
    for start in range(0, len(work.order), num_users):
        step = slice(start, start + num_users)
        train(trail, replace(work, order=work.order[step], alphas=work.alphas[step]), tables, 0.3)
        vectors = trail_vectors(trail, work.tokens, starts, ends - 1, 3, items)
        scores = score_rows(vectors, trail.outputs.vectors, np.column_stack((items, others)))
        losses = softmax_losses(scores, items.astype(int), others, tables.corrections, 0.0)
        yield float(losses.mean())


def lines() -> Iterator[str]:
    """The table: a kernel and an objective a line, with the losses to a millionth."""
    for kernel in KERNELS:
        for name in SETTINGS:
            yield line_of(kernel, name, run_steps(kernel, name))
        yield line_of(kernel, "trail", run_trail_steps(kernel))


def line_of(kernel: str, name: str, losses: Iterator[float]) -> str:
    return " ".join([f"{kernel:<9} {name:<29}", *(f"{loss:.6f}" for loss in losses)])


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"wrote {GOLDEN}")
