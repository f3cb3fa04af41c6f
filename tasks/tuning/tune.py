"""`surf2vec tune`: searches the most important training settings.

A trial trains all users from scratch and ranks the newest new item of some, of what training would see: what evaluation holds
out takes no part. A sample of the users would have fewer users per item, and choose another regularisation. The best mean
reciprocal rank wins, because it depends on every rank; hit@10 is too coarse on few users. The first trial is the given
configuration, so the winner is never below it. No trial is stopped early by its loss: losses with other negatives or exponents
cannot be compared.
"""

import dataclasses
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from surf2vec.tasks.corpus.cleaning import find_held_out, find_key_max
from surf2vec.tasks.corpus.folder import CORPUS_MANIFEST, write_partition
from surf2vec.tasks.evaluation.evaluate import rank_choosing
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.run import Root, lock_root, open_scratch_folder, private_files
from surf2vec.tasks.tuning.study import (
    Search,
    Study,
    apply_settings,
    find_importances,
    propose,
    search_space,
    write_config,
)
from surf2vec.trainer.config import TrainSettings
from surf2vec.trainer.errors import InputError, TrainingError
from surf2vec.trainer.events import OnEvent, ignore_event, log, log_progress
from surf2vec.trainer.store.generation import open_generation
from surf2vec.trainer.store.tokens import (
    VOCABULARY,
    Corpus,
    Tokens,
    gather_spans,
    held_out_keys,
    open_corpus,
    to_offsets,
)
from surf2vec.trainer.system.files import write_json
from surf2vec.trainer.training.job import Job
from surf2vec.trainer.training.loop import train

MAX_ASKED = 20_000
MIN_TRIALS_FOR_IMPORTANCES = 10
NUM_SHOWN = 5
NO_COMMITS_SECONDS = 86_400.0
PARTITION_USERS = 50_000


def tune(root: Root, window_id: str, search: Search, on_event: OnEvent = ignore_event) -> dict[str, Any]:
    """Run trials until `search.trials` have ended, and write the winner's settings to `search.out`. Returns the result.

    The caller needs no lock: a second search of the same root waits. Raises ConfigError, InputError, DamageError or
    ResourceError, and TrainingError if every training diverged.
    """
    started = time.monotonic()
    corpus = open_corpus(root.corpus(window_id))
    lock = Root(root.path / "tune")
    with private_files(root):
        lock.path.mkdir(exist_ok=True)
    with lock_root(lock, "tune", partial(log, on_event)), open_scratch_folder(root, "tune") as folder:
        asked = write_tuning_corpus(corpus, MAX_ASKED, folder / "corpus")
        if not asked.manifest["num_choosing"]:
            raise InputError(
                f"no user of corpus {window_id} has a second page, so trials cannot be compared: give more logs"
            )
        counts = asked.count_training_tokens()
        space = search_space(search.train, counts, asked.has_order, search.max_vector_size)
        study = Study(root, search, asked.manifest, window_id, space)
        trials, about = study.trials, study.corpus
        message = (
            f"searching {', '.join(space)} on {about['num_users']:,} users, "
            f"{about['num_tokens']:,} tokens, {about['num_held_out']:,} users held out; "
            f"{len(trials)} of {search.trials} trials have ended"
        )
        log(on_event, message)
        study.log_trials()  # opens the search's run: a registry that is away fails before a trial takes time
        while len(trials) < search.trials:
            if trials and search.seconds is not None and time.monotonic() - started >= search.seconds:
                log(on_event, f"{search.seconds:g} seconds have passed: no further trial begins")
                break
            given = {name: getattr(search.train, name) for name in space}
            settings = propose(space, trials, search.train.seed) if trials else given
            study.add(*run_trial(asked, folder / "store", search, settings, on_event))
            trial, best = trials[-1], study.best_trial
            outcome = trial["failure"] or f"MRR {trial['metrics']['mrr']:.4f} in {trial['metrics']['seconds']:.1f} s"
            best_so_far = f"the best is trial {best}, MRR {trials[best - 1]['metrics']['mrr']:.4f}"
            log(on_event, f"trial {len(trials)} of {search.trials}: {outcome}; {best_so_far}")
            log_progress(on_event, "tune", len(trials), search.trials, "trials")
        result = conclude(study)
        write_config(study, result)
        study.end_runs(result)
    seconds = round(time.monotonic() - started, 3)
    return result | {"out": str(search.out), "seconds": seconds, "tracking_uri": mask_credentials(study.uri)}


def run_trial(
    corpus: Corpus, store_dir: Path, search: Search, settings: dict[str, Any], on_event: OnEvent
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Train with these settings and rank the held-out items. A training that diverges gives them an infinite rank.

    Returns the trial for the study, and 1 / rank of each held-out item, float64[m]. The store is removed again. Raises
    ResourceError if the training does not fit into memory.
    """
    config = apply_settings(search.train, settings)
    ranks, trained, failure = np.full(corpus.manifest["num_choosing"], np.inf), dict[str, Any](), None
    started = time.monotonic()

    def report(name: str, values: dict[str, Any]) -> None:
        if name == "progress":
            on_event(name, values)

    without_commits = dataclasses.replace(config, commit_seconds=NO_COMMITS_SECONDS)
    try:
        trained = train(Job(corpus.folder, store_dir, without_commits, search.memory_bytes), report)
        ranks = rank_choosing(corpus, open_generation(store_dir))
    except TrainingError as error:
        failure = str(error)
    finally:
        shutil.rmtree(store_dir, ignore_errors=True)
    metrics = {
        "mrr": float((1 / ranks).mean()),
        "hit_at_10": float((ranks <= 10).mean()),
        "hit_at_20": float((ranks <= 20).mean()),
        "seconds": round(trained.get("train_seconds", time.monotonic() - started), 3),
        "tokens_per_second": trained.get("tokens_per_second") or 0.0,
    }
    trial = {
        "settings": {name: getattr(config, name) for name in settings},
        "config": dataclasses.asdict(config),
        "metrics": metrics,
        "failure": failure,
        "ended_at_ms": round(1000 * time.time()),
    }
    return trial, 1 / ranks


def conclude(study: Study) -> dict[str, Any]:
    """Return the winner and the first trial; `best_trials`: the five best and the first. TrainingError if all diverged."""
    trials, best = study.trials, study.best_trial
    winner = trials[best - 1]
    if winner["failure"]:
        raise TrainingError(f"no trial of {len(trials)} stayed finite; the last: {trials[-1]['failure']}")
    gain = winner["gain"]
    verdict = "no trial was better than what was given: its settings are written unchanged"
    if best > 1:
        error = 2 * gain["standard_error"]
        caveat = "; a run and its report show whether it holds for the users held out"
        if gain["mrr"] <= error:
            caveat = ": that may be chance, so keep what you have"
        verdict = f"MRR {gain['mrr']:+.4f} ± {error:.4f} (two standard errors) over what was given{caveat}"
    ranked = sorted(range(len(trials)), key=lambda i: -trials[i]["metrics"]["mrr"])
    shown = ranked[:NUM_SHOWN] + ([] if 0 in ranked[:NUM_SHOWN] else [0])
    has_many = len(trials) >= MIN_TRIALS_FOR_IMPORTANCES
    defaults = {field.name: field.default for field in dataclasses.fields(TrainSettings)}
    best_settings = {name: winner["config"][name] for name in defaults}  # in the order that the defaults have
    return {
        "trials": len(trials),
        "best_trial": best,
        "metrics": {"default": trials[0]["metrics"], "best": winner["metrics"]},
        "settings": {name: value for name, value in best_settings.items() if value != defaults[name]},
        "corpus": study.corpus,
        "gain": gain,
        "verdict": verdict,
        "best_trials": [
            {"trial": i + 1}
            | {name: trials[i]["metrics"][name] for name in ("mrr", "hit_at_10", "seconds")}
            | {name: trials[i]["settings"][name] for name in study.space}
            for i in shown
        ],
        "importances": find_importances(study.space, trials) if has_many else {},
    }


def write_tuning_corpus(corpus: Corpus, max_asked: int, folder: Path) -> Corpus:
    """Write a corpus of all users without what `corpus` holds out. Fewer users per item would choose other settings.

    The newest new item of at most `max_asked` users is held out again, to choose by it (`Histories.is_choosing`); nobody is
    evaluated. `folder` is new. Its vocabulary is a link. Raises DamageError when a file of the corpus was altered.
    """
    folder.mkdir()
    (folder / VOCABULARY).symlink_to(corpus.path(VOCABULARY).absolute())
    num_users, num_tokens, keys = [], [], []
    files = {VOCABULARY: corpus.manifest["files"][VOCABULARY]}
    num_partitions = -(-corpus.num_users // PARTITION_USERS)
    for partition, group in enumerate(np.array_split(np.arange(corpus.num_partitions), num_partitions)):
        users, tokens = _read_seen(corpus, group.tolist())
        held_out = find_held_out(tokens)
        files |= write_partition(
            folder, partition, users, offsets=tokens.offsets, tokens=tokens.tokens, held_out=held_out
        )
        num_users.append(len(users))
        num_tokens.append(len(tokens.tokens))
        keys.append(held_out_keys(users["hash"].to_numpy()[held_out >= 0]))
    key_max, num_choosing = find_key_max(np.sort(np.concatenate(keys)), max_asked)
    manifest = corpus.manifest | {
        "window_id": f"{corpus.manifest['window_id']}/tune", "partitions": num_partitions, "users": num_users,
        "holes": [0] * num_partitions, "tokens": num_tokens,
        "num_users": sum(num_users), "num_tokens": sum(num_tokens), "num_held_out": num_choosing,
        "num_choosing": num_choosing, "held_out_key_max": key_max, "evaluated_key_max": -1, "files": files,
    }  # fmt: skip
    write_json(folder / CORPUS_MANIFEST, manifest)
    return open_corpus(folder)


def _read_seen(corpus: Corpus, partitions: list[int]) -> tuple[pa.Table, Tokens]:
    """Return the users of these micro-partitions who have tokens that training sees, and these tokens."""
    users, lengths, tokens = [], [], []
    for partition in partitions:
        histories = corpus.read(partition)
        length = histories.ends - histories.starts  # 0 in a hole
        rows = np.flatnonzero(length > 0)
        users.append(corpus.read_users(partition).take(pa.array(rows)))
        lengths.append(length[rows])
        tokens.append(gather_spans(histories.tokens, histories.starts[rows], length[rows])[1])
    return pa.concat_tables(users), Tokens(to_offsets(np.concatenate(lengths)), np.concatenate(tokens))
