"""What compiled code is given: tables, settings as numbers, arrays to work in. Tuples, which it takes apart for nothing."""

from typing import Any, NamedTuple


class Table(NamedTuple):
    """vectors float32[n, D], and Adagrad's sums, squares float32[n]."""

    vectors: Any
    squares: Any


class Noise(NamedTuple):
    """The tables of trainer.model.objectives.Sampling that negatives need."""

    thresholds: Any
    aliases: Any
    corrections: Any


class Paths(NamedTuple):
    """The arrays of trainer.model.trees.Tree; max_rows: the most rows on a way to a class."""

    parents: Any
    slots: Any
    first_rows: Any
    widths: Any
    num_classes: int
    max_rows: int


class Rule(NamedTuple):
    """What is learned, as numbers."""

    is_softmax: bool
    handicap: Any
    is_adagrad: bool
    is_dm: bool
    has_words: bool
    has_tree: bool
    is_frozen: bool
    is_accumulating: bool
    window: int
    num_negatives: int
    block_tokens: int
    num_free: int
    recency: Any
    l2: Any
    item_l2: Any


class Scratch(NamedTuple):
    """A thread's own arrays.

    kept int64[n]: the positions that subsampling keeps of a history, at its beginning; user, hidden, step float32[D]: the user's
    row, what predicts, and the step up of it that `learn` leaves; of the rows of a prediction: rows uint32[R] (unsigned: numba
    wraps negative indices), dots ... grows float32[R]; root_slots uint32[R]: where a block's tokens leave the root.
    """

    kept: Any
    user: Any
    hidden: Any
    step: Any
    rows: Any
    dots: Any
    squares: Any
    scores: Any
    pulls: Any
    step_pulls: Any
    weights: Any
    shrinks: Any
    grows: Any
    root_slots: Any


class Ledger(NamedTuple):
    """How the users of a step move the outputs, which stand still until all are trained (gradient accumulation).

    hiddens float32[P, D]: what predicted, a row a prediction. An entry is a row of the outputs in a prediction: rows uint32[E],
    pulls float32[E], and askers uint32[E], twice the prediction, and one more where the row is a token's own. Of the users in
    their order, int64[M]: first_predictions and first_entries, counted from the step's first, and num_entries.
    """

    hiddens: Any
    rows: Any
    pulls: Any
    askers: Any
    first_predictions: Any
    first_entries: Any
    num_entries: Any


class Sorting(NamedTuple):
    """A thread's own arrays, in which it sorts the entries of the rows that it moves, by row.

    entries, touched uint32[E]: entries, and the rows; of all rows, int32[V]: counts and owns, how many entries and how many of
    them are tokens' own, zero between steps, and starts, in predictions uint32[E + ROWS_AHEAD] and pulls float32[E].
    """

    entries: Any
    touched: Any
    counts: Any
    owns: Any
    starts: Any
    predictions: Any
    pulls: Any


class Model(NamedTuple):
    """All that a thread trains with."""

    users: Table
    outputs: Table
    inputs: Table
    noise: Noise
    paths: Paths
    rule: Rule
    scratch: Scratch
    ledger: Ledger


class Turn(NamedTuple):
    """A user's turn: place in the order, row, history int32[n], kept positions int64[num_kept or more], key and alpha."""

    place: Any
    user: Any
    history: Any
    kept: Any
    num_kept: Any
    key: Any
    alpha: Any
