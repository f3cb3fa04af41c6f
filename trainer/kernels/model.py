"""The arguments of compiled code: tables, settings as numbers, scratch arrays. As tuples, which cost nothing to unpack."""

from collections import namedtuple

Table = namedtuple("Table", "vectors squares")
"""vectors float32[n, D], and Adagrad's sums, squares float32[n]."""

Noise = namedtuple("Noise", "thresholds aliases corrections")
"""The tables of surf2vec.trainer.model.objectives.Sampling that negatives need."""

Paths = namedtuple("Paths", "parents slots first_rows widths num_classes max_rows")
"""The arrays of surf2vec.trainer.model.trees.Tree; max_rows: the most rows on a path to a class."""

Rule = namedtuple(
    "Rule",
    "is_softmax handicap is_adagrad is_dm has_tree is_frozen is_accumulating "
    "window num_negatives tile_users num_free recency l2 item_l2",
)
"""The settings of the objective and the optimizer, as numbers."""

Scratch = namedtuple(
    "Scratch",
    "kept user hidden step rows dots squares scores pulls shrinks grows",
)
"""A thread's own arrays.

kept int64[n]: the kept positions of a history; user, hidden, step float32[D]: the user's row, the predicting vector, and its step
up as `learn` leaves it; for the rows of a prediction: rows uint32[R] (unsigned: numba wraps negative indices), dots ... grows
float32[R].
"""

Ledger = namedtuple("Ledger", "hiddens rows pulls askers first_predictions first_entries num_entries")
"""The gradients of the outputs by a step's users. Outputs move after all users are trained (gradient accumulation).

hiddens float32[P, D]: the predicting vector of each prediction. An entry is a row of the outputs in a prediction: rows uint32[E],
pulls float32[E], and askers uint32[E], twice the prediction's number, plus one if the row is a token's own. For the users in
order, int64[M]: first_predictions and first_entries, counted from the step's first, and num_entries.
"""

Sorting = namedtuple("Sorting", "entries touched counts owns starts predictions pulls")
"""A thread's own arrays, in which it sorts the entries of the rows that it moves, by row.

entries, touched uint32[E]: entries, and distinct rows; for all rows, int32[V]: counts and owns, the entries and those of them
that are tokens' own, zero between steps, and starts in predictions uint32[E + ROWS_AHEAD] and pulls float32[E].
"""

Model = namedtuple("Model", "users outputs inputs noise paths rule scratch ledger")
"""All arguments of a thread's training."""

Work = namedtuple("Work", "tokens starts ends hashes order alphas keep")
"""The arrays of surf2vec.trainer.kernels.signature.Pass, and of Sampling what subsampling keeps."""

Stream = namedtuple("Stream", "users outputs noise rule work tile")
"""All arguments of a thread's training in tiles."""

Tile = namedtuple(
    "Tile",
    "users across negatives scores user_steps negative_steps rows next_rows corrections own_rows own_scores dots squares "
    "hidden_squares rates weights alpha l2 user key position next",
)
"""A thread's own arrays for a tile of M lanes and K negatives; the first six are those of tiles.py, which pads all sizes.

rows, next_rows uint32[K], corrections float32[K]: the items drawn for this step and the next. Of each lane, [M]: own_rows uint32,
own_scores float32, its token's row and score, later pull; dots, squares, hidden_squares float32: of its token's row with its
user's, and of each with itself; weights float32: of its token for its user; rates float32: of rows that move. Of a lane's user:
alpha, l2 float32; user, position, next int64: its row, the positions of this token and the next; key uint64: of its draws.
"""

Turn = namedtuple("Turn", "place user history kept num_kept key alpha")
"""A user's turn: place in the order, row, history int32[n], kept positions int64[num_kept or more], key and alpha."""
