"""A night pushes what serves to its stores. One that is away fails by itself, and the next night brings it up to date."""

from pathlib import Path

import pytest

from surf2vec.operations import push
from surf2vec.tasks.night.config import load_config
from surf2vec.tasks.night.night import make_night
from surf2vec.tasks.night.reporter import PUSH_FAILED, Reporter
from surf2vec.tasks.root.run import Root, Run
from surf2vec.trainer.events import ignore_event
from tests.flows.test_night_after_night import FAST, first_days
from tests.roots.pushes import read_served
from tests.roots.releases import read_users


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Prefect's and MLflow's own warnings
def test_a_store_that_was_away_catches_up_by_a_push_or_by_the_next_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms = []
    monkeypatch.setattr(
        Reporter, "raise_alarm", lambda self, event, release, **facts: alarms.append((event, release, facts))
    )
    first_days(tmp_path / "logs")
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    stores = [f"parquet://{tmp_path / 'store'}", f"parquet://{blocked}/one", f"parquet://{blocked}/two"]
    config = load_config(None, [*FAST, *(f"publish.stores={stores}".replace("'", '"'),)])
    night = {"root": tmp_path / "root", "logs": [str(tmp_path / "logs" / "*.csv")], "config": config}
    result = make_night(**night)
    assert result["alias"] == "champion"
    serves = {name: vector.tolist() for name, vector in read_users(Path(result["export_dir"])).items()}
    assert read_served(stores[0]) == serves
    pushed = Run(Root(tmp_path / "root"), result["run_id"]).record().steps.push
    assert pushed is not None
    assert [one.get("release") for one in pushed.stores] == [result["release"], None, None]
    assert "cannot write to parquet" in pushed.stores[1]["error"]
    assert [(event, release) for event, release, _ in alarms] == [(PUSH_FAILED, result["release"])] * 2
    blocked.unlink()
    push(stores[1], root=tmp_path / "root", config=config, on_event=ignore_event)
    assert read_served(stores[1]) == serves
    make_night(**night)
    assert read_served(stores[2]) == serves
    assert len(alarms) == 2
