"""Gradient accumulation: the items stand still over `accumulate` users, then move by the sum of what these asked for.

With SGD the sum keeps the learning rate of single steps, which is the linear rule for a mean over n (Goyal et al., 2017).
With Adagrad the sum enters the row's squares as one gradient; README.md derives why alpha stays as it is.
"""

from dataclasses import replace

import numpy as np

from trainer.kernels.signature import Pass, TrainUsers
from trainer.rows import EPSILON, Items, Rows


def train_in_steps(train_users: TrainUsers, users: Rows, items: Items, work: Pass) -> int:
    """Run a kernel over `work`, the items moving once every `accumulate` users and at the end."""
    if work.config.accumulate == 1 or not work.update_items:
        return train_users(users, items, work)
    sums = Items(zeros_like(items.outputs), zeros_like(items.inputs))
    num_kept = 0
    for start in range(0, len(work.order), work.config.accumulate):
        step = slice(start, start + work.config.accumulate)
        num_kept += train_users(
            users, items, replace(work, order=work.order[step], alphas=work.alphas[step], sums=sums)
        )
        alpha = work.alphas[step][-1]
        apply_sums(items.outputs, sums.outputs, alpha, work.config.optimizer == "adagrad")
        apply_sums(items.inputs, sums.inputs, alpha, work.config.optimizer == "adagrad")
    return num_kept


def zeros_like(rows: Rows) -> Rows:
    return Rows(np.zeros_like(rows.vectors), np.zeros_like(rows.squares))


def apply_sums(rows: Rows, sums: Rows, alpha: np.float32, is_adagrad: bool) -> None:
    """Move the rows that were touched (`sums.squares`), and clear their sums."""
    touched = np.flatnonzero(sums.squares)
    gradients = sums.vectors[touched]
    rates = np.full(len(touched), alpha, dtype=np.float32)
    if is_adagrad:
        rows.squares[touched] += np.mean(gradients**2, axis=1)
        rates /= np.sqrt(rows.squares[touched] + np.float32(EPSILON))
    rows.vectors[touched] += rates[:, None] * gradients
    sums.vectors[touched] = 0
    sums.squares[touched] = 0
