"""Commands about releases (promote, rollback, pull, word2vec, restore), commands that maintain a root (repartition, gc,
doctor, rejects), and sample-logs, which makes logs for experiments.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from surf2vec.flows.cli.options import HOST_MEMORY, ROOT, Call, Out, TrackingUri, command
from surf2vec.flows.cli.show import show_findings, show_rejects, show_removed, show_values
from surf2vec.trainer.errors import ConfigError, InputError

RELEASE = "Which release: models:/NAME@champion or models:/NAME/VERSION."


@command("surf2vec promote 7 --override 'a holiday' --root my-root", show_values)
def promote(
    call: Call,
    version: Annotated[int | None, typer.Argument(min=1, help="The version; by default the challenger.")] = None,
    override: Annotated[
        str | None, typer.Option(help="Why a version that was held or rolled back may serve all the same.")
    ] = None,
) -> dict[str, Any]:
    """Let a version serve: it becomes the champion. One that the gate held needs --override with a reason, which is kept."""
    from surf2vec.tasks.registry.promotion import promote

    if override is not None and not override.strip():
        raise ConfigError('--override is empty: say why, as in --override "the shop was closed yesterday"')
    return promote(call.root, call.config.publish, version, override, call.on_event)


@command("surf2vec rollback --root my-root", show_values)
def rollback(
    call: Call,
    version: Annotated[int | None, typer.Argument(min=1, help="The version; by default the champion before.")] = None,
) -> dict[str, Any]:
    """Let the champion before serve again, at once, also while a night runs. The same call again changes nothing."""
    from surf2vec.tasks.registry.promotion import rollback

    return rollback(call.root, call.config.publish, version, call.on_event)


@command("surf2vec pull models:/surf2vec-users@champion --out vectors", show_values, ROOT)
def pull(
    call: Call,
    uri: Annotated[str, typer.Argument(help=RELEASE)],
    out: Out,
    since: Annotated[
        int | None,
        typer.Option(min=1, help="A version: --out gets only the rows that changed after it, and who is gone."),
    ] = None,
    tracking_uri: TrackingUri = None,
) -> dict[str, Any]:
    """Vectors out of the registry, in the export's layout. With --since only what changed. Killed, it goes on."""
    from surf2vec.tasks.registry.pull import pull
    from surf2vec.tasks.registry.pull_since import pull_since
    from surf2vec.tasks.root.identity import registry_uri
    from surf2vec.tasks.root.run import Root
    from surf2vec.tasks.users.tombstones import read_tombstones

    root, on_event = Root(call.path), call.on_event
    place, forgotten = tracking_uri or registry_uri(root, call.config.publish), read_tombstones(root)
    if since is None:
        return pull(uri, out, place, on_event, forgotten)
    return pull_since(uri, out, since, place, on_event, forgotten)


@command("surf2vec word2vec --out users.bin --root my-root", show_values)
def word2vec(
    call: Call,
    out: Annotated[Path, typer.Option(help="File to write; .gz for gzip.")],
    which: Annotated[str, typer.Option(help="users or items.")] = "users",
    text: Annotated[bool, typer.Option("--text", help="Write text; by default binary.")] = False,
) -> dict[str, Any]:
    """The vectors of the release that serves as a word2vec-format file, for gensim's KeyedVectors and others."""
    from surf2vec.tasks.queries.word2vec import export_word2vec
    from surf2vec.tasks.registry.releases import current_release

    release = current_release(call.root, call.config.publish)
    return export_word2vec(call.root.export(release), out, which, not text, call.on_event)


@command("surf2vec restore --from models:/surf2vec-users@champion --root new", show_values, ROOT)
def restore(
    call: Call, uri: Annotated[str, typer.Option("--from", help=RELEASE)], tracking_uri: TrackingUri = None
) -> dict[str, Any]:
    """Make a root that was lost out of a release, so that the next night goes on from it."""
    from surf2vec.tasks.root.identity import registry_uri
    from surf2vec.tasks.root.run import lock_root, open_root
    from surf2vec.tasks.upkeep.restore import restore
    from surf2vec.trainer.store.writer import lock_store

    root = open_root(call.path)
    place = tracking_uri or registry_uri(root, call.config.publish)
    with lock_root(root, "restore", call.log), lock_store(root.store):
        return restore(root, uri, place, call.on_event)


@command("surf2vec repartition --partitions 64 --root my-root", show_values, HOST_MEMORY)
def repartition(
    call: Call,
    partitions: Annotated[
        int | None, typer.Option(help="A power of two, 1 to 65,536; by default what ingest would choose today.")
    ] = None,
) -> dict[str, Any]:
    """Split or join the micro-partitions of a root that grew. The next night is full; until then the champion serves on."""
    from surf2vec.tasks.root.run import lock_root
    from surf2vec.tasks.upkeep.repartition import repartition

    root, config = call.root, call.config
    with lock_root(root, "repartition", call.log):
        wanted = partitions or config.store.partitions
        return repartition(root, wanted, config.host_bytes, config.threads, call.on_event)


@command("surf2vec gc --dry-run --root my-root", show_removed)
def gc(
    call: Call,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> dict[str, Any]:
    """Remove what nothing refers to any more: old releases, corpora and vectors, and what killed calls left."""
    from surf2vec.tasks.registry.promotion import lock_aliases
    from surf2vec.tasks.root.run import lock_root
    from surf2vec.tasks.upkeep.gc import collect_garbage
    from surf2vec.trainer.store.writer import lock_store

    root = call.root
    with (
        lock_root(root, "gc", call.log),
        lock_aliases(root),
        lock_store(root.store) if root.store.exists() else nullcontext(),
    ):
        return collect_garbage(root, call.config.publish, dry_run, call.on_event)


@command("surf2vec doctor --root my-root", show_findings, ROOT, lambda result: int(result["damage"] > 0))
def doctor(call: Call) -> dict[str, Any]:
    """Check a root: checksums, counts, orphaned files. Exit 1 when something is damaged."""
    from surf2vec.tasks.upkeep.doctor import examine

    findings = examine(call.root)
    return {
        "findings": [{"level": f.level, "place": f.place, "message": f.message} for f in findings],
        "damage": sum(f.level == "damage" for f in findings),
        "warnings": sum(f.level == "warning" for f in findings),
    }


@command("surf2vec rejects --most 100 --root my-root", show_rejects, ROOT)
def rejects(
    call: Call, most: Annotated[int, typer.Option(min=0, help="Lines shown of each source.")] = 20
) -> dict[str, Any]:
    """Print which lines of the logs could not be used, and why: source, line number, reason, counts; never what is in them."""
    from surf2vec.tasks.ingest.rejects import list_rejects
    from surf2vec.tasks.root.run import Root

    return list_rejects(Root(call.path), most)


@command("surf2vec sample-logs --users 100000 --out logs", show_values, ROOT)
def sample_logs(
    call: Call,
    out: Out,
    users: Annotated[int, typer.Option(min=1, help="Users.")] = 20_000,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days of browsing.")] = 7,
    items: Annotated[int, typer.Option(min=1, help="Pages.")] = 5_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
    file_format: Annotated[str, typer.Option("--format", help="csv, jsonl, parquet or combined.")] = "csv",
) -> dict[str, Any]:
    """Write realistic browsing logs to try things on."""
    from surf2vec.tasks.sample.logs import write_sample_logs
    from surf2vec.tasks.sample.world import Format

    if file_format not in get_args(Format):
        raise InputError(f"--format {file_format!r} is none of {', '.join(get_args(Format))}")
    return write_sample_logs(out, users, days, items, seed, file_format, call.on_event)  # type: ignore[arg-type]
