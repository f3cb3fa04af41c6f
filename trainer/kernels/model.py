"""The arguments of compiled code: tables, settings as numbers, scratch arrays. As tuples, which cost nothing to unpack."""

from collections import namedtuple

Table = namedtuple("Table", "vectors squares")
"""vectors float32[n, D], and Adagrad's sums, squares float32[n]."""

Noise = namedtuple("Noise", "thresholds aliases corrections l2s shares")
"""The tables of surf2vec.trainer.model.objectives.Sampling that negatives need, or those of TrailTables."""

Paths = namedtuple("Paths", "parents slots first_rows widths num_classes")
"""The arrays of surf2vec.trainer.model.trees.Tree."""

Rule = namedtuple(
    "Rule",
    "is_softmax handicap is_adagrad is_dm has_tree is_frozen is_accumulating "
    "window num_negatives num_lanes num_free recency l2 item_l2 l2_in_sums has_trail backward bias",
)
"""The settings of the objective and the optimizer, as numbers.

l2_in_sums float32: 1 if Adagrad's sums of items include L2, 0 for the trail. Of the trail alone: backward float64, the share of
rare items that are predicted from the pages after them, of 2**32; bias float32.
"""

Ledger = namedtuple("Ledger", "firsts hiddens rows pulls")
"""The gradients of the outputs by users that are trained while items stand still (gradient accumulation), for each prediction:
hiddens float32[P, D], what predicts; rows int32[P, 1 + K], the token's own and its negatives', the first below 0 if the token was
not kept; pulls float32[P, 1 + K]. firsts int64[M]: the number of the first prediction of each user of the order.
"""

Work = namedtuple("Work", "tokens starts ends hashes order alphas keep")
"""The arrays of surf2vec.trainer.kernels.signature.Pass, and of Sampling what subsampling keeps."""

Stream = namedtuple("Stream", "users outputs inputs lags noise paths rule work ledger lanes tile")
"""All arguments of a thread's training. users has rows for the interest, inputs for PV-DM and the trail, lags for the trail."""

Lanes = namedtuple("Lanes", "users keys firsts num_targets next targets listed seen stamp")
"""The users of a tile of M lanes. users, firsts (of Ledger), num_targets, next int64[M]; keys uint64[M]: of their draws; targets
int32[M, L]: four times a position, plus two if it is predicted from one page, plus one if backward; for the trail: listed
int32[L], the same of one user in the order of the history; seen int64[V], the last stamp at which each item was met, stamp
int64[1].
"""

Tile = namedtuple(
    "Tile",
    "hiddens users across steps negatives negative_steps scores rows next_rows corrections own_rows own_scores totals dots "
    "squares hidden_squares rates item_l2 alpha l2 same last_of context lags factors lengths scales lag_steps "
    "path_rows path_pulls",
)
"""A thread's own arrays for one step of a tile: M lanes, K negatives, D dimensions, W lags, padded as tiles.py needs them.

hiddens, steps float32[M, D], across float32[D, M]: what predicts, and its steps; users float32[M, D]: the lanes' users, the same
array as hiddens but for PV-DM;
negatives, negative_steps float32[K, D], scores float32[K, M]; the items drawn for this step and the next: rows, next_rows
uint32[K], corrections float32[K]. Of each lane, [M]: own_rows uint32, own_scores float32, its target's row and score, later
pull; dots, squares, hidden_squares float32: of its target's row with what predicts, and of each with itself; totals, rates
float32: scratch; item_l2, alpha, l2 float32: of its target, its user's rate and L2. For the trail: last_of int32[V]: one more
than the last negative that is an item, 0 if none is, and same int32[K]: the one before it that is the same item. For the trail
and PV-DM, the pages or tokens a lane looks at: context uint32[M, 2 W], lengths int64[M]; of the trail's also lags int64[M, 2 W],
factors float32[M, 2 W]; scales float32[M]; lag_steps float32[2 W]. For trees: path_rows uint32[R], path_pulls float32[R].
"""
