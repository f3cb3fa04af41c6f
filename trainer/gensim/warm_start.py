"""Initializes items from given vectors: a word2vec-format file, or a gensim model in memory. No pickle.

Rows are matched by URL. Items without a match are initialized as usual. Adagrad's sum of a matched row starts at 1, so that its
first step is as large as SGD's. From 0 the first step would be about alpha, and would destroy a good vector.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.gensim.word2vec_format import NamedVectors, align_rows, name_vectors, read_word2vec
from surf2vec.trainer.model.rows import Items
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.system.files import digest_file

FIRST_SQUARES = 1.0


@dataclass(frozen=True)
class WarmStart:
    """Vectors to begin from: outputs rank items, inputs are context (`outputs` if None).

    digest: of their content. It is part of a training's identity, so a resumed training does not mix two starts.
    """

    outputs: NamedVectors
    inputs: NamedVectors | None
    digest: str


def read_warm_start(path: Path) -> WarmStart:
    """Return the vectors of a word2vec-format file. Raises ConfigError when it cannot be read as one."""
    return WarmStart(read_word2vec(path), None, digest_file(path))


def warm_start_of(model: Any) -> WarmStart:
    """Return the vectors of a gensim Doc2Vec, Word2Vec or KeyedVectors in memory. Raises ConfigError for anything else.

    Items are ranked by `syn1neg`: with dm=0 and dbow_words=0 only it is trained. Without negative sampling only `wv` exists.
    """
    word_vectors = getattr(model, "wv", model)
    if not (hasattr(word_vectors, "index_to_key") and hasattr(word_vectors, "vectors")):
        raise ConfigError(f"a {type(model).__name__} is no model of gensim 4: give a Doc2Vec, Word2Vec or KeyedVectors")
    items = name_vectors(word_vectors.index_to_key, word_vectors.vectors, "wv")
    ranking = getattr(model, "syn1neg", None)
    outputs = items if ranking is None else name_vectors(items.names, ranking, "syn1neg")
    names = "\n".join(outputs.names).encode()
    digest = sha256(outputs.vectors.tobytes() + items.vectors.tobytes() + names).hexdigest()
    return WarmStart(outputs, None if ranking is None else items, digest)


def apply_warm_start(items: Items, corpus_dir: Path, start: WarmStart) -> int:
    """Write the vectors into an untrained item table, in place. Returns how many items were found.

    Raises ConfigError when the vectors have other dimensions or none of them belongs to an item of the corpus.
    """
    urls = pq.read_table(open_corpus(corpus_dir).vocabulary, columns=["url"]).column("url")
    for rows, named in ((items.inputs, start.inputs or start.outputs), (items.outputs, start.outputs)):
        if not len(rows.vectors):
            continue
        wanted, given = rows.vectors.shape[1], named.vectors.shape[1]
        if wanted != given:
            raise ConfigError(
                f"the vectors to begin from have {given:,} dimensions and train.vector_size is {wanted:,}: make them equal"
            )
        places = align_rows(named, urls)
        is_found = places >= 0
        if not is_found.any():
            raise ConfigError(
                f"none of the {len(places):,} items of the corpus is among the {len(named.names):,} vectors to begin from: "
                "their names have to be the items' URLs as item_vectors spells them"
            )
        rows.vectors[is_found] = named.vectors[places[is_found]]
        rows.squares[is_found] = FIRST_SQUARES
    return int(is_found.sum())
