"""Commands about releases and those that maintain a root, as functions. See surf2vec/commands.py."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, get_args

from surf2vec.arguments import ROOT, configure, existing_root
from surf2vec.tasks.night.config import PipelineConfig
from surf2vec.tasks.night.reporter import print_event
from surf2vec.tasks.root.run import Root, lock_root, open_root
from surf2vec.trainer.errors import ConfigError, InputError
from surf2vec.trainer.events import OnEvent, log

Result = dict[str, Any]


def promote(
    version: int | None = None,
    override: str | None = None,
    root: str | Path = ROOT,
    *,
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Make a version the champion, so that it serves. One that the gate held needs a reason to override, which is kept.

    version: by default the challenger.
    """
    from surf2vec.tasks.registry.promotion import promote

    if override is not None and not override.strip():
        raise ConfigError('--override is empty: say why, as in --override "the shop was closed yesterday"')
    return promote(existing_root(root), configure(config, settings).publish, version, override, on_event)


def rollback(
    version: int | None = None,
    root: str | Path = ROOT,
    *,
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Restore the previous champion, also while a night runs. The same call again changes nothing.

    version: another version that served.
    """
    from surf2vec.tasks.registry.promotion import rollback

    return rollback(existing_root(root), configure(config, settings).publish, version, on_event)


def pull(
    uri: str,
    out: str | Path,
    root: str | Path = ROOT,
    tracking_uri: str | None = None,
    since: int | None = None,
    *,
    on_event: OnEvent = print_event,
) -> Result:
    """Download a release from the registry, in the export's layout; with since only what changed. Resumable.

    uri: models:/NAME@champion or models:/NAME/VERSION, in the registry of `root` or at `tracking_uri`. out: the folder.
    since: a version; `out` gets only the rows that changed after it, and who is gone.
    """
    from surf2vec.tasks.registry.pull import pull
    from surf2vec.tasks.registry.pull_since import pull_since
    from surf2vec.tasks.users.tombstones import read_tombstones

    opened = Root(Path(root))
    place, forgotten = _registry(opened, tracking_uri), read_tombstones(opened)
    if since is None:
        return pull(uri, Path(out), place, on_event, forgotten)
    return pull_since(uri, Path(out), since, place, on_event, forgotten)


def push(
    store: str,
    uri: str | None = None,
    root: str | Path = ROOT,
    tracking_uri: str | None = None,
    *,
    rollback: bool = False,
    whole: bool = False,
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Push a release to a store: write the differences, verify, switch. Resumable.

    store: its URL (docs/stores.md). uri: models:/NAME@ALIAS or models:/NAME/VERSION; by default the champion.
    rollback: switch readers back to the previous release instead. whole: write every row.
    """
    from surf2vec.tasks.stores.places import open_store

    with open_store(store) as opened:  # before the slow imports: a wrong URL is refused at once
        from surf2vec.tasks.stores.push import open_pushed, push, roll_back
        from surf2vec.tasks.users.tombstones import read_tombstones

        if rollback:
            return roll_back(opened, on_event)
        place, publish = Root(Path(root)), configure(config, settings).publish
        uri, registry = uri or f"models:/{publish.model_name}@champion", _registry(place, tracking_uri, publish)
        with open_pushed(place, uri, registry, on_event) as pushed:
            return push(opened, pushed, whole, on_event, read_tombstones(place))


def _registry(root: Root, tracking_uri: str | None, publish: Any = None) -> str:
    from surf2vec.tasks.root.identity import registry_uri

    return tracking_uri or registry_uri(root, publish or configure(None, {}).publish)


def word2vec(
    out: str | Path,
    which: str = "users",
    text: bool = False,
    root: str | Path = ROOT,
    *,
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Write the vectors of the release that serves as a word2vec-format file, for gensim's KeyedVectors and others.

    which: users or items. text: write text; by default binary.
    """
    from surf2vec.tasks.queries.word2vec import export_word2vec
    from surf2vec.tasks.registry.releases import current_release

    opened = existing_root(root)
    release = current_release(opened, configure(config, settings).publish)
    return export_word2vec(opened.export(release), Path(out), which, not text, on_event)


def restore(
    uri: str, root: str | Path = ROOT, tracking_uri: str | None = None, *, on_event: OnEvent = print_event
) -> Result:
    """Rebuild a lost root from a release, so that the next night continues from it."""
    from surf2vec.tasks.upkeep.restore import restore
    from surf2vec.trainer.store.writer import lock_store

    opened = open_root(Path(root))
    place = _registry(opened, tracking_uri)
    with lock_root(opened, "restore", partial(log, on_event)), lock_store(opened.store):
        return restore(opened, uri, place, on_event)


def repartition(
    partitions: int | None = None,
    root: str | Path = ROOT,
    *,
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Split or join the micro-partitions of a root that grew. The next night is full; the champion serves until then.

    partitions: a power of two; by default what ingest would choose today.
    """
    from surf2vec.tasks.upkeep.repartition import repartition

    opened, config = existing_root(root), configure(config, settings)
    with lock_root(opened, "repartition", partial(log, on_event)):
        wanted = partitions or config.store.partitions
        return repartition(opened, wanted, config.host_bytes, config.threads, on_event)


def gc(
    root: str | Path = ROOT,
    *,
    dry_run: bool = False,
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Remove what nothing refers to any more: old releases, corpora and vectors, and what killed calls left.

    dry_run: return what would be removed, and remove nothing.
    """
    from surf2vec.tasks.registry.promotion import lock_aliases
    from surf2vec.tasks.upkeep.gc import collect_garbage
    from surf2vec.trainer.store.writer import lock_store

    opened, publish = existing_root(root), configure(config, settings).publish
    with ExitStack() as locks:
        locks.enter_context(lock_root(opened, "gc", partial(log, on_event)))
        locks.enter_context(lock_aliases(opened))  # before the store's, as everywhere
        if opened.store.exists():
            locks.enter_context(lock_store(opened.store))
        return collect_garbage(opened, publish, dry_run, on_event)


def doctor(root: str | Path = ROOT) -> Result:
    """Check a root: checksums, counts, orphaned files. The command exits with 1 if something is damaged."""
    from surf2vec.tasks.upkeep.doctor import examine

    findings = examine(existing_root(root))
    return {
        "findings": [{"level": f.level, "place": f.place, "message": f.message} for f in findings],
        "damage": sum(f.level == "damage" for f in findings),
        "warnings": sum(f.level == "warning" for f in findings),
    }


def rejects(most: int = 20, root: str | Path = ROOT) -> Result:
    """List which lines of the logs could not be used, and why: source, line number, reason, counts; never their text.

    most: lines of each source.
    """
    from surf2vec.tasks.ingest.rejects import list_rejects

    return list_rejects(Root(Path(root)), most)


def sample_logs(
    out: str | Path,
    users: int = 20_000,
    days: int = 7,
    items: int = 5_000,
    seed: int = 1,
    file_format: str = "csv",
    *,
    on_event: OnEvent = print_event,
) -> Result:
    """Write realistic browsing logs to try things on. The same seed gives the same bytes.

    out: the folder. file_format: csv, jsonl, parquet or combined.
    """
    from surf2vec.tasks.sample.logs import write_sample_logs
    from surf2vec.tasks.sample.world import Format

    if file_format not in get_args(Format):
        raise InputError(f"--format {file_format!r} is none of {', '.join(get_args(Format))}")
    return write_sample_logs(Path(out), users, days, items, seed, file_format, on_event)  # type: ignore[arg-type]
