"""What a release gives away: attacks from its files alone (tests/hostile/attacks.py), on two logs.

member     half of the users are in the log. An attacker knows the pages of somebody, all of them or all but the newest, and asks
           whether this person was in it. AUC with its 95 % interval (.5: no better than chance), by the nearest
           trail, the nearest interest, and the loss of the next pages. An attacker who knows the user id needs none of it: ids
           are in the release, or their pseudonyms.
rebuild    the last pages of users from their trails: how often the newest page, and all of them, are exact; how often rare
           ones, seen by fewer than RARE_USERS; and how often a rare page from further back is among the first ten items.
link       two releases with pseudonyms under different keys, of the same events, and of every second event each: how often the
           nearest vector is the same person's, among as many as there are.

levels     members and last pages (all pages are known), and hit@20, by noise on the vectors; and without trails. The hit@20 is of
           the same users' newest new pages, held out, in another training. Activity: an attacker knows when a person was there.

The first three for several `min_item_users`; trail_weight is .35. No mark: it is measured, good or bad.

    python -m tests.benchmarks.privacy [--users 6000] [--seed 1] [--log all] [--only all]
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from surf2vec.tasks.activity.count import read_activity
from surf2vec.tasks.activity.scale import scale_activity
from surf2vec.tasks.config import EvaluateConfig, IngestConfig
from surf2vec.tasks.corpus.build import build_corpus
from surf2vec.tasks.corpus.window import CorpusRequest
from surf2vec.tasks.evaluation.evaluate import measure, questions, rank_all, rank_held_out
from surf2vec.tasks.evaluation.scores import score_of
from surf2vec.tasks.export.noise import add_noise
from surf2vec.tasks.ingest.ingest import ingest
from surf2vec.tasks.release.folder import open_folder
from surf2vec.tasks.release.url_rules import UrlRules, canonical_item
from surf2vec.tasks.root.run import Root, open_root
from surf2vec.tasks.users.pseudonyms import pseudonym
from surf2vec.trainer.config import TrainConfig, config_from_dict
from surf2vec.trainer.events import ignore_event
from surf2vec.trainer.store.generation import Generation, open_generation
from surf2vec.trainer.store.tokens import Corpus, open_corpus
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train
from surf2vec.trainer.training.vectors import BothParts
from tests.benchmarks.harness import make_case, run_benchmark
from tests.benchmarks.logs import MEMORY_BYTES, THREADS
from tests.hostile import attacks
from tests.hostile.attacks import Release
from tests.roots.releases import export_release

LOGS = ("wikispeedia_unfinished", "yoochoose_100k")
MIN_ITEM_USERS = (1, 3, 10)
NOISES = (0.0, 0.25, 0.5, 1.0, 2.0)
RARE_USERS = 10
EPOCHS = TrainConfig().epochs
CANDIDATES, REBUILT = 1000, 300
KEY = "SURF2VEC_PRIVACY_KEY"


def measure_privacy(
    data: Path, users: int = 6000, seed: int = 1, log: str = "all", only: str = "all"
) -> list[dict[str, Any]]:
    """A case for each log, each `min_item_users` and each attack, and for each level; `log` names one of LOGS, or all.

    only: "levels", or all.
    """
    cases = []
    for name in LOGS if log == "all" else (log,):
        events = draw_users(pl.read_parquet(data / f"{name}.parquet"), users, seed)
        with tempfile.TemporaryDirectory() as folder:
            cases += attack_levels(name, events, Path(folder), seed)
        for fewest in MIN_ITEM_USERS if only == "all" else ():
            with tempfile.TemporaryDirectory() as folder:
                cases += attack_one(name, events, fewest, Path(folder), seed)
        with tempfile.TemporaryDirectory() as folder:
            cases += [] if only == "levels" else attack_two(name, events, Path(folder))
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
    config = TrainConfig(threads=THREADS, epochs=EPOCHS, trail_weight=0.35, seed=seed)
    corpus, generation = train_events(folder, events, fewest, key, config)
    return Release.open(export_release(Root(folder / "root"), "r1", corpus.folder, generation))


def train_events(
    folder: Path, events: pl.DataFrame, fewest: int, key: str, config: TrainConfig, max_users: int = 0
) -> tuple[Corpus, Generation]:
    """The corpus of these events, where at most so many users have one held out, and its training."""
    folder.mkdir(parents=True)
    events.write_parquet(folder / "log.parquet")
    os.environ[KEY] = key
    settings = IngestConfig(min_item_users=fewest, min_item_events=min(5, fewest * 2 - 1), user_key_env=KEY)
    root = open_root(folder / "root")
    ingest(root, [str(folder / "log.parquet")], settings, None, MEMORY_BYTES, THREADS, ignore_event)
    built = build_corpus(root, CorpusRequest(settings, EvaluateConfig(max_users=max_users)), MEMORY_BYTES, THREADS)
    train(Job(root.corpus(built["window_id"]), root.store, config, MEMORY_BYTES))
    return open_corpus(root.corpus(built["window_id"])), open_generation(root.store)


def list_histories(events: pl.DataFrame, names: Sequence[str]) -> list[list[str]]:
    """The pages of these users, oldest first."""
    grouped = dict(events.group_by("user_id", maintain_order=True).agg("url").rows())
    return [grouped[name] for name in names]


def split_users(events: pl.DataFrame, seed: int) -> tuple[list[str], list[str]]:
    """Half of the users, and the others, at random."""
    names = np.random.default_rng(seed).permutation(events["user_id"].unique().sort().to_list())
    return names[: len(names) // 2].tolist(), names[len(names) // 2 :].tolist()


def attack_levels(log: str, events: pl.DataFrame, folder: Path, seed: int) -> list[dict[str, Any]]:
    """Membership, rebuilding and hit@20 by noise on the vectors of half of the users, and without trails."""
    members, others = split_users(events, seed)
    half = events.filter(pl.col("user_id").is_in(members))
    cases = []
    for side, noises, weight in (("trails", NOISES, None), ("none", (0.0,), 0.0)):
        config = config_from_dict({"threads": THREADS, "epochs": EPOCHS, "trail_weight": weight, "seed": seed})
        attacked = train_events(folder / side, half, 3, "a key of 16 bytes", config)
        everyone = train_events(folder / f"{side}-held", events, 3, "a key of 16 bytes", config, len(events))
        for noise in noises:
            root, release_id = Root(folder / side / "root"), f"r{noise:g}"
            export_dir = export_release(root, release_id, attacked[0].folder, attacked[1], noise=noise, activity=True)
            release = Release.open(export_dir)
            found = attack_membership(release, events, members, others, {})[: len(attacks_of(release))]
            found += attack_histories(release, events, members, {}) if release.sums else []
            figures = {case["case"]: case["ratio"] for case in found} | {
                "member: activity": attack_activity(release, export_dir, everyone[0], members, others),
                "hit_at_20": measure_level(*everyone, noise),
            }
            level = f"noise {noise:g}" if release.sums else "no trails"
            about = {"log": log, "level": level, "users": len(release.names)}
            cases.append(make_case(f"level: {level}", figures["hit_at_20"], "none", True) | about | figures)
    return cases


def attack_activity(
    release: Release, export_dir: Path, everyone: Corpus, members: list[str], others: list[str]
) -> float:
    """The AUC of membership by the nearest activity, by the release's quantiles, as of a log with all of these users."""
    quantiles = open_folder(export_dir).manifest["activity"]["quantiles"]
    known: dict[str, Any] = {}
    for partition in range(everyone.num_partitions):
        numbers = scale_activity(read_activity(everyone, partition), quantiles)
        known |= zip(everyone.read_ids(partition).to_pylist(), numbers, strict=True)
    there = release.users[:, release.parts["activity"]]
    sides = []
    for side in (members, others):
        found = [known[one] for name in side if (one := pseudonym(name, b"a key of 16 bytes")) in known][:CANDIDATES]
        sides.append(np.array([-np.min(np.linalg.norm(there - one, axis=1)) for one in found], np.float32))
    return attacks.auc(*sides)[0]


def measure_level(corpus: Corpus, generation: Generation, noise: float) -> float:
    """The hit@20 of the held-out users with noise on their vectors."""
    scores = score_of(generation, corpus.count_training_tokens())

    def rank(question: Any, **report: Any) -> Any:
        names = map(bytes, question.vectors)
        vectors = add_noise(question.vectors, generation, noise, b"a key of the root", names)
        return (rank_held_out(replace(question, vectors=vectors), scores),)

    asked = ((question,) for question, _ in questions(corpus, BothParts(generation, corpus)))
    return measure(rank_all(asked, rank)[0], corpus.num_items)["hit_at_20"]


def attack_one(log: str, events: pl.DataFrame, fewest: int, folder: Path, seed: int) -> list[dict[str, Any]]:
    """Membership and rebuilding in a release of half of the users."""
    members, others = split_users(events, seed)
    release = train_release(
        folder / "one", events.filter(pl.col("user_id").is_in(members)), fewest, "a key of 16 bytes"
    )
    about = {"log": log, "min_item_users": fewest, "users": len(release.names), "items": len(release.urls)}
    cases = attack_membership(release, events, members, others, about)
    cases += attack_histories(release, events, members, about)
    return cases


def attacks_of(release: Release) -> list[Callable[..., Any]]:
    """The attacks on membership; one without trails."""
    by_trail = [attacks.score_by_nearest_trail, attacks.score_by_loss] if release.sums else []
    return [*by_trail, attacks.score_by_nearest_interest]


def attack_membership(
    release: Release, events: pl.DataFrame, members: list[str], others: list[str], about: dict[str, Any]
) -> list[dict[str, Any]]:
    cases = []
    for known, cut in (("all pages", 0), ("all but the newest", 1)):
        sides = []
        for side in (members, others):
            pages = [one[: len(one) - cut] for one in list_histories(events, side[: 3 * CANDIDATES])]
            sides.append([one for one in pages if len(release.find_items(one)) > 1][:CANDIDATES])
        for attack in attacks_of(release):
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
    newest, whole, each, rare, far = [], [], [], [], []
    for name, history in zip(people[:REBUILT], list_histories(events, people[:REBUILT]), strict=True):
        seen = release.find_items(history)[::-1]
        vector = release.users[rows[pseudonym(name, b"a key of 16 bytes")]]
        truth = seen[: len(release.trail_sums.lags)]
        found = attacks.rebuild_pages(release, vector[release.trail])
        newest.append(found[:1] == truth[:1])
        whole.append(found == truth)
        each += [page in found for page in truth]
        rare += [page in found for page in truth if readers[release.urls[page]] < RARE_USERS]
        scores = release.items[:, release.interest] @ vector[release.interest]
        best = set(np.argsort(-scores)[:10].tolist())
        far += [page in best for page in seen[len(truth) :] if readers[release.urls[page]] < RARE_USERS]
    return [
        make_case(f"rebuild: {what}", float(np.mean(hits)), "none", True) | about | {"of": len(hits)}
        for what, hits in (
            ("the newest page", newest),
            ("all last pages", whole),
            ("each of the last pages", each),
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
    small = {"users": 3_000, "log": "wikispeedia_unfinished", "MIN_ITEM_USERS": (3,), "NOISES": (0.0, 1.0)}
    sys.exit(run_benchmark(measure_privacy, small=small | {"CANDIDATES": 50, "REBUILT": 30, "EPOCHS": 2}))
