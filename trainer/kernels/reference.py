"""The kernel as it stands in the paper: slow, and the measure of all others.

Shapes: N users, V items, D dims, K negatives, M users to train.
"""

import numpy as np

from trainer.draws import GAMMA, MASK, NEGATIVE, SUBSAMPLE, counter, mix
from trainer.kernels.signature import Pass
from trainer.objectives import RANGE_32


def train_users(user_vectors_ND: np.ndarray, item_vectors_VD: np.ndarray, work: Pass) -> int:
    """Train the users `work.order` once, in place; answers how many tokens were kept by subsampling."""
    num_items = len(item_vectors_VD)
    num_kept = 0
    for user, alpha in zip(work.order, work.alphas, strict=True):
        key = mix(int(work.hashes[user]) ^ work.epoch_key)
        u = user_vectors_ND[user]
        for position, token in enumerate(range(work.starts[user], work.ends[user])):
            positive = work.tokens[token]
            if draw(key, position, SUBSAMPLE, 0) >> 32 >= work.sampling.keep[positive]:
                continue
            num_kept += 1
            gradient = np.zeros_like(u)
            for k in range(work.negative + 1):
                item, label = positive, 1.0
                if k > 0:
                    item, label = draw_negative(draw(key, position, NEGATIVE, k), num_items, work), 0.0
                    if item == positive:
                        continue
                v = item_vectors_VD[item]
                step = np.float32(alpha * (label - sigmoid(float(u @ v))))
                gradient += step * v
                if work.update_items:
                    item_vectors_VD[item] += step * u
            u += gradient
    return num_kept


def draw(key: int, position: int, purpose: int, number: int) -> int:
    """One 64-bit draw of a user's stream."""
    return mix((key + GAMMA * counter(position, purpose, number)) & MASK)


def draw_negative(bits: int, num_items: int, work: Pass) -> int:
    """The item that 64 random bits choose from the noise distribution."""
    slot = ((bits >> 32) * num_items) >> 32
    return slot if bits % RANGE_32 < work.sampling.thresholds[slot] else int(work.sampling.aliases[slot])


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    return float(np.exp(-np.logaddexp(0, -x)))
