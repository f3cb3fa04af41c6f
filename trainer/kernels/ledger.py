"""Gradient accumulation, compiled: users enter their gradients of items, then one thread moves each item.

With SGD the sum keeps the learning rate of single steps, which is the linear rule for a mean over n (Goyal et al., 2017).
With Adagrad the sum enters the row's squares as one gradient; README.md derives why alpha stays as it is.
"""
# mypy: no-check-untyped-defs

import numpy as np

from surf2vec.trainer.kernels.llvm import (
    add_rows,
    give_way,
    inlined,
    look_at,
    prefer_wide_vectors,
    prefetch_row,
    take,
    written_out,
)
from surf2vec.trainer.kernels.predictions import rate_of

_32 = np.uint64(32)
_PATIENT_LOOKS = 256  # polls of the others' arrival before a thread yields its core to one that may need it


@inlined
def enter(model, turn, place):
    """Enter the outputs' gradients of the token at a place into the ledger, before the user moves."""
    ledger, scratch, num_rows = model.ledger, model.scratch, 1 + model.rule.num_negatives
    prediction = ledger.first_predictions[turn.place] + place
    first = ledger.first_entries[turn.place] + place * num_rows
    for d in range(scratch.user.shape[0]):
        ledger.hiddens[prediction, d] = scratch.user[d]
    for i in range(num_rows):
        ledger.rows[first + i] = scratch.rows[i]
        ledger.pulls[first + i] = scratch.pulls[i]
        ledger.askers[first + i] = np.uint32(2 * prediction + (i == 0))
    ledger.num_entries[turn.place] = (place + 1) * num_rows


@inlined
def is_moved_by(row, thread, num_threads):
    """Return whether a thread moves a row: neighbouring rows are spread evenly (Fibonacci hashing; Knuth, volume 3)."""
    hashed = np.uint64(np.uint32(row * np.uint32(0x9E3779B1)))
    return (hashed * np.uint64(num_threads)) >> _32 == np.uint64(thread)


@written_out
def sort_entries(ledger, sorting, first, last, thread, num_threads):
    """Sort the entries of the users from `first` to `last` by row, for rows that the thread moves. Returns how many rows.

    Entries of a row keep their order, so that its sum has the same bits in any thread.
    """
    num_entries = 0
    for place in range(first, last):
        start = ledger.first_entries[place]
        for entry in range(start, start + ledger.num_entries[place]):
            sorting.entries[num_entries] = entry
            num_entries += is_moved_by(ledger.rows[entry], thread, num_threads)
    num_rows = 0
    for i in range(num_entries):
        entry = sorting.entries[i]
        row = ledger.rows[entry]
        sorting.touched[num_rows] = row
        num_rows += sorting.counts[row] == 0
        sorting.counts[row] += 1
        sorting.owns[row] += ledger.askers[entry] & np.uint32(1)
    start = 0
    for i in range(num_rows):
        row = sorting.touched[i]
        sorting.starts[row] = start
        start += sorting.counts[row]
    for i in range(num_entries):
        entry = sorting.entries[i]
        row = ledger.rows[entry]
        place = sorting.starts[row]
        sorting.starts[row] += 1
        sorting.predictions[place] = ledger.askers[entry] >> np.uint32(1)
        sorting.pulls[place] = ledger.pulls[entry]
    return num_rows


@written_out
def move_outputs(model, sorting, num_rows, alpha):
    """Move each sorted row by the sum of its gradients: pull * hidden, less L2 for each entry of a token's own row."""
    prefer_wide_vectors()
    rule, scratch, vectors, first = model.rule, model.scratch, model.outputs.vectors, 0
    total, num_dims = scratch.step, vectors.shape[1]
    for i in range(num_rows):
        if i + 1 < num_rows:
            prefetch_row(vectors, sorting.touched[i + 1])
        row = sorting.touched[i]
        last, l2 = first + sorting.counts[row], rule.item_l2 * np.float32(sorting.owns[row])
        sorting.counts[row] = sorting.owns[row] = 0
        for d in range(num_dims):
            total[d] = np.float32(0)
        add_rows(model.ledger.hiddens, sorting.predictions, sorting.pulls, first, last, total)
        if rule.num_free < num_dims:
            total[num_dims - 1] += l2 * vectors[row, num_dims - 1]  # L2 below subtracts it again: the bias has none
        square = np.float32(0)
        for d in range(num_dims):
            gradient = total[d] - l2 * vectors[row, d]
            square += gradient * gradient
            total[d] = gradient
        rate = rate_of(model.outputs.squares, row, square, num_dims, alpha, rule.is_adagrad)
        for d in range(num_dims):
            vectors[row, d] += rate * total[d]
        first = last


@inlined
def meet(arrived, num_expected):
    """Arrive at a barrier, and wait until `num_expected` threads have."""
    take(arrived, 1)
    num_looks = 0
    while look_at(arrived) < num_expected:
        num_looks += 1
        if num_looks > _PATIENT_LOOKS:
            give_way()
