"""Readers of the champion while it changes night after night, is rolled back and promoted, and what is old is removed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.registry.promotion import lock_aliases, promote, rollback
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.root.run import Root, lock_root
from surf2vec.tasks.upkeep.gc import collect_garbage
from surf2vec.trainer.store.writer import lock_store
from tests.roots.nights import FIRST, PASSED, make_night
from tests.roots.releases import ONE_IN_CI, STORAGES

NUM_READS, READS_A_LOAD, READERS = 10_000, 100, 2
# Of every vector of release rN the first number is N.
READER = """
import sys
import mlflow.pyfunc, numpy as np, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
rng, releases = np.random.default_rng(int(sys.argv[2])), set()
for read in range(int(sys.argv[3])):
    if read % int(sys.argv[4]) == 0:
        model = mlflow.pyfunc.load_model("models:/surf2vec-users@champion")
        release = model.unwrap_python_model().export.manifest["release"]
        releases.add(release)
    asked = [f"user-{number}" for number in rng.integers(0, 10, 3)]
    answer = model.predict(pd.DataFrame({"user_id": asked}), params={"k": 2, "items": 2} if read % 50 == 0 else {})
    assert answer["user_id"].tolist() == asked
    found = {vector[0] for vector in answer["vector"]}
    assert found == {float(release[1:])}, f"read {read}: vectors of releases {found} in an answer of {release}"
print(*sorted(releases))
"""


@pytest.mark.long
@pytest.mark.parametrize("storage", ONE_IN_CI)
def test_ten_thousand_reads_meet_whole_releases_and_no_error(tmp_path: Path, storage: str) -> None:
    root = Root(tmp_path / "root")
    root.path.mkdir()
    publish = PublishConfig(keep_releases=1, copy_below=STORAGES[storage].copy_below)
    make_night(root, "r1", FIRST, publish)
    make_night(root, "r2", PASSED, publish)
    arguments = [str(NUM_READS // READERS), str(READS_A_LOAD)]
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, root.tracking_uri, str(seed), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for seed in range(READERS)
    ]  # fmt: skip
    night, removed = 2, 0
    while any(reader.poll() is None for reader in readers):
        night += 1
        make_night(root, f"r{night}", PASSED, publish)
        rollback(root, publish, None)
        assert read_registry(root, publish).serving == f"r{night - 1}"
        promote(root, publish, night, "it was not its fault")
        time.sleep(0.5)
        with lock_root(root, "gc"), lock_aliases(root), lock_store(root.store):
            told = collect_garbage(root, publish, dry_run=False)
        removed += sum(one["what"] == "export" for one in told["removed"])
        assert set(told["kept_releases"]) == {f"r{night}", f"r{night - 1}"}
    for reader in readers:
        out, err = reader.communicate()
        assert reader.returncode == 0, err[-3000:]
        assert len(out.split()) > 2, "the champion changed while it was read"
    assert removed >= night - 2
    assert night > 4
