"""Commands that run or prepare nights: run, backfill, nights, settings, plan, tune."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from surf2vec import commands
from surf2vec.arguments import check_call
from surf2vec.flows.cli.options import HOST_MEMORY, MEMORY, Given, Logs, Since, Until, command
from surf2vec.flows.cli.show import show_nights, show_plan, show_run, show_settings, show_tuned
from surf2vec.trainer.errors import HeldBackError


def held_exit_code(result: dict[str, Any]) -> int:
    """Returns 3 if the gate held the release back, else 0."""
    if "dry_run" in result:
        return 0
    return 0 if result["gate"]["passes"] or result["gate"]["overridden"] else HeldBackError.exit_code


def has_server() -> bool:
    """Returns whether PREFECT_API_URL names a Prefect server: then a night is a flow run there."""
    return bool(os.environ.get("PREFECT_API_URL"))


@command("surf2vec run --root my-root --logs 'logs/*.csv.gz'", show_run, MEMORY, held_exit_code)
def run(
    given: Given,
    logs: Logs = None,
    since: Since = None,
    until: Until = None,
    full: Annotated[bool, typer.Option("--full", help="Train everything anew, whatever serves.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and what it would cost. Writes nothing.")
    ] = False,
) -> dict[str, Any]:
    days = since and since.date(), until and until.date()
    if dry_run or not has_server():
        return commands.run(logs or [], given["root"], *days, full=full, dry_run=dry_run, config=given["config"])
    check_call(given["root"], logs or [], given["config"])
    from surf2vec.flows.nightly import nightly

    return nightly(given["root"], logs or [], *days, given["config"], full)


@command("surf2vec backfill --since 2026-01-01 --until 2026-01-31 --root my-root", show_nights, MEMORY)
def backfill(given: Given, logs: Logs = None, since: Since = None, until: Until = None) -> dict[str, Any]:
    days = since and since.date(), until and until.date()
    if not has_server():
        return commands.backfill(logs or [], given["root"], *days, config=given["config"])
    check_call(given["root"], logs or [], given["config"])
    from surf2vec.flows.nightly import backfill

    return backfill(given["root"], logs or [], *days, given["config"])


@command("surf2vec nights --root my-root", show_nights)
def nights(given: Given) -> dict[str, Any]:
    return commands.nights(**given)


@command("surf2vec settings train", show_settings, ("as_json",))
def settings(
    given: Given,
    section: Annotated[str | None, typer.Argument(help="Only this section, e.g. train or ingest.columns.")] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print a TOML file to start from, with all lines commented.")
    ] = False,
    json_schema: Annotated[bool, typer.Option("--json-schema", help="Print the JSON schema of --config.")] = False,
) -> dict[str, Any]:
    return commands.settings(section, toml=toml, json_schema=json_schema)


@command("surf2vec plan --users 20000000 --items 1000000 --tokens 500000000", show_plan, MEMORY)
def plan(
    given: Given,
    users: Annotated[int, typer.Option(min=1, help="Users.")],
    items: Annotated[int, typer.Option(min=1, help="Items: distinct pages.")],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of all users: their events.")],
    dim: Annotated[int | None, typer.Option(help="Dimensions; by default train.vector_size.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Workers in all; by default those of one machine.")] = None,
) -> dict[str, Any]:
    return commands.plan(users, items, tokens, workers=workers, **given)


@command("surf2vec tune --trials 30 --sample 0.1 --root my-root", show_tuned, HOST_MEMORY)
def tune(
    given: Given,
    logs: Annotated[
        list[str] | None, typer.Option(help="Glob of log files; repeatable. Omit to use the newest corpus.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, those of earlier calls included.")] = 30,
    sample: Annotated[float, typer.Option(help="Share of the users to search on, above 0, at most 1.")] = 0.1,
    out: Annotated[Path | None, typer.Option(help="TOML file to write; by default ROOT/tuned.toml.")] = None,
    max_vector_size: Annotated[
        int | None, typer.Option(max=4096, help="Search train.vector_size, too, up to this; by default it stays.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="No further trial begins after so many seconds.")] = None,
) -> dict[str, Any]:
    program = shlex.join(["surf2vec", *sys.argv[1:]])
    return commands.tune(
        logs or [],
        given["root"],
        trials,
        sample,
        out,
        max_vector_size,
        seconds,
        program=program,
        config=given["config"],
    )
