"""Whom a call looks for, and where it need not look."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from surf2vec.tasks.release.release_reader import user_hash
from surf2vec.tasks.users.pseudonyms import keyed_digest
from surf2vec.tasks.users.tombstones import Tombstones
from surf2vec.tasks.users.user_set import want_forgotten, want_users


def test_only_some_micro_partitions_can_have_them() -> None:
    ids = [f"user-{i}" for i in range(40)]
    wanted = want_users(ids[:2])
    assert wanted.partitions(8) == sorted({user_hash(user_id) % 8 for user_id in ids[:2]})
    assert wanted.find(pa.array(["user-1", None, "user-7"])).tolist() == [True, False, False]
    forgotten = want_forgotten(Tombstones(b"k", {keyed_digest("user-7", b"k"): date(2026, 11, 1)}))
    assert forgotten.partitions(4) == [0, 1, 2, 3]
    assert forgotten.find(pa.array(["user-1", None, "user-7"])).tolist() == [False, False, True]


def test_row_groups_of_other_micro_partitions_are_not_read(tmp_path: Path) -> None:
    ids = sorted((f"user-{i}" for i in range(200)), key=lambda user_id: (user_hash(user_id) % 8, user_id))
    table = pa.table({"micro_partition": pa.array([user_hash(u) % 8 for u in ids], pa.int32()), "user_id": ids})
    pq.write_table(table, tmp_path / "events.parquet", row_group_size=10)
    with pq.ParquetFile(tmp_path / "events.parquet") as file:
        for user_id in ("user-0", "user-77", "user-199"):
            wanted = want_users([user_id])
            groups = wanted.groups(file.metadata, 8)
            assert ids.index(user_id) // 10 in groups
            assert len(groups) <= 5
            assert wanted.find(file.read(columns=["user_id"])["user_id"]).sum() == 1
