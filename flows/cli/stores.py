"""The command that brings a release into a store: push."""

from typing import Annotated, Any

import typer

from surf2vec.flows.cli.options import Call, TrackingUri, command
from surf2vec.flows.cli.show import show_values


@command("surf2vec push postgresql://me@db.example/shop --root my-root", show_values)
def push(
    call: Call,
    store: Annotated[
        str, typer.Argument(help="postgresql://, lancedb:///, qdrant:// or parquet:/// (docs/stores.md).")
    ],
    uri: Annotated[
        str | None, typer.Option("--from", help="models:/NAME@ALIAS or models:/NAME/VERSION; by default what serves.")
    ] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Let readers see the release before again.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Write every row, not only what differs.")] = False,
    tracking_uri: TrackingUri = None,
) -> dict[str, Any]:
    """Vectors into the store that serves: only what differs, checked, then one switch for readers. Killed, it goes on."""
    from surf2vec.tasks.stores.places import open_store

    with open_store(store) as opened:  # before the slow imports: a wrong URL is told at once
        from surf2vec.tasks.root.identity import registry_uri
        from surf2vec.tasks.root.run import Root
        from surf2vec.tasks.stores.push import open_pushed, push, roll_back
        from surf2vec.tasks.users.tombstones import read_tombstones

        if rollback:
            return roll_back(opened, call.on_event)
        root, publish = Root(call.path), call.config.publish
        place = tracking_uri or registry_uri(root, publish)
        with open_pushed(root, uri or f"models:/{publish.model_name}@champion", place, call.on_event) as pushed:
            return push(opened, pushed, whole, call.on_event, read_tombstones(root))
