"""Do a release's vectors say who comes back? The champion's users, by what tonight's corpus has of them.

A user came back if the newest event is newer than in the champion's corpus: a future that the champion's vectors have not seen.
A ridge regression of this on the vectors, as other teams read them, scores each user out of fold. The figure is the AUC.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.activity.count import NAMES, read_activity
from surf2vec.tasks.evaluation.evaluate import find_users
from surf2vec.tasks.release.folder import ReleaseFolder
from surf2vec.tasks.release.release_reader import compared_columns, decode_vectors
from surf2vec.trainer.store.tokens import Corpus

MOST_USERS, LEAST_USERS = 5_000, 50
"""So many users are read, and of those who came back, and of the others, at least so many are needed."""
FOLDS, SEED, PENALTY = 5, 1, 100.0


def measure_returns(now: Corpus, before: Corpus, release: ReleaseFolder) -> dict[str, Any] | None:
    """Return `num_users`, `num_returned`, and `auc`: of columns of the vectors, the AUC and the ends of its 95 % interval.

    before, release: the champion's. None if too few users came back or stayed away, as without times, or if the
    micro-partitions have changed. Raises DamageError for altered files.
    """
    vectors, returned = [np.zeros((0, release.manifest["vector_size"]), np.float32)], [np.zeros(0, bool)]
    for partition in range(before.num_partitions if now.num_partitions == before.num_partitions else 0):
        users = release.read_partition(partition)
        if users is None:
            continue
        vectors.append(decode_vectors(users))
        returned.append(_read_last(now, partition, users["user_id"]) > _read_last(before, partition, users["user_id"]))
        if sum(map(len, returned)) >= MOST_USERS:
            break
    features, answers = np.concatenate(vectors)[:MOST_USERS], np.concatenate(returned)[:MOST_USERS]
    if min(answers.sum(), (~answers).sum()) < LEAST_USERS:
        return None
    parts = {"all parts": features}
    if "activity" in release.manifest["parts"]:
        others = compared_columns(release.manifest)
        parts |= {"without activity": features[:, others], "activity alone": features[:, others.stop :]}
    auc = {name: measure_auc(answers, score_out_of_fold(part, answers)) for name, part in parts.items()}
    return {"num_users": len(answers), "num_returned": int(answers.sum()), "auc": auc}


def _read_last(corpus: Corpus, partition: int, ids: pa.ChunkedArray) -> NDArray[np.float32]:
    """Return the time of the newest event of each of these users, in days; NaN for one without times or not in the corpus."""
    last = read_activity(corpus, partition)[:, NAMES.index("last")]
    return np.append(last, np.float32(np.nan))[find_users(ids, corpus.read_ids(partition))]


def score_out_of_fold(features: NDArray[np.float32], answers: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the scores of a ridge regression of the answers on the standardised features, float64[m], each by other users."""
    folds, scores = np.random.default_rng(SEED).permutation(len(answers)) % FOLDS, np.empty(len(answers))
    standard = ((features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-9)).astype(float)
    gram = standard.T @ standard + PENALTY * np.eye(standard.shape[1])
    for fold in range(FOLDS):
        is_known = folds != fold
        left, target = standard[~is_known], answers[is_known] - answers[is_known].mean()
        weights = np.linalg.solve(gram - left.T @ left, standard[is_known].T @ target)
        scores[~is_known] = left @ weights
    return scores


def measure_auc(answers: NDArray[np.bool_], scores: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the AUC, the share of pairs of a true and a false answer in which the true one scores higher, and the ends of its
    95 % interval (Hanley and McNeil, 1982).
    """
    num_true, num_false = int(answers.sum()), int((~answers).sum())
    order, counts = np.unique(scores, return_inverse=True, return_counts=True)[1:]
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[order]  # equal scores have their mean rank
    auc = float(ranks[answers].sum() - num_true * (num_true + 1) / 2) / (num_true * num_false)
    true_pairs, false_pairs = auc / (2 - auc) - auc**2, 2 * auc**2 / (1 + auc) - auc**2
    variance = (auc * (1 - auc) + (num_true - 1) * true_pairs + (num_false - 1) * false_pairs) / (num_true * num_false)
    return auc, max(0.0, auc - 1.96 * variance**0.5), min(1.0, auc + 1.96 * variance**0.5)
