"""Commands about releases: promote, rollback, pull, word2vec, restore."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.options import ROOT, Call, Release, TrackingUri, command
from flows.cli.show import show_values
from trainer.errors import ConfigError


@command("surf2vec promote 7 --override 'a holiday' --root my-root", show_values)
def promote(
    call: Call,
    version: Annotated[int | None, typer.Argument(min=1, help="The version; by default the challenger.")] = None,
    override: Annotated[
        str | None,
        typer.Option("--override", help="Why a version that was held or rolled back may serve all the same."),
    ] = None,
) -> dict[str, Any]:
    """Let a version serve: it becomes the champion. One that the gate held needs --override with a reason, which is kept."""
    from tasks.registry.promotion import promote

    if override is not None and not override.strip():
        raise ConfigError('--override is empty: say why, as in --override "the shop was closed yesterday"')
    return promote(call.root, call.config.publish, version, override, call.on_event)


@command("surf2vec rollback --root my-root", show_values)
def rollback(
    call: Call,
    version: Annotated[int | None, typer.Argument(min=1, help="The version; by default the champion before.")] = None,
) -> dict[str, Any]:
    """Let the champion before serve again, at once, also while a night runs. The same call again changes nothing."""
    from tasks.registry.promotion import rollback

    return rollback(call.root, call.config.publish, version, call.on_event)


@command("surf2vec pull models:/surf2vec-users@champion --out vectors", show_values, ROOT)
def pull(
    call: Call,
    uri: Release,
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")],
    since: Annotated[
        int | None,
        typer.Option(min=1, help="A version: --out gets only the rows that changed after it, and who is gone."),
    ] = None,
    tracking_uri: TrackingUri = None,
) -> dict[str, Any]:
    """Vectors out of the registry, in the export's layout. With --since only what changed. Killed, it goes on."""
    from tasks.registry.pull import pull
    from tasks.registry.pull_since import pull_since
    from tasks.root.identity import registry_uri
    from tasks.root.run import Root
    from tasks.users.tombstones import read_tombstones

    root, on_event = Root(call.path), call.on_event
    place, forgotten = tracking_uri or registry_uri(root, call.config.publish), read_tombstones(root)
    if since is None:
        return pull(uri, out, place, on_event, forgotten)
    return pull_since(uri, out, since, place, on_event, forgotten)


@command("surf2vec word2vec --out users.bin --root my-root", show_values)
def word2vec(
    call: Call,
    out: Annotated[Path, typer.Option("--out", help="File to write; .gz for gzip.")],
    which: Annotated[str, typer.Option("--which", help="users or items.")] = "users",
    text: Annotated[bool, typer.Option("--text", help="Write text; by default binary.")] = False,
) -> dict[str, Any]:
    """The vectors of the release that serves as a word2vec-format file, for gensim's KeyedVectors and others."""
    from tasks.queries.word2vec import export_word2vec
    from tasks.registry.publish import current_release

    release = current_release(call.root, call.config.publish)
    return export_word2vec(call.root.export(release), out, which, not text, call.on_event)


@command("surf2vec restore --from models:/surf2vec-users@champion --root new", show_values, ROOT)
def restore(
    call: Call,
    uri: Annotated[str, typer.Option("--from", help="Which release: models:/NAME@champion or models:/NAME/VERSION.")],
    tracking_uri: TrackingUri = None,
) -> dict[str, Any]:
    """Make a root that was lost out of a release, so that the next night goes on from it."""
    from tasks.root.identity import registry_uri
    from tasks.root.run import lock_root, open_root
    from tasks.upkeep.restore import restore
    from trainer.store.writer import lock_store

    root = open_root(call.path)
    place = tracking_uri or registry_uri(root, call.config.publish)
    with lock_root(root, "restore", call.log), lock_store(root.store):
        return restore(root, uri, place, call.on_event)
