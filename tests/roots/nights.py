"""Nights up to their registration on a real registry, with vectors drawn from a seed and the gate's verdict given."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.promotion import pin_release, release_pins
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.root.records import RegisterStep
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.model.rows import Items, Rows
from surf2vec.trainer.store.generation import has_generation, open_generation
from surf2vec.trainer.store.layout import image_of_items, image_of_rows
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import Writer, lock_store
from tests.roots.releases import export_release, make_corpus, write_run_record

PUBLISH = PublishConfig(keep_releases=1)
PASSED = {"passes": True, "verdict": "passed", "held_by": []}
HELD = {"passes": False, "verdict": "held", "held_by": ["newest_day_events", "users"]}
FIRST = {"passes": True, "verdict": "first", "held_by": []}


def commit_generation(root: Root, corpus_dir: Path, seed: int, number: int | None = None) -> None:
    """A generation of a corpus's users and items, drawn from a seed, which is also the first number of every vector.

    number: of the generation; by default the next one.
    """
    rng = np.random.default_rng(seed)

    def draw(num: int) -> Rows:
        vectors = rng.normal(size=(num, 8)).astype(np.float32)
        vectors[:, 0] = seed
        return Rows(vectors, np.zeros(num, np.float32))

    corpus = open_corpus(corpus_dir)
    with lock_store(root.store):
        number = number or (open_generation(root.store).generation + 1 if has_generation(root.store) else 1)
        writer = Writer(root.store, number)
        for partition, users in enumerate(corpus.users.tolist()):
            writer.write("users", partition, image_of_rows(draw(users)))
        writer.write("interest", 0, image_of_items(Items(draw(corpus.num_items), draw(0))))
        config = dataclasses.asdict(TrainConfig(parts="interest", vector_size=8))
        writer.commit(
            {"window_id": corpus.manifest["window_id"], "partitions": corpus.num_partitions, "num_blocks": 1,
             "num_items": corpus.num_items, "vector_size": 8, "identity": str(seed), "config": config,
             "position": 0, "stage": "refitted"}
        )  # fmt: skip


def make_night(root: Root, release: str, gate: dict[str, Any], publish: PublishConfig = PUBLISH) -> RegisterStep:
    """Night r1, r2, ... up to its registration, with the gate's verdict given; returns the record of step "register"."""
    if not root.export(release).exists():
        corpus_dir = make_corpus(root, 10, 2, f"window-{release}")
        commit_generation(root, corpus_dir, seed=int(release[1:]))
        export_release(root, release, corpus_dir, open_generation(root.store))  # type: ignore[arg-type]
    steps = {"gate": {"champion": read_registry(root, publish).serving} | gate}
    config, created_at = {"publish": publish.model_dump()}, f"2026-01-01T00:{int(release[1:]):02}:00"
    record = write_run_record(release, steps, run_id=release, created_at=created_at, config=config)
    pin_release(root, release)
    registered = publish_release(root, publish, record, root.export(release))
    Run(root, release).amend(lambda _: record)
    Run(root, release).record_steps(registered)
    release_pins(root, publish)
    return registered
