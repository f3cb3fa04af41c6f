"""One flipped bit at random places of every file of a root, an export, a registered copy and a pulled folder.

For each flip all answers that read the file are asked for: the corpus made anew, the tokens, the vectors and the optimizer's
state, nearest users, the record, the registered model's prediction, the same pull again. Each must be as before, bit for bit, or
be refused by a message that names the file; the pull must bring the very bytes back.

    python -m tests.benchmarks.flips [--flips 2000] [--seed 1]

Left out, as no checksum covers them: MLflow's database; the code and the description (MLmodel) that MLflow keeps beside a
model's files; root.json, which people edit; what is only looked at (HTML).
"""

import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surf2vec.tasks.config import EvaluateConfig, IngestConfig, PublishConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.queries.similar import similar_users
from surf2vec.tasks.release.folder import EXPORT_MANIFEST, open_folder
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.errors import SurfError
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.tokens import open_corpus
from surf2vec.trainer.store.writer import open_pinned
from surf2vec.trainer.system import files as system_files
from tests.benchmarks.harness import make_case, run_benchmark
from tests.faults.bit_flips import draw_places, flipped
from tests.faults.power_loss import worlds
from tests.roots.store_contents import read_tables
from tests.roots.training import MEMORY_BYTES, rows_by_user

Answer = Callable[[], Any]
USERS = ["user-3", "user-8", "nobody"]


def measure_flips(data: Path, flips: int = 2000, seed: int = 1) -> list[dict[str, Any]]:
    """A case for each kind of file."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        areas = make_areas(Path(folder))
        num_files = sum(len(paths) for paths, _ in areas.values())
        return [flip_all(name, *area, -(-flips // num_files), seed) for name, area in areas.items()]


def make_areas(folder: Path) -> dict[str, tuple[list[Path], Answer]]:
    """Files by kind, and what reads them."""
    from surf2vec.tasks.registry.pull import pull
    from surf2vec.tasks.registry.releases import read_model
    from tests.roots.serving import make_served

    root = make_served(folder / "root", PublishConfig(), ("r1",), num_users=30)
    again = Root(folder / "again")
    shutil.copytree(root.events, again.events)
    shutil.copy(root.sources, again.sources)
    export, out = root.export("r1"), folder / "out"
    (version,) = read_model(root.tracking_uri, "surf2vec-users").versions
    copy = version.folder
    assert copy
    pull(version.place, out, root.tracking_uri)
    corpus = root.corpus(open_folder(export).manifest["created_from"]["window_id"])
    return {
        "events": ([again.sources, *files_in(again.events)], lambda: build_anew(again)),
        "corpus": (files_in(corpus), lambda: read_corpus(corpus)),
        "store": (files_in(root.store), lambda: read_store(root)),
        "export": (files_in(export), lambda: read_whole_export(root)),
        "records": ([Run(root, "r1").record_path], lambda: Run(root, "r1").record().to_json()),
        "registered copy": (files_in(copy / "artifacts"), lambda: predict(copy, version, root.tracking_uri)),
        "pulled folder": (files_in(out), lambda: pull_again(version.place, out, root.tracking_uri)),
    }


def files_in(folder: Path) -> list[Path]:
    return [folder / name for name in worlds.list_files(folder, with_bytes=False)]


def build_anew(root: Root) -> Any:
    shutil.rmtree(root.path / "corpus", ignore_errors=True)
    build_corpus(root, CorpusRequest(IngestConfig(), EvaluateConfig()), MEMORY_BYTES, 1)
    return worlds.list_files(root.path / "corpus")


def read_corpus(folder: Path) -> Any:
    """All that a training, an evaluation and an export read of a corpus."""
    corpus = open_corpus(folder)
    parts = []
    for partition in range(corpus.num_partitions):
        read = corpus.read(partition)
        arrays = [read.hashes, read.offsets, read.tokens, read.ends, read.is_held_out]
        parts.append(([array.tobytes() for array in arrays], corpus.read_ids(partition).to_pylist()))
    return parts, corpus.vocabulary.read_bytes(), corpus.manifest


def read_store(root: Root) -> Any:
    tables = [(rows.vectors.tobytes(), rows.squares.tobytes()) for rows in read_tables(root.store)]
    return tables, rows_by_user(root), open_pinned(root.store, "r1").manifest


def read_whole_export(root: Root) -> Any:
    """Nearest users, and every file as a reader opens it."""
    folder = root.export("r1")
    release = open_folder(folder)
    read = {name: release.path(name).read_bytes() for name in release.files}
    return similar_users(root, folder, USERS[0], 5), read


def predict(copy: Path, version: Any, tracking_uri: str) -> Any:
    """What the registered model returns, loaded as a service loads it; and the state, fetched as a restore fetches it."""
    from surf2vec.tasks.upkeep.restore import _fetch_state
    from tests.tasks.registry.test_serving_model import ask, load

    answer = ask(load(copy / "artifacts" / "r1"), USERS, k=5, items=3)
    with tempfile.TemporaryDirectory() as folder:
        state = _fetch_state(tracking_uri, version, Path(folder), ignore_event)
        files = worlds.list_files(Path(folder))
    return [repr(answer[column].tolist()) for column in answer.columns], state, files


def pull_again(uri: str, out: Path, tracking_uri: str) -> Any:
    from surf2vec.tasks.registry.pull import pull

    pull(uri, out, tracking_uri)
    return worlds.list_files(out)


def flip_all(name: str, paths: list[Path], answer: Answer, num_places: int, seed: int) -> dict[str, Any]:
    """Flip bits of each of the files, and ask."""
    started, expected, told, faults = time.monotonic(), answer(), Counter[str](), []
    for path in paths:
        for place in draw_places(path, num_places, seed):
            system_files._verify_bytes.cache_clear()
            with flipped(path, place):
                outcome = ask_once(path, answer, expected)
            told[outcome.split(":")[0]] += 1
            if outcome not in ("same", "refused"):
                faults.append(f"{path} {place} {outcome}")
    for fault in faults:
        print(f"{name}: {fault}"[:600], file=sys.stderr, flush=True)
    return (
        make_case(name, 1.0 if not faults else 0.0, "0 wrong answers", not faults)
        | {"files": len(paths), "flips": sum(told.values()), "refused": told["refused"]}
        | {"without effect": told["same"], "faults": len(faults)}
        | {"seconds": round(time.monotonic() - started, 1), "seed": seed}
    )


def ask_once(path: Path, answer: Answer, expected: Any) -> str:
    """`same`, `refused`, or what is wrong."""
    try:
        return "same" if answer() == expected else "different"
    except (SurfError, RuntimeError) as error:  # RuntimeError: the registered model has none of our classes
        is_named = path.name in str(error) or (path.name == EXPORT_MANIFEST and "manifest" in str(error))
        return "refused" if is_named else f"refused without the name: {type(error).__name__}: {error}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_flips, small={"flips": 4}))
