"""Export: the layout, the same bytes each time, nothing half made, and an index that finds what brute force finds."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from surf2vec.tasks.config import ExportConfig
from surf2vec.tasks.export.export import USER_ROW_GROUP_ROWS, Export, export_vectors
from surf2vec.tasks.release.release_reader import list_files, unit_rows
from surf2vec.tasks.root.run import Root
from surf2vec.trainer.errors import DamageError, ResourceError, TrainingError
from surf2vec.trainer.system.files import read_json, verify_file
from tests.data.corpora import user_hash
from tests.roots.files import bytes_of
from tests.roots.releases import NUM_ITEMS, draw_generation, make_corpus, make_release, read_items, read_users


@pytest.fixture
def job(tmp_path: Path) -> Export:
    """A release of a small corpus."""
    root = Root(tmp_path)
    return Export(make_corpus(root), root.export("r1"), "r1", "run-1", "space-1", ExportConfig(activity=False))


def test_every_user_and_item_comes_out_with_its_vector(job: Export) -> None:
    generation, events = draw_generation(job.corpus_dir), []
    told = export_vectors(job, generation, lambda *event: events.append(event))
    users = read_users(job.export_dir)
    for partition in range(4):
        part = job.export_dir / "user_vectors" / f"part-{partition:05d}.parquet"
        ids = pq.read_table(part)["user_id"].to_pylist()
        assert ids == sorted(ids, key=str.encode)
        assert {user_hash(user_id) % 4 for user_id in ids} == {partition}
        np.testing.assert_array_equal([users[user_id] for user_id in ids], generation.users[partition])
    urls, items = read_items(job.export_dir)
    assert urls == [f"/page/{i}" for i in range(NUM_ITEMS)]
    np.testing.assert_array_equal(items, generation.items)
    assert told["num_users"] == len(users) == events[-1][1]["done"]
    assert told["bytes"] == sum(len(found) for name, found in bytes_of(job.export_dir).items() if "json" not in name)


def test_the_manifest_names_every_file_with_its_checksum(tmp_path: Path) -> None:
    folder = make_release(Root(tmp_path), num_users=3, partitions=64)
    manifest = read_json(folder / "manifest.json")
    files = list_files(manifest)
    for name, about in files.items():
        verify_file(folder / name, about)
    assert set(bytes_of(folder)) == {*files, "manifest.json"}
    assert sum(about["rows"] for about in manifest["user_files"].values()) == manifest["num_users"]
    assert len(manifest["user_files"]) <= 10 < manifest["partitions"], "partitions without users have no file"
    assert manifest["created_from"] == {"window_id": "window-r1", "run_id": "run-r1"}


def test_the_same_vectors_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (make_release(Root(tmp_path / name)) for name in ("a", "b"))
    assert bytes_of(first) == bytes_of(second)


def test_an_export_that_is_there_is_left_alone_and_another_generation_replaces_it(job: Export, tmp_path: Path) -> None:
    told = export_vectors(job, draw_generation(job.corpus_dir))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = export_vectors(job, draw_generation(job.corpus_dir))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert again | {"index_seconds": 0} == told | {"index_seconds": 0}
    export_vectors(job, draw_generation(job.corpus_dir, seed=2))
    assert read_json(job.export_dir / "manifest.json")["generation"] == 2
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["r1"]


def test_a_failure_half_way_leaves_the_old_export_and_nothing_else(job: Export, tmp_path: Path) -> None:
    export_vectors(job, draw_generation(job.corpus_dir))
    before = bytes_of(tmp_path)
    broken = draw_generation(job.corpus_dir, seed=2)
    broken.users[2] = np.full_like(broken.users[2], np.nan)
    with pytest.raises(TrainingError, match=r"micro-partition 2 has \d+ of \d+ vectors that are not finite"):
        export_vectors(job, broken)
    assert bytes_of(tmp_path) == before


def test_vectors_of_another_corpus_are_refused(job: Export) -> None:
    other = draw_generation(job.corpus_dir)
    other.users = other.users[:2]
    with pytest.raises(DamageError, match="2 micro-partitions and 40 items but .* has 4 and 40"):
        export_vectors(job, other)
    other = draw_generation(job.corpus_dir)
    other.users[1] = other.users[1][:-1]
    with pytest.raises(DamageError, match="micro-partition 1 has vectors of shape"):
        export_vectors(job, other)
    fitting = draw_generation(job.corpus_dir)
    (job.corpus_dir / "p00000.users.parquet").unlink()
    with pytest.raises(DamageError, match=r"p00000\.users\.parquet is missing; remove"):
        export_vectors(job, fitting)


def test_a_full_disk_is_told_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ResourceError, match=r"needs about 0\.00 GB but the disk .* has 0\.00 GB free"):
        make_release(Root(tmp_path))
    assert list((tmp_path / "export").iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "export").write_text("a file where the folder of releases should be")
    with pytest.raises(ResourceError, match=r"cannot write .*/export/r1: .*; free or widen that disk"):
        make_release(Root(tmp_path))


def test_row_groups_are_small_and_say_their_ids(tmp_path: Path) -> None:
    folder = make_release(Root(tmp_path), num_users=700, partitions=2)
    metadata = pq.read_metadata(folder / "user_vectors" / "part-00000.parquet")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups[:-1]] == [USER_ROW_GROUP_ROWS] * (len(groups) - 1)
    least = [group.column(0).statistics.min for group in groups[:2]]
    assert least == sorted(least)


def test_the_index_finds_what_brute_force_finds(tmp_path: Path) -> None:
    folder = make_release(Root(tmp_path), num_users=700)
    units = unit_rows(np.stack(list(read_users(folder).values())))
    index = faiss.read_index(str(folder / "index" / "users.faiss"), faiss.IO_FLAG_MMAP_IFC)
    scores, rows = index.search(units, 11)
    cosines = units @ units.T
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, rows, axis=1), atol=1e-3)
    np.testing.assert_allclose(scores, -np.sort(-cosines, axis=1)[:, :11], atol=1e-3)
    np.testing.assert_array_equal(rows[:, 0], np.arange(len(units)))


@pytest.mark.slow
def test_faiss_torch_and_the_kernel_live_in_one_process() -> None:
    program = """
import numpy as np, torch
from tests.trainer.kernels.work import make_config, make_rows, make_work
from surf2vec.trainer.kernels import pick_kernel
import faiss
work = make_work(make_config(threads=2), num_users=400)
vectors = np.random.default_rng(0).standard_normal((20_000, 32), dtype=np.float32)
for _ in range(3):
    pick_kernel("cpu", work.config).train_users(*make_rows(work), work)
    torch.from_numpy(vectors) @ torch.from_numpy(vectors[:500]).T
    index = faiss.IndexScalarQuantizer(32, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    index.add(vectors)
    index.search(vectors[:500], 10)
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr
