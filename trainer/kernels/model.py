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

Ledger = namedtuple("Ledger", "hiddens rows pulls")
"""The gradients of the outputs by users that are trained while items stand still (gradient accumulation), for each prediction:
hiddens float32[P, D], what predicts; rows int32[P, 1 + K], the token's own and its negatives', the first below 0 if the token was
not kept; pulls float32[P, 1 + K].
"""

Model = namedtuple("Model", "users outputs inputs noise paths rule scratch ledger")
"""All arguments of a thread's training."""

Work = namedtuple("Work", "tokens starts ends hashes order alphas keep")
"""The arrays of surf2vec.trainer.kernels.signature.Pass, and of Sampling what subsampling keeps."""

Stream = namedtuple("Stream", "users outputs noise rule work tile")
"""All arguments of a thread's training in tiles."""

Tile = namedtuple(
    "Tile",
    "users across negatives scores user_steps negative_steps rows next_rows corrections own_rows own_scores totals dots squares "
    "hidden_squares rates weights alpha l2 user key position next",
)
"""A thread's own arrays for a tile of M lanes and K negatives; the first six are those of tiles.py, which pads all sizes.

rows, next_rows uint32[K], corrections float32[K]: the items drawn for this step and the next. Of each lane, [M]: own_rows uint32,
own_scores float32, its token's row and score, later pull; totals float32: scratch; dots, squares, hidden_squares float32: of its
token's row with its user's, and of each with itself; weights float32: of its token for its user; rates float32: of rows that
move. Of a lane's user: alpha, l2 float32; user, position, next int64: its row, the positions of this token and the next; key
uint64: of its draws.
"""

Turn = namedtuple("Turn", "first_prediction user history kept num_kept key alpha")
"""A user's turn: number of its first prediction, row, history int32[n], kept positions int64[num_kept or more], key and alpha."""
