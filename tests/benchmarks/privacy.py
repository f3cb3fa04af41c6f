"""What a release gives away: attacks from its files alone (tests/hostile/attacks.py), on two logs.

member     half of the users are in the log. An attacker knows the pages of somebody, all of them or all but the newest, and asks
           whether this person was in it. AUC with its 95 % interval (.5: no better than chance), by the nearest
           trail, the nearest interest, and the loss of the next pages. An attacker who knows the user id needs none of it: ids
           are in the release, or their pseudonyms.
rebuild    the last pages of users from their trails: how often the newest page, and all of them, are exact; how often rare
           ones, seen by fewer than RARE_USERS; and how often a rare page from further back is among the first ten items.
link       two releases with pseudonyms under different keys, of the same events, and of every second event each: how often the
           nearest vector is the same person's, among as many as there are.

Each for several `min_item_users`; trail_weight is .35. No mark: it is measured, good or bad.

    python -m tests.benchmarks.privacy [--users 6000] [--seed 1] [--log all]
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.release.url_rules import UrlRules, canonical_item
from surf2vec.tasks.root.run import open_root
from surf2vec.tasks.users.pseudonyms import pseudonym
from surf2vec.trainer.config import TrainConfig
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import MEMORY_BYTES, THREADS
from tests.hostile import attacks
from tests.hostile.attacks import Release
from tests.roots.releases import export_release

LOGS = ("wikispeedia_unfinished", "yoochoose_100k")
MIN_ITEM_USERS = (1, 3, 10)
RARE_USERS = 10
CANDIDATES, REBUILT = 1000, 300
KEY = "SURF2VEC_PRIVACY_KEY"


def measure_privacy(data: Path, users: int = 6000, seed: int = 1, log: str = "all") -> list[dict[str, Any]]:
    """A case for each log, each `min_item_users` and each attack; `log` names one of LOGS, or all."""
    cases = []
    for name in LOGS if log == "all" else (log,):
        events = draw_users(pl.read_parquet(data / f"{name}.parquet"), users, seed)
        for fewest in MIN_ITEM_USERS:
            with tempfile.TemporaryDirectory() as folder:
                cases += attack_one(name, events, fewest, Path(folder), seed)
        with tempfile.TemporaryDirectory() as folder:
            cases += attack_two(name, events, Path(folder))
    return cases


def draw_users(events: pl.DataFrame, num: int, seed: int) -> pl.DataFrame:
    """The events of so many users with two or more, in order; `url` as its item."""
    counts = events.group_by("user_id").len().filter(pl.col("len") > 1).sort("user_id")
    chosen = counts.sample(min(num, len(counts)), seed=seed, shuffle=True)
    urls = events["url"].unique().to_list()
    items = pl.DataFrame({"url": urls, "item": [canonical_item(url, UrlRules()) for url in urls]})
    kept = events.with_row_index("line").join(chosen.select("user_id"), on="user_id").join(items, on="url")
    return kept.filter(pl.col("item").is_not_null()).sort("ts", "line").select("user_id", url="item", ts="ts")


def train_release(folder: Path, events: pl.DataFrame, fewest: int, key: str, seed: int = 1) -> Release:
    """A release of these events as a night makes it, with pseudonyms under this key and no user held out."""
    folder.mkdir(parents=True)
    events.write_parquet(folder / "log.parquet")
    os.environ[KEY] = key
    settings = IngestConfig(min_item_users=fewest, min_item_events=min(5, fewest * 2 - 1), user_key_env=KEY)
    root = open_root(folder / "root")
    ingest(root, [str(folder / "log.parquet")], settings, None, MEMORY_BYTES, THREADS, ignore_event)
    built = build_corpus(root, CorpusRequest(settings, EvaluateConfig(max_users=0)), MEMORY_BYTES, THREADS)
    config = TrainConfig(threads=THREADS, trail_weight=0.35, seed=seed)
    train(Job(root.corpus(built["window_id"]), root.store, config, MEMORY_BYTES))
    return Release.open(export_release(root, "r1", root.corpus(built["window_id"]), open_generation(root.store)))


def list_histories(events: pl.DataFrame, names: Sequence[str]) -> list[list[str]]:
    """The pages of these users, oldest first."""
    grouped = dict(events.group_by("user_id", maintain_order=True).agg("url").rows())
    return [grouped[name] for name in names]


def attack_one(log: str, events: pl.DataFrame, fewest: int, folder: Path, seed: int) -> list[dict[str, Any]]:
    """Membership and rebuilding in a release of half of the users."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(events["user_id"].unique().sort().to_list())
    members, others = names[: len(names) // 2].tolist(), names[len(names) // 2 :].tolist()
    release = train_release(
        folder / "one", events.filter(pl.col("user_id").is_in(members)), fewest, "a key of 16 bytes"
    )
    about = {"log": log, "min_item_users": fewest, "users": len(release.names), "items": len(release.urls)}
    cases = attack_membership(release, events, members, others, about)
    cases += attack_histories(release, events, members, about)
    return cases


def attack_membership(
    release: Release, events: pl.DataFrame, members: list[str], others: list[str], about: dict[str, Any]
) -> list[dict[str, Any]]:
    cases = []
    for known, cut in (("all pages", 0), ("all but the newest", 1)):
        sides = []
        for side in (members, others):
            pages = [one[: len(one) - cut] for one in list_histories(events, side[: 3 * CANDIDATES])]
            sides.append([one for one in pages if len(release.find_items(one)) > 1][:CANDIDATES])
        for attack in (attacks.score_by_nearest_trail, attacks.score_by_nearest_interest, attacks.score_by_loss):
            mid, low, high = attacks.auc(*(attack(release, side) for side in sides))
            cases.append(
                make_case(f"member: {attack.__name__.removeprefix('score_by_')}, {known}", mid, "none", True)
                | about
                | {"members": len(sides[0]), "others": len(sides[1]), "auc": mid, "low": low, "high": high}
            )
    return cases


def attack_histories(
    release: Release, events: pl.DataFrame, members: list[str], about: dict[str, Any]
) -> list[dict[str, Any]]:
    rows = {name: row for row, name in enumerate(release.names)}
    people = [name for name in members if pseudonym(name, b"a key of 16 bytes") in rows]
    readers = dict(
        events.filter(pl.col("user_id").is_in(members)).group_by("url").agg(pl.col("user_id").n_unique()).rows()
    )
    newest, whole, rare, far = [], [], [], []
    for name, history in zip(people[:REBUILT], list_histories(events, people[:REBUILT]), strict=True):
        seen = release.find_items(history)[::-1]
        vector = release.users[rows[pseudonym(name, b"a key of 16 bytes")]]
        truth = seen[: len(release.sums.lags)]
        found = attacks.rebuild_pages(release.sums, vector[release.trail])
        newest.append(found[:1] == truth[:1])
        whole.append(found == truth)
        rare += [page in found for page in truth if readers[release.urls[page]] < RARE_USERS]
        scores = release.items[:, release.interest] @ vector[release.interest]
        best = set(np.argsort(-scores)[:10].tolist())
        far += [page in best for page in seen[len(truth) :] if readers[release.urls[page]] < RARE_USERS]
    return [
        make_case(f"rebuild: {what}", float(np.mean(hits)), "none", True) | about | {"of": len(hits)}
        for what, hits in (
            ("the newest page", newest),
            ("all last pages", whole),
            ("rare last pages", rare),
            ("rare pages further back", far),
        )
        if hits
    ]


def attack_two(log: str, events: pl.DataFrame, folder: Path) -> list[dict[str, Any]]:
    """Linking: two trainings of other seeds, under other keys."""
    turn = events.with_columns(turn=pl.int_range(pl.len()).over("user_id") % 2)
    pairs = {
        "the same events": (events, events),
        "every second event each": tuple(turn.filter(pl.col("turn") == one).drop("turn") for one in (0, 1)),
    }
    cases = []
    for number, (what, (first, second)) in enumerate(pairs.items()):
        one = train_release(folder / f"{number}a", first, 3, "one key of sixteen bytes or more", seed=1)
        other = train_release(folder / f"{number}b", second, 3, "another key of sixteen bytes or more", seed=2)
        names = events["user_id"].unique().to_list()
        mine = {pseudonym(name, b"one key of sixteen bytes or more"): name for name in names}
        theirs = {pseudonym(name, b"another key of sixteen bytes or more"): name for name in names}
        in_both = {mine[name] for name in one.names} & {theirs[name] for name in other.names}
        linked = attacks.link_users(one, other)
        hits = [
            mine[name] == theirs[other.names[row]]
            for name, row in zip(one.names, linked, strict=True)
            if mine[name] in in_both
        ]
        cases.append(
            make_case(f"link: {what}", float(np.mean(hits)), "none", True)
            | {"log": log, "users": len(hits), "among": len(other.names), "linked": float(np.mean(hits))}
            | {"chance": 1 / len(other.names)}
        )
    return cases


if __name__ == "__main__":
    sys.exit(run_benchmark(measure_privacy, small={"users": 3_000, "log": "wikispeedia_unfinished"}))
