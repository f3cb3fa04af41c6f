"""Commands that look after a root, and one that makes logs to try things on: doctor, gc, repartition, rejects, sample-logs."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from flows.cli.options import HOST_MEMORY, ROOT, Call, command
from flows.cli.show import show_findings, show_rejects, show_removed, show_values
from trainer.errors import InputError


@command("surf2vec repartition --partitions 64 --root my-root", show_values, HOST_MEMORY)
def repartition(
    call: Call,
    partitions: Annotated[
        int | None, typer.Option(help="A power of two, 1 to 65,536; by default what ingest would choose today.")
    ] = None,
) -> dict[str, Any]:
    """Split or join the micro-partitions of a root that grew. Vectors stay as they are; so do releases."""
    from tasks.root.run import lock_root
    from tasks.upkeep.repartition import repartition

    root, wanted = call.root, partitions or call.config.store.partitions
    threads = call.config.train.threads or os.cpu_count() or 1
    with lock_root(root, "repartition", call.log):
        return repartition(root, wanted, call.host_memory_bytes, threads, call.on_event)


@command("surf2vec gc --dry-run --root my-root", show_removed)
def gc(
    call: Call,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> dict[str, Any]:
    """Remove what nothing refers to any more: old releases, corpora and vectors, and what killed calls left."""
    from tasks.registry.promotion import lock_aliases
    from tasks.root.run import lock_root
    from tasks.upkeep.gc import collect_garbage
    from trainer.store.writer import lock_store

    root = call.root
    with (
        lock_root(root, "gc", call.log),
        lock_aliases(root),
        lock_store(root.store) if root.store.exists() else nullcontext(),
    ):
        return collect_garbage(root, call.config.publish, dry_run, call.on_event)


def exit_if_damaged(result: dict[str, Any]) -> None:
    """Exit with 1 where something is damaged."""
    if result["damage"]:
        raise typer.Exit(1)


@command("surf2vec doctor --root my-root", show_findings, ROOT, exit_if_damaged)
def doctor(call: Call) -> dict[str, Any]:
    """Check a root: checksums, counts, orphaned files. Exit 1 when something is damaged."""
    from tasks.upkeep.doctor import examine

    findings = examine(call.root)
    return {
        "findings": [{"level": f.level, "place": f.place, "message": f.message} for f in findings],
        "damage": sum(f.level == "damage" for f in findings),
        "warnings": sum(f.level == "warning" for f in findings),
    }


@command("surf2vec rejects --most 100 --root my-root", show_rejects, ROOT)
def rejects(
    call: Call,
    most: Annotated[int, typer.Option("--most", min=0, help="Lines shown of each source.")] = 20,
) -> dict[str, Any]:
    """Print which lines of the logs could not be used, and why: source, line number, reason, counts; never what is in them."""
    from tasks.ingest.rejects import list_rejects
    from tasks.root.run import Root

    return list_rejects(Root(call.path), most)


@command("surf2vec sample-logs --users 100000 --out logs", show_values, ROOT)
def sample_logs(
    call: Call,
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")],
    users: Annotated[int, typer.Option(min=1, help="Users.")] = 20_000,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days of browsing.")] = 7,
    items: Annotated[int, typer.Option(min=1, help="Pages.")] = 5_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
    file_format: Annotated[str, typer.Option("--format", help="csv, jsonl, parquet or combined.")] = "csv",
) -> dict[str, Any]:
    """Write realistic browsing logs to try things on."""
    from tasks.sample.logs import Format, write_sample_logs

    if file_format not in get_args(Format):
        raise InputError(f"--format {file_format!r} is none of {', '.join(get_args(Format))}")
    return write_sample_logs(out, users, days, items, seed, file_format, call.on_event)  # type: ignore[arg-type]
