"""The watch: a champion that is too old is told of, also after a rollback, until a night passes."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from surf2vec.tasks.config import PublishConfig
from surf2vec.tasks.night.reporter import CHAMPION_OLD
from surf2vec.tasks.registry.promotion import rollback
from surf2vec.tasks.root.run import open_root
from tests.roots.nights import FIRST, PASSED, make_night

PUBLISH = PublishConfig(keep_releases=3)


def test_after_a_rollback_the_champion_is_old_until_the_next_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surf2vec.flows import nightly

    alarms = []
    monkeypatch.setattr(
        nightly.PrefectReporter,
        "raise_alarm",
        lambda self, event, release, **facts: alarms.append((event, release, facts)),
    )
    root = open_root(tmp_path / "root")
    make_night(root, "r1", FIRST, PUBLISH)
    with closing(sqlite3.connect(root.database)) as connection, connection:
        connection.execute("update model_versions set creation_time = creation_time - 10 * 86400000")
    make_night(root, "r2", PASSED, PUBLISH)
    assert (nightly.watch.fn(root.path)["release"], alarms) == ("r2", [])
    rollback(root, PUBLISH, None)
    nightly.watch.fn(root.path)
    assert alarms == [(CHAMPION_OLD, "r1", {"age_days": "10.0"})]
    assert nightly.watch.fn(root.path, alert_days=11)["release"] == "r1"
    make_night(root, "r3", PASSED, PUBLISH)
    assert nightly.watch.fn(root.path)["release"] == "r3"
    assert len(alarms) == 1
