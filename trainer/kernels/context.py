"""What is PV-DM's own in a tile, compiled: the tokens around a target, which predict it together with the user (README.md)."""
# mypy: no-check-untyped-defs

import numpy as np

from surf2vec.trainer.draws import WINDOW
from surf2vec.trainer.kernels.compiled_draws import draw
from surf2vec.trainer.kernels.llvm import inlined, prefer_wide_vectors
from surf2vec.trainer.kernels.losses import rate_of

_32 = np.uint64(32)


@inlined
def look_around(stream, lane):
    """Set a lane's hidden to the mean of its user and of the kept tokens in word2vec's window, which is shrunk at random."""
    prefer_wide_vectors()
    tile, lanes, work, inputs = stream.tile, stream.lanes, stream.work, stream.inputs.vectors
    place, window, targets = lanes.next[lane], stream.rule.window, lanes.targets
    shrink = (draw(lanes.keys[lane], targets[lane, place] >> 1, WINDOW, 0) >> _32) * np.uint64(window) >> _32
    reach, start, num = window - np.int64(shrink), work.starts[lanes.users[lane]], 0
    for d in range(inputs.shape[1]):
        tile.hiddens[lane, d] = tile.users[lane, d]
    for j in range(max(0, place - reach), min(lanes.num_targets[lane], place + reach + 1)):
        if j != place:
            word = np.int64(work.tokens[start + (targets[lane, j] >> 1)])
            tile.context[lane, num] = word
            num += 1
            for d in range(inputs.shape[1]):
                tile.hiddens[lane, d] += inputs[word, d]
    share = np.float32(1) / np.float32(1 + num)
    for d in range(inputs.shape[1]):
        tile.hiddens[lane, d] *= share
    tile.lengths[lane] = num


@inlined
def move_words(stream, num_lanes):
    """Move the input rows of the tokens around each lane's target, each by the whole step of what predicts, as gensim does."""
    prefer_wide_vectors()
    tile, inputs, rule = stream.tile, stream.inputs, stream.rule
    num_dims = inputs.vectors.shape[1]
    for lane in range(num_lanes):
        square = np.float32(0)
        for d in range(num_dims):
            square += tile.steps[lane, d] * tile.steps[lane, d]
        for i in range(tile.lengths[lane]):
            word = np.int64(tile.context[lane, i])
            rate = rate_of(inputs.squares, word, square, num_dims, tile.alpha[lane], rule.is_adagrad)
            for d in range(num_dims):
                inputs.vectors[word, d] += rate * tile.steps[lane, d]
