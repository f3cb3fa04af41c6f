"""Commands about releases and those that maintain a root, as functions. See surf2vec/commands.py."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from typer import Argument, Option

from surf2vec.arguments import RELEASE, ROOT, Result, RootPath, TrackingUri, choose_registry, configure, existing_root
from surf2vec.tasks.night.reporter import print_event
from surf2vec.trainer.errors import ConfigError, InputError, SurfError
from surf2vec.trainer.events import OnEvent, log

if TYPE_CHECKING:
    from surf2vec.tasks.night.config import PipelineConfig


def promote(
    version: Annotated[int | None, Argument(min=1, help="The version; by default the challenger.")] = None,
    override: Annotated[
        str | None, Option(help="Why a version that was held or rolled back may serve all the same.")
    ] = None,
    root: RootPath = ROOT,
    *,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Make a version the champion, so that it serves. One that the gate held needs a reason to override, which is kept."""
    from surf2vec.tasks.registry.promotion import promote

    if override is not None and not override.strip():
        raise ConfigError('--override is empty: say why, as in --override "the shop was closed yesterday"')
    return promote(existing_root(root), configure(config, settings, root).publish, version, override, on_event)


def rollback(
    version: Annotated[int | None, Argument(min=1, help="The version; by default the previous champion.")] = None,
    root: RootPath = ROOT,
    *,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Restore the previous champion, also while a night runs. The same call again changes nothing."""
    from surf2vec.tasks.registry.promotion import rollback

    return rollback(existing_root(root), configure(config, settings, root).publish, version, on_event)


def pull(
    uri: Annotated[str, Argument(help=RELEASE)],
    out: Annotated[str | Path, Option(help="Folder to write to.")],
    root: RootPath = ROOT,
    tracking_uri: TrackingUri = None,
    since: Annotated[
        int | None, Option(min=1, help="A version: --out gets only the rows that changed after it, and who is gone.")
    ] = None,
    *,
    on_event: OnEvent = print_event,
) -> Result:
    """Download a release from the registry, in the export's layout; with since only what changed. Resumable."""
    from surf2vec.tasks.registry.pull import pull
    from surf2vec.tasks.registry.pull_since import pull_since
    from surf2vec.tasks.root.run import Root
    from surf2vec.tasks.users.tombstones import read_tombstones

    place, forgotten = choose_registry(root, tracking_uri), read_tombstones(Root(Path(root)))
    if since is None:
        return pull(uri, Path(out), place, on_event, forgotten)
    return pull_since(uri, Path(out), since, place, on_event, forgotten)


def push(
    store: Annotated[str, Argument(help="postgresql://, lancedb:///, qdrant:// or parquet:/// (docs/stores.md).")],
    uri: Annotated[
        str | None, Option("--from", help="models:/NAME@ALIAS or models:/NAME/VERSION; by default what serves.")
    ] = None,
    root: RootPath = ROOT,
    tracking_uri: TrackingUri = None,
    *,
    rollback: Annotated[bool, Option("--rollback", help="Switch readers back to the previous release.")] = False,
    whole: Annotated[bool, Option("--whole", help="Write every row, not only what differs.")] = False,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Push a release to a store: write the differences, verify, switch. Resumable."""
    from surf2vec.tasks.root.run import Root
    from surf2vec.tasks.stores.places import open_store

    with open_store(store) as opened:  # before the slow imports: a wrong URL is refused at once
        from surf2vec.tasks.stores.push import open_pushed, push, roll_back
        from surf2vec.tasks.users.tombstones import read_tombstones

        if rollback:
            return roll_back(opened, on_event)
        place, config = Root(Path(root)), configure(config, settings, root)
        uri = uri or f"models:/{config.publish.model_name}@champion"
        with open_pushed(place, uri, choose_registry(root, tracking_uri, config), on_event) as pushed:
            return push(opened, pushed, whole, on_event, read_tombstones(place))


def word2vec(
    out: Annotated[str | Path, Option(help="File to write; .gz for gzip.")],
    which: Annotated[str, Option(help="users or items.")] = "users",
    text: Annotated[bool, Option("--text", help="Write text; by default binary.")] = False,
    root: RootPath = ROOT,
    *,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Write the vectors of the release that serves as a word2vec-format file, for gensim's KeyedVectors and others."""
    from surf2vec.tasks.queries.word2vec import export_word2vec
    from surf2vec.tasks.registry.releases import current_release

    opened = existing_root(root)
    release = current_release(opened, configure(config, settings, root).publish)
    return export_word2vec(opened.export(release), Path(out), which, not text, on_event)


def restore(
    uri: Annotated[str, Option("--from", help=RELEASE)],
    root: RootPath = ROOT,
    tracking_uri: TrackingUri = None,
    *,
    on_event: OnEvent = print_event,
) -> Result:
    """Rebuild a lost root from a release, so that the next night continues from it."""
    from surf2vec.tasks.night.root_settings import remember_run
    from surf2vec.tasks.root.run import lock_root, open_root
    from surf2vec.tasks.upkeep.restore import restore
    from surf2vec.trainer.store.writer import lock_store

    opened = open_root(Path(root))
    place = choose_registry(root, tracking_uri)
    with lock_root(opened, "restore", partial(log, on_event)), lock_store(opened.store):
        restored = restore(opened, uri, place, on_event)
        remember_run(opened, restored["release"], on_event)
        return restored


def repartition(
    partitions: Annotated[
        int | None, Option(help="A power of two, 1 to 65,536; by default what ingest would choose today.")
    ] = None,
    root: RootPath = ROOT,
    *,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Split or join the micro-partitions of a root that grew. The next night is full; the champion serves until then."""
    from surf2vec.tasks.root.run import lock_root
    from surf2vec.tasks.upkeep.repartition import repartition

    opened, config = existing_root(root), configure(config, settings, root)
    with lock_root(opened, "repartition", partial(log, on_event)):
        wanted = partitions or config.store.partitions
        return repartition(opened, wanted, config.host_bytes, config.threads, on_event)


def gc(
    root: RootPath = ROOT,
    *,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Remove what nothing refers to any more: old releases, corpora and vectors, and what killed calls left."""
    from surf2vec.tasks.registry.promotion import lock_aliases
    from surf2vec.tasks.root.run import lock_root
    from surf2vec.tasks.upkeep.gc import collect_garbage
    from surf2vec.trainer.store.writer import lock_store

    opened, publish = existing_root(root), configure(config, settings, root).publish
    with (
        lock_root(opened, "gc", partial(log, on_event)),
        lock_aliases(opened),  # before the store's, as everywhere
        lock_store(opened.store) if opened.store.exists() else nullcontext(),
    ):
        return collect_garbage(opened, publish, dry_run, on_event)


def doctor(root: RootPath = ROOT) -> Result:
    """Check a root: checksums, counts, orphaned files. The command exits with 1 if something is damaged."""
    from surf2vec.tasks.upkeep.doctor import damage, examine

    opened, findings = existing_root(root), []
    try:
        configure(None, {}, root)
    except SurfError as error:
        findings.append(damage(str(opened.settings), str(error)))
    findings = examine(opened) + findings
    return {
        "findings": [{"level": f.level, "place": f.place, "message": f.message} for f in findings],
        "damage": sum(f.level == "damage" for f in findings),
        "warnings": sum(f.level == "warning" for f in findings),
    }


def rejects(
    most: Annotated[int, Option(min=0, help="Lines shown of each source.")] = 20, root: RootPath = ROOT
) -> Result:
    """List which lines of the logs could not be used, and why: source, line number, reason, counts; never their text."""
    from surf2vec.tasks.ingest.rejects import list_rejects
    from surf2vec.tasks.root.run import Root

    return list_rejects(Root(Path(root)), most)


def layouts(
    name: Annotated[str | None, Argument(help="Only this layout.")] = None,
    root: RootPath = ROOT,
    *,
    config: "PipelineConfig | None" = None,
    **settings: Any,
) -> Result:
    """List the layouts of logs that are recognised, with those of the settings: name, title, fields, and an example of each."""
    from surf2vec.tasks.ingest.layouts import describe_fields, list_layouts

    ingest = configure(config, settings, root).ingest.model_copy(update={"layout": name})
    return {
        "layouts": [
            {"name": key, "title": one.title, "fields": describe_fields(one), "sample": one.sample.strip().splitlines()}
            for key, one in list_layouts(ingest).items()
        ]
    }


def sample_logs(
    out: Annotated[str | Path, Option(help="Folder to write to.")],
    users: Annotated[int, Option(min=1, help="Users.")] = 20_000,
    days: Annotated[int, Option(min=1, max=3650, help="Days of browsing.")] = 7,
    items: Annotated[int, Option(min=1, help="Pages.")] = 5_000,
    seed: Annotated[int, Option(help="The same seed gives the same bytes.")] = 1,
    file_format: Annotated[str, Option("--format", help="csv, jsonl, parquet or combined.")] = "csv",
    *,
    on_event: OnEvent = print_event,
) -> Result:
    """Write realistic browsing logs to try things on. The same seed gives the same bytes."""
    from surf2vec.tasks.sample.logs import write_sample_logs
    from surf2vec.tasks.sample.world import Format

    if file_format not in get_args(Format):
        raise InputError(f"--format {file_format!r} is none of {', '.join(get_args(Format))}")
    return write_sample_logs(Path(out), users, days, items, seed, file_format, on_event)  # type: ignore[arg-type]
