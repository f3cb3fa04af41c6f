"""The commands of `surf2vec`: for each function of the Python API an example, how its result is printed, and its exit code."""

import os
import shlex
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from rich.console import Console

from surf2vec import commands, operations
from surf2vec.arguments import Result, check_call, configure
from surf2vec.flows.cli import show
from surf2vec.flows.cli.command import add_command
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.errors import HeldBackError, LeftElsewhereError

err = Console(stderr=True, emoji=False, markup=False, highlight=False, soft_wrap=True)
HOST = ("host_memory",)
MEMORY = ("device_memory", "host_memory")
LOGS = (*MEMORY, "layout")


def on_server(function: Callable[..., Result], flow: str) -> Callable[..., Result]:
    """Return `function`, which is a flow run instead if PREFECT_API_URL names a Prefect server."""

    @wraps(function)
    def call(**values: Any) -> Result:
        if values.get("dry_run") or not os.environ.get("PREFECT_API_URL"):
            return function(**values)
        as_copy = values.pop("as_copy", False)
        values = {"logs": []} | {name: value for name, value in values.items() if name != "dry_run"}
        check_call(values["root"], values["logs"], configure(values["config"], {}, values["root"], as_copy))
        from surf2vec.flows import nightly

        nightly.check_server()
        return getattr(nightly, flow)(**values)

    return call


def held_exit_code(result: Result) -> int:
    """Return 3 if the gate held the release back, else 0."""
    if "dry_run" in result or result["gate"]["passes"] or result["gate"]["overridden"]:
        return 0
    return HeldBackError.exit_code


def report_remaining(result: Result) -> int:
    """Print which copies that others registered still have any of the users. Return the exit code."""
    from surf2vec.tasks.forgetting.forget import describe_elsewhere

    if left := describe_elsewhere(result["elsewhere"]):
        err.print(shown(left))
    return LeftElsewhereError.exit_code if left else 0


run, backfill = on_server(commands.run, "nightly"), on_server(commands.backfill, "backfill")
tune = wraps(commands.tune)(partial(commands.tune, program=shlex.join(["surf2vec", *sys.argv[1:]])))

add_command(run, "surf2vec run --root my-root --logs 'logs/*.csv.gz'", show.show_run, LOGS, held_exit_code)
add_command(backfill, "surf2vec backfill --since 2026-01-01 --until 2026-01-31 --root my-root", show.show_nights, LOGS)
add_command(commands.nights, "surf2vec nights --root my-root", show.show_nights)
add_command(commands.settings, "surf2vec settings train", show.show_settings)
add_command(commands.plan, "surf2vec plan --users 20000000 --items 1000000 --tokens 500000000", short=(*MEMORY, "dim"))
add_command(tune, "surf2vec tune --trials 30 --root my-root", short=(*HOST, "layout"))
add_command(operations.promote, "surf2vec promote 7 --override 'a holiday' --root my-root")
add_command(operations.rollback, "surf2vec rollback --root my-root")
add_command(operations.pull, "surf2vec pull models:/surf2vec-users@champion --out vectors")
add_command(operations.push, "surf2vec push postgresql://me@db.example/shop --root my-root")
add_command(operations.word2vec, "surf2vec word2vec --out users.bin --root my-root")
add_command(operations.restore, "surf2vec restore --from models:/surf2vec-users@champion --root new")
add_command(operations.repartition, "surf2vec repartition --partitions 64 --root my-root", short=HOST)
add_command(operations.gc, "surf2vec gc --dry-run --root my-root")
add_command(operations.doctor, "surf2vec doctor --root my-root", exit_code=lambda result: int(result["damage"] > 0))
add_command(operations.rejects, "surf2vec rejects --most 100 --root my-root")
add_command(operations.layouts, "surf2vec layouts nginx_json")
add_command(operations.sample_logs, "surf2vec sample-logs --users 100000 --out logs")
add_command(commands.similar, "surf2vec similar USER_ID -k 10 --root my-root")
add_command(commands.explain, "surf2vec explain USER_ID --root my-root")
add_command(
    commands.infer, "surf2vec infer --logs 'new/*.csv' --out new.parquet --root my-root", short=(*HOST, "layout")
)
add_command(commands.as_of, "surf2vec as-of --requests clicks.parquet --out vectors.parquet --root my-root", short=HOST)
add_command(
    commands.forget, "surf2vec forget --ids-file ids.txt --root my-root", short=HOST, exit_code=report_remaining
)
