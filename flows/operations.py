"""What a person asks of a root besides a night: look, infer, tune, pull, promote, forget, repartition, collect, check, ..."""

import os
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from flows.config import PipelineConfig
from tasks.config import PublishConfig
from tasks.corpus.build import build_corpus
from tasks.corpus.window import CorpusRequest
from tasks.ingest.ingest import choose_partitions, ingest
from tasks.ingest.user_key import read_user_key
from tasks.queries.similar import similar_users
from tasks.root.identity import registry_uri
from tasks.root.run import FORGET, Root, lock_root, open_root
from tasks.sample import logs as sample_logs
from tasks.training.forecast import Volume
from tasks.upkeep import doctor
from tasks.users.ids_files import read_ids
from tasks.users.pseudonyms import pseudonym
from tasks.users.tombstones import read_tombstones
from trainer.errors import ConfigError, InputError
from trainer.events import OnEvent
from trainer.store.generation import lock_store
from trainer.system.units import parse_bytes

if TYPE_CHECKING:
    from tasks.tuning.study import Search


def require_root(path: Path) -> Root:
    """The root at `path`. Raises InputError when nothing was ever run there."""
    if not (path / "sources.json").exists():
        raise InputError(f"{path} is no surf2vec root: name one with --root, or make one with `surf2vec run`")
    return Root(path)


def find_similar(path: Path, user_id: str, k: int, config: PipelineConfig) -> dict[str, Any]:
    """Nearest users and items that rank first, in the release that serves (the champion's)."""
    from tasks.registry.publish import current_release  # MLflow takes two seconds to import

    root = require_root(path)
    key = read_user_key(root, config.ingest)
    known_as = pseudonym(user_id, key) if key else user_id
    release = current_release(root, config.publish)
    return similar_users(root, root.export(release), known_as, k)


def explain(path: Path, user_id: str, config: PipelineConfig) -> dict[str, Any]:
    """What is known of one user, for the operator who asks."""
    from tasks.queries.explain import explain_user

    root = require_root(path)
    key = read_user_key(root, config.ingest)
    return {"user_id": user_id} | explain_user(root, config.publish, pseudonym(user_id, key) if key else user_id)


def plan_size(path: Path, volume: Volume, config: PipelineConfig, num_workers: int | None = None) -> dict[str, Any]:
    """The plan for a training of this size in the root at `path`, which need not exist, on this machine as it is now.

    Micro-partitions are as configured, or as ingest would choose; num_workers: by default those of this machine.
    """
    from tasks.training.forecast import plan_size

    partitions = config.store.partitions or choose_partitions(volume.users)
    return plan_size(path, replace(volume, partitions=partitions), config.train, config.resources, num_workers)


def infer_vectors(path: Path, logs: list[str], out: Path, config: PipelineConfig, on_event: OnEvent) -> dict[str, Any]:
    """Vectors of the users in `logs` in the file `out`, by the release that serves (the champion's)."""
    from flows.ray_cluster import open_fan_out
    from tasks.queries.infer import Inference, infer
    from tasks.registry.publish import current_release

    root = require_root(path.resolve() if config.resources.ray_address else path)
    asked = Inference(logs, out, config.ingest, config.train, parse_bytes(config.resources.host_memory))
    with open_fan_out(config.resources, root) as fan_out:
        return infer(root, current_release(root, config.publish), asked, on_event, fan_out)


def write_word2vec(
    path: Path, out: Path, which: str, binary: bool, config: PipelineConfig, on_event: OnEvent
) -> dict[str, Any]:
    """A word2vec-format file of the users' or items' vectors in the release that serves (the champion's)."""
    from tasks.queries.word2vec import export_word2vec
    from tasks.registry.publish import current_release

    root = require_root(path)
    return export_word2vec(root.export(current_release(root, config.publish)), out, which, binary, on_event)


def tune_settings(
    path: Path, logs: list[str], config: PipelineConfig, asked: "Search", on_event: OnEvent
) -> dict[str, Any]:
    """The best settings that a search finds on a sample of the corpus of `logs`, or of the newest corpus of the root."""
    from tasks.corpus.folder import newest_corpus
    from tasks.tuning.tune import tune

    if logs:
        root = open_root(path)
        window_id = prepare_corpus(root, logs, config, on_event)
    else:
        root = require_root(path)
        window_id = newest_corpus(root)
    return tune(root, window_id, asked, on_event)


def prepare_corpus(root: Root, logs: list[str], config: PipelineConfig, on_event: OnEvent) -> str:
    """The window id of the corpus that a night would make of these logs; what is there already is not made again."""
    memory_bytes, threads = parse_bytes(config.resources.host_memory), config.train.threads or os.cpu_count() or 1
    with lock_root(root, "tune", lambda line: on_event("log", {"message": line})):
        ingest(root, logs, config.ingest, config.store.partitions, memory_bytes, threads, on_event)
        request = CorpusRequest(config.ingest, config.evaluate, window_days=config.window_days)
        built = build_corpus(root, request, memory_bytes, threads, on_event)
    return built["window_id"]


def pull_release(
    path: Path, uri: str, out: Path, since: int | None, tracking_uri: str | None, on_event: OnEvent
) -> dict[str, Any]:
    """A release out of the registry into `out`; with `since`, a version, only what changed after it."""
    from tasks.registry.pull import pull
    from tasks.registry.pull_since import pull_since

    place = tracking_uri or registry_uri(Root(path), PublishConfig())
    forgotten = read_tombstones(Root(path))
    if since is None:
        return pull(uri, out, place, on_event, forgotten)
    return pull_since(uri, out, since, place, on_event, forgotten)


def restore_root(path: Path, uri: str, tracking_uri: str | None, on_event: OnEvent) -> dict[str, Any]:
    """A root out of a release, after the one there was is lost."""
    from tasks.upkeep.restore import restore

    root = open_root(path)
    place = tracking_uri or registry_uri(root, PublishConfig())
    with lock_root(root, "restore", lambda line: on_event("log", {"message": line})), lock_store(root.store):
        return restore(root, uri, place, on_event)


def forget_users(path: Path, ids_file: Path | None, config: PipelineConfig, on_event: OnEvent) -> dict[str, Any]:
    """The users in a file, or all who were ever forgotten, taken out of every place that can name them."""
    from tasks.forgetting.forget import Forgetting, forget

    root = require_root(path)
    user_ids = None
    if ids_file is not None:
        user_ids, key = read_ids(ids_file, config.ingest.columns), read_user_key(root, config.ingest)
        user_ids = sorted(pseudonym(user_id, key) for user_id in user_ids) if key else user_ids
    asked = Forgetting(user_ids, config.publish, parse_bytes(config.resources.host_memory))
    with (
        lock_root(root, FORGET, lambda line: on_event("log", {"message": line})),
        lock_store(root.store) if root.store.exists() else nullcontext(),
    ):
        return forget(root, asked, on_event)


def promote_version(
    path: Path, version: int | None, override: str | None, config: PipelineConfig, on_event: OnEvent
) -> dict[str, Any]:
    """A version, by default the challenger, made the one that serves."""
    from tasks.registry.promotion import promote

    if override is not None and not override.strip():
        raise ConfigError('--override is empty: say why, as in --override "the shop was closed yesterday"')
    return promote(require_root(path), config.publish, version, override, on_event)


def rollback_champion(path: Path, version: int | None, config: PipelineConfig, on_event: OnEvent) -> dict[str, Any]:
    """The champion before, or another version that served, made the one that serves."""
    from tasks.registry.promotion import rollback

    return rollback(require_root(path), config.publish, version, on_event)


def repartition_root(path: Path, config: PipelineConfig, on_event: OnEvent) -> dict[str, Any]:
    """The root in as many micro-partitions as the configuration says, or as ingest would choose today."""
    from tasks.upkeep.repartition import repartition

    root = require_root(path)
    memory_bytes, threads = parse_bytes(config.resources.host_memory), config.train.threads or os.cpu_count() or 1
    with lock_root(root, "repartition", lambda line: on_event("log", {"message": line})):
        return repartition(root, config.store.partitions, memory_bytes, threads, on_event)


def collect_garbage(path: Path, config: PipelineConfig, dry_run: bool, on_event: OnEvent) -> dict[str, Any]:
    """What nothing in the root refers to any more, removed, or with `dry_run` only named."""
    from tasks.registry.promotion import lock_aliases
    from tasks.upkeep import gc

    root = require_root(path)
    with (
        lock_root(root, "gc", lambda line: on_event("log", {"message": line})),
        lock_aliases(root),
        lock_store(root.store) if root.store.exists() else nullcontext(),
    ):
        return gc.collect_garbage(root, config.publish, dry_run, on_event)


def measure_champion(path: Path, config: PipelineConfig) -> dict[str, Any]:
    """The release that serves, and how many days ago it was registered. Raises InputError when none does."""
    from tasks.registry import tracking
    from tasks.registry.pull import find_version

    uri = registry_uri(Root(path), config.publish)
    version = find_version(f"models:/{config.publish.model_name}@champion", uri)
    age = datetime.now(UTC) - tracking.get_creation(uri, version)
    return {
        "model_name": version.name,
        "model_version": version.number,
        "release": version.tags["release"],
        "age_days": round(age / timedelta(days=1), 3),
    }


def examine_root(path: Path) -> dict[str, Any]:
    """What `doctor` finds: every finding, and how many are damage and warnings."""
    findings = doctor.examine(require_root(path))
    return {
        "findings": [{"level": f.level, "place": f.place, "message": f.message} for f in findings],
        "damage": sum(f.level == "damage" for f in findings),
        "warnings": sum(f.level == "warning" for f in findings),
    }


def make_sample_logs(
    out: Path, users: int, days: int, items: int, seed: int, file_format: str, on_event: OnEvent
) -> dict[str, Any]:
    """Realistic logs in `out`. Raises InputError for a format that there is not."""
    if file_format not in get_args(sample_logs.Format):
        raise InputError(f"--format {file_format!r} is none of {', '.join(get_args(sample_logs.Format))}")
    return sample_logs.write_sample_logs(out, users, days, items, seed, file_format, on_event)  # type: ignore[arg-type]
