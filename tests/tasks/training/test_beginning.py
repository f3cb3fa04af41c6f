"""Why a night trains everything from scratch: each reason by itself, and none where the champion can be gone on from."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from surf2vec.tasks.config import NightlyConfig, PublishConfig
from surf2vec.tasks.registry.releases import read_registry
from surf2vec.tasks.root.records import ReleaseBefore
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.training import beginning
from surf2vec.tasks.training.base import BaseRelease, open_base
from surf2vec.tasks.training.beginning import NightRequest, plan_night, why_full
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.store.generation import Generation
from surf2vec.trainer.system.files import write_json

CONFIG = TrainConfig(vector_size=16)
INPUTS: dict[str, Any] = {
    "format_version": 2,
    "partitions": 8, "rules": {"timezone": "UTC"}, "user_key_fingerprint": None, "cleaning": {"min_item_events": 5},
    "max_users": 20_000, "sources": ["b"], "days": ["2026-01-01", "2026-01-09"],
}  # fmt: skip
CORPUS = {"made_from": INPUTS | {"sources": ["a"], "days": ["2026-01-01", "2026-01-08"]}}
ASKED = NightRequest(CONFIG, NightlyConfig(full_every_days=7), INPUTS, is_full=False)


def base_with(config: TrainConfig = CONFIG, blocks: int = 1, full_until: str | None = "2026-01-05") -> BaseRelease:
    manifest = {
        "config": asdict(config),
        "items": {"interest": [{}] * blocks},
        "generation": 3,
        "vector_size": config.vector_size,
    }
    told = ReleaseBefore(release="one", window_id="w1", space_id="space", full_until=full_until)
    return BaseRelease(told, Generation(Path("store"), manifest))


def test_a_night_goes_on_from_the_champion() -> None:
    assert why_full(ASKED, base_with(), CORPUS) is None


@pytest.mark.parametrize(
    ("asked", "base", "reason"),
    [
        (replace(ASKED, is_full=True), base_with(), "--full"),
        (ASKED, None, "no champion"),
        (replace(ASKED, config=replace(CONFIG, epochs=3)), base_with(), "train.epochs"),
        (replace(ASKED, inputs=INPUTS | {"partitions": 16}), base_with(), "partitions"),
        (replace(ASKED, inputs=INPUTS | {"cleaning": {"min_item_events": 6}}), base_with(), "cleaning"),
        (replace(ASKED, config=replace(CONFIG, hs=1)), base_with(replace(CONFIG, hs=1)), "tree"),
        (ASKED, base_with(blocks=3), "3 blocks"),
        (replace(ASKED, inputs=INPUTS | {"days": [None, "2026-01-07"]}), base_with(), "ends on 2026-01-07"),
        (ASKED, base_with(full_until="2026-01-02"), "full_every_days is 7"),
    ],
)
def test_why_a_night_is_full(asked: NightRequest, base: BaseRelease | None, reason: str) -> None:
    told = why_full(asked, base, CORPUS if base else {})
    assert told is not None
    assert reason in told


def test_settings_that_do_not_say_what_is_learned_change_nothing() -> None:
    asked = replace(ASKED, config=replace(CONFIG, threads=7, commit_seconds=1.0))
    assert why_full(asked, base_with(), CORPUS) is None


@pytest.mark.parametrize(("has_order", "reason"), [(False, None), (True, "changed since release one: train.parts")])
def test_a_champion_of_one_part_is_gone_on_from_where_its_log_has_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_order: bool, reason: str | None
) -> None:
    """The settings ask for both parts; the log decides, and a night must not be full for it every time."""
    corpus = tmp_path / "corpus" / "w1"
    corpus.mkdir(parents=True)
    write_json(corpus / "manifest.json", CORPUS | {"has_order": has_order})
    champion = base_with(replace(CONFIG, parts="interest"))
    monkeypatch.setattr(beginning, "open_base", lambda root, release: champion)
    plan = plan_night(Root(tmp_path), "one", ASKED, "digest")
    assert plan.full_because == reason
    assert (plan.base is None) == has_order


@pytest.mark.parametrize(("discount", "popularity"), [(0.5, 0.2), (0.4, 0.0)])
def test_a_night_keeps_the_popularity_unless_its_discount_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, discount: float, popularity: float
) -> None:
    corpus = tmp_path / "corpus" / "w1"
    corpus.mkdir(parents=True)
    write_json(corpus / "manifest.json", CORPUS | {"has_order": True})
    monkeypatch.setattr(beginning, "open_base", lambda root, release: base_with(replace(CONFIG, popularity=0.2)))
    asked = replace(ASKED, config=replace(CONFIG, discount=discount))
    assert plan_night(Root(tmp_path), "one", asked, "digest").popularity == popularity


def test_a_log_without_times_never_grows_old() -> None:
    inputs = INPUTS | {"days": [None, None]}
    corpus = {"made_from": CORPUS["made_from"] | {"days": [None, None]}}
    assert why_full(replace(ASKED, inputs=inputs), base_with(full_until=None), corpus) is None


def test_a_new_root_has_nothing_to_build_on(tmp_path: Path) -> None:
    assert read_registry(Root(tmp_path), PublishConfig()).serving is None
    assert open_base(Root(tmp_path), "one") is None
    assert not (tmp_path / "mlflow.db").exists()
