"""Commands about releases (promote, rollback, pull, push, word2vec, restore), commands that maintain a root (repartition, gc,
doctor, rejects), and sample-logs, which makes logs for experiments.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from surf2vec import operations
from surf2vec.flows.cli.options import HOST_MEMORY, ROOT, Given, Out, TrackingUri, command
from surf2vec.flows.cli.show import show_findings, show_rejects, show_removed, show_values

RELEASE = "Which release: models:/NAME@champion or models:/NAME/VERSION."


@command("surf2vec promote 7 --override 'a holiday' --root my-root", show_values)
def promote(
    given: Given,
    version: Annotated[int | None, typer.Argument(min=1, help="The version; by default the challenger.")] = None,
    override: Annotated[
        str | None, typer.Option(help="Why a version that was held or rolled back may serve all the same.")
    ] = None,
) -> dict[str, Any]:
    return operations.promote(version, override, **given)


@command("surf2vec rollback --root my-root", show_values)
def rollback(
    given: Given,
    version: Annotated[int | None, typer.Argument(min=1, help="The version; by default the previous champion.")] = None,
) -> dict[str, Any]:
    return operations.rollback(version, **given)


@command("surf2vec pull models:/surf2vec-users@champion --out vectors", show_values, ROOT)
def pull(
    given: Given,
    uri: Annotated[str, typer.Argument(help=RELEASE)],
    out: Out,
    since: Annotated[
        int | None,
        typer.Option(min=1, help="A version: --out gets only the rows that changed after it, and who is gone."),
    ] = None,
    tracking_uri: TrackingUri = None,
) -> dict[str, Any]:
    return operations.pull(uri, out, tracking_uri=tracking_uri, since=since, **given)


@command("surf2vec push postgresql://me@db.example/shop --root my-root", show_values)
def push(
    given: Given,
    store: Annotated[
        str, typer.Argument(help="postgresql://, lancedb:///, qdrant:// or parquet:/// (docs/stores.md).")
    ],
    uri: Annotated[
        str | None, typer.Option("--from", help="models:/NAME@ALIAS or models:/NAME/VERSION; by default what serves.")
    ] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Switch readers back to the previous release.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Write every row, not only what differs.")] = False,
    tracking_uri: TrackingUri = None,
) -> dict[str, Any]:
    return operations.push(store, uri, tracking_uri=tracking_uri, rollback=rollback, whole=whole, **given)


@command("surf2vec word2vec --out users.bin --root my-root", show_values)
def word2vec(
    given: Given,
    out: Annotated[Path, typer.Option(help="File to write; .gz for gzip.")],
    which: Annotated[str, typer.Option(help="users or items.")] = "users",
    text: Annotated[bool, typer.Option("--text", help="Write text; by default binary.")] = False,
) -> dict[str, Any]:
    return operations.word2vec(out, which, text, **given)


@command("surf2vec restore --from models:/surf2vec-users@champion --root new", show_values, ROOT)
def restore(
    given: Given, uri: Annotated[str, typer.Option("--from", help=RELEASE)], tracking_uri: TrackingUri = None
) -> dict[str, Any]:
    return operations.restore(uri, tracking_uri=tracking_uri, **given)


@command("surf2vec repartition --partitions 64 --root my-root", show_values, HOST_MEMORY)
def repartition(
    given: Given,
    partitions: Annotated[
        int | None, typer.Option(help="A power of two, 1 to 65,536; by default what ingest would choose today.")
    ] = None,
) -> dict[str, Any]:
    return operations.repartition(partitions, **given)


@command("surf2vec gc --dry-run --root my-root", show_removed)
def gc(
    given: Given,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> dict[str, Any]:
    return operations.gc(dry_run=dry_run, **given)


@command("surf2vec doctor --root my-root", show_findings, ROOT, lambda result: int(result["damage"] > 0))
def doctor(given: Given) -> dict[str, Any]:
    return operations.doctor(**given)


@command("surf2vec rejects --most 100 --root my-root", show_rejects, ROOT)
def rejects(
    given: Given, most: Annotated[int, typer.Option(min=0, help="Lines shown of each source.")] = 20
) -> dict[str, Any]:
    return operations.rejects(most, **given)


@command("surf2vec sample-logs --users 100000 --out logs", show_values, ROOT)
def sample_logs(
    given: Given,
    out: Out,
    users: Annotated[int, typer.Option(min=1, help="Users.")] = 20_000,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days of browsing.")] = 7,
    items: Annotated[int, typer.Option(min=1, help="Pages.")] = 5_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
    file_format: Annotated[str, typer.Option("--format", help="csv, jsonl, parquet or combined.")] = "csv",
) -> dict[str, Any]:
    return operations.sample_logs(out, users, days, items, seed, file_format)
