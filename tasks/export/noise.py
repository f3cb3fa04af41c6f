"""Noise on users' vectors, so that a release gives away less of their pages. Activity has none.

A user's noise is Gaussian, drawn under a secret key of the root by the user's id and last pages. As long as these stay, every
export has the same noise, so that it does not average out over pulls and releases.
"""

import hmac
import os
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.root.run import Root
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.store.tokens import Histories
from surf2vec.trainer.system.files import write_secret
from surf2vec.trainer.training.vectors import columns_of

KEY_FILE = "noise.key"
KEY_BYTES = 32


def open_noise_key(root: Root) -> bytes:
    """Return the key of the root's noise; makes it at first use, readable by the owner alone (mode 600)."""
    path = root.path / KEY_FILE
    if not path.exists():
        write_secret(path, os.urandom(KEY_BYTES))
    return path.read_bytes()


def name_users(users: pa.ChunkedArray, histories: Histories, num_pages: int) -> Iterator[bytes]:
    """Yield what each user's noise is drawn by: the id and the last pages, so many at most."""
    for user_id, start, end in zip(users.to_pylist(), histories.starts, histories.offsets[1:], strict=True):
        yield f"{user_id}\0".encode() + histories.tokens[max(start, end - num_pages) : end].tobytes()


def add_noise(
    vectors: NDArray[np.float32], generation: Generation, noise: float, key: bytes, names: Iterable[bytes]
) -> NDArray[np.float32]:
    """Return users' vectors float32[n, D] with noise on interest and trail, but for the constants of both.

    noise: its root mean square, as a share of that of the user's part. names: by which each user's is drawn, with the key.
    """
    if not noise:
        return vectors
    assert key, "noise without a key could be computed by anybody"
    parts, biases, noisy = columns_of(generation), generation.config.num_biases, vectors.copy()
    for row, name in zip(noisy, names, strict=True):
        seed = int.from_bytes(hmac.digest(key, name, "sha256")[:16])
        drawn = np.random.Generator(np.random.Philox(key=seed)).standard_normal(len(row), np.float32)
        for part, (start, stop) in parts.items():
            columns = slice(start, stop - biases[part])
            row[columns] += noise * np.sqrt(np.mean(row[columns] ** 2)) * drawn[columns]
    return noisy
