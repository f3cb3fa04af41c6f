"""Commands about users: similar, explain, infer, forget."""

from pathlib import Path
from typing import Annotated, Any

import typer

from surf2vec import commands
from surf2vec.flows.cli.options import HOST_MEMORY, Given, NewLogs, User, command, err
from surf2vec.flows.cli.show import show_explained, show_forgotten, show_similar, show_values
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.errors import LeftElsewhereError


@command("surf2vec similar USER_ID -k 10 --root my-root", show_similar)
def similar(
    given: Given,
    user_id: User,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many.")] = 10,
) -> dict[str, Any]:
    return commands.similar(user_id, k, **given)


@command("surf2vec explain USER_ID --root my-root", show_explained)
def explain(given: Given, user_id: User) -> dict[str, Any]:
    return commands.explain(user_id, **given)


@command("surf2vec infer --logs 'new/*.csv' --out new.parquet --root my-root", show_values, HOST_MEMORY)
def infer(
    given: Given,
    logs: NewLogs,
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write: user_id, vector.")],
) -> dict[str, Any]:
    return commands.infer(logs, out, **given)


def report_remaining(result: dict[str, Any]) -> int:
    """Print which copies that others registered still have any of the users. Returns the exit code."""
    from surf2vec.tasks.forgetting.forget import describe_elsewhere

    if left := describe_elsewhere(result["elsewhere"]):
        err.print(shown(left))
    return LeftElsewhereError.exit_code if left else 0


@command("surf2vec forget --ids-file ids.txt --root my-root", show_forgotten, HOST_MEMORY, report_remaining)
def forget(
    given: Given,
    ids_file: Annotated[
        Path | None,
        typer.Option(help="One id a line, or .csv, .tsv, .parquet with the logs' column; none: all who ever were."),
    ] = None,
) -> dict[str, Any]:
    return commands.forget(ids_file, **given)
