"""Releases one after another: users and items by name, their vectors by a number each."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.config import ExportConfig, PublishConfig
from surf2vec.tasks.export.export import Export, export_vectors
from surf2vec.tasks.registry.publish import publish_release
from surf2vec.tasks.release.folder import README
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.events import OnEvent, ignore_event
from tests.data.corpora import describe_anew, user_hash, write_corpus
from tests.roots.releases import VECTOR_SIZE, FakeGeneration, write_run_record


@dataclass(frozen=True)
class State:
    """What a release has: user id → number of its vector, and of each item in order such a number."""

    users: dict[str, int]
    items: list[int] = field(default_factory=lambda: [0] * 30)

    def change(
        self, users: dict[str, int] | None = None, gone: tuple[str, ...] = (), items: dict[int, int] | None = None
    ) -> "State":
        """With other vectors for some users and items, new ones among them, and without those who are gone."""
        kept = {user: number for user, number in (self.users | (users or {})).items() if user not in gone}
        numbers = dict(enumerate(self.items)) | (items or {})
        return State(kept, [numbers[ix] for ix in range(len(numbers))])


def many_users(num_users: int = 400) -> State:
    return State({f"user-{n}": 0 for n in range(num_users)})


def export_state(
    root: Root,
    release: str,
    state: State,
    partitions: int = 4,
    on_event: OnEvent = ignore_event,
    last: tuple[str, ...] = (),
    **storage: Any,
) -> Path:
    """The export of a state; returns its folder.

    Users are by their ids in each file, but for those in `last`, who come after the others in that order.
    """
    histories = {user: [0, 1] for user in state.users}
    corpus_dir = root.corpus(f"window-{release}")
    corpus = write_corpus(corpus_dir, histories, partitions, len(state.items))
    users: list[list[np.ndarray]] = [[] for _ in range(partitions)]
    order = sorted(state.users, key=lambda user: (user in last, last.index(user) if user in last else user))
    for partition in range(partitions):
        ids = [user for user in order if user_hash(user) % partitions == partition]
        pq.write_table(
            pa.table({"user_id": pa.array(ids, pa.string())}), corpus_dir / f"p{partition:05d}.users.parquet"
        )
    describe_anew(corpus)
    for user in order:
        users[user_hash(user) % partitions].append(_draw(user_hash(user), state.users[user]))
    generation = FakeGeneration(
        [np.array(rows, np.float32).reshape(-1, VECTOR_SIZE) for rows in users],
        np.array([_draw(ix, number) for ix, number in enumerate(state.items)], np.float32),
    )
    job = Export(
        corpus_dir,
        root.export(release),
        release,
        f"run-{release}",
        "space-1",
        ExportConfig(**{"activity": False} | storage),
    )
    export_vectors(job, generation, on_event)
    return root.export(release)


def publish_state(root: Root, publish: PublishConfig, release: str, state: State, last: tuple[str, ...] = ()) -> int:
    """The number of the version of a state, registered."""
    export_state(root, release, state, last=last)
    return publish_release(root, publish, write_run_record(release), root.export(release)).model_version


def read_table(folder: Path, kind: str = "user") -> pl.DataFrame:
    """All vectors of a folder, sorted by name."""
    table = pl.read_parquet(folder / f"{kind}_vectors" / "*.parquet")
    return table.sort(table.columns[0])


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The files of a release by name; without the card, which a root has beside them."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != README]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _draw(name: int, number: int) -> np.ndarray:
    return np.random.default_rng([name, number]).standard_normal(VECTOR_SIZE).astype(np.float32)
