"""The command `surf2vec`: each command calls a flow or a task, and nothing else.

With --json one JSON object goes to standard output; everything else goes to standard error. Exit codes: 0 done, 1 the run
failed or was stopped, 2 the call, the configuration or the input's shape was wrong, 3 the gate kept the release back. Ctrl-C is
SIGTERM: what can be committed is, and the same command goes on; a second Ctrl-C ends the process at once (130 in a shell).
"""

import atexit
import json
import os
import shlex
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from flows.show import (
    show_explained,
    show_findings,
    show_forgotten,
    show_nights,
    show_plan,
    show_rejects,
    show_removed,
    show_run,
    show_similar,
    show_tuned,
    show_values,
)
from tasks.root.wording import shown, shown_values
from trainer.errors import HeldBackError, LeftElsewhereError, SurfError
from trainer.system.signals import heed_signals, is_stopping

if TYPE_CHECKING:
    from flows.config import PipelineConfig
    from tasks.config import IngestConfig

app = typer.Typer(
    name="surf2vec", pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: surf2vec run --logs 'logs/*.csv.gz'", invoke_without_command=True,
)  # fmt: skip

Root = Annotated[Path, typer.Option("--root", help="The project root: everything is kept in it.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting: --set train.epochs=5. Repeatable.")]
DeviceMemory = Annotated[str | None, typer.Option(help="Budget on the GPU, e.g. 12GB; of unequal GPUs 12GB,24GB.")]
HostMemory = Annotated[str | None, typer.Option(help="Budget of the process, e.g. 4GB.")]
INTERRUPTED = 130  # what Typer makes of KeyboardInterrupt
DEFAULT_ROOT = Path("surf2vec-root")

err = Console(stderr=True, emoji=False)


@app.callback()
def surf2vec(
    context: typer.Context,
    is_version: Annotated[bool, typer.Option("--version", help="Print the version, and nothing else.")] = False,
) -> None:
    """User vectors from web browsing logs, made fresh every night."""
    if is_version:
        print(version("surf2vec"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog="Example: surf2vec run --root my-root --logs 'logs/*.csv.gz'")
def run(
    logs: Annotated[
        list[str] | None, typer.Option("--logs", help="Glob of log files; repeatable. None: what is ingested.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="First UTC day of the window.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Last UTC day of the window.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Train everything anew, whatever serves.")] = False,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    as_json: AsJson = False,
) -> None:
    """From logs to user vectors in the MLflow registry, with a report. The same command again resumes."""
    from flows.config import load_config

    loaded = load_config(
        config, settings or [], resources__device_memory=device_memory, resources__host_memory=host_memory
    )
    check_logs(logs or [], loaded.ingest)
    check_registry(root, loaded)
    server = start_server(root)
    from flows.nightly import nightly  # takes seconds, in which the server starts

    with server:
        result = nightly(root=root, logs=logs or [], since=day(since), until=day(until), config=loaded, full=full)
    answer(result, as_json, show_run)
    if not result["gate"]["passes"] and not result["gate"]["overridden"]:
        raise typer.Exit(HeldBackError.exit_code)


@app.command(epilog="Example: surf2vec backfill --since 2026-01-01 --until 2026-01-31 --root my-root")
def backfill(
    logs: Annotated[
        list[str] | None, typer.Option("--logs", help="Glob of log files; repeatable. None: what is ingested.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="First day to run a night for.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Last day to run a night for.")] = None,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    as_json: AsJson = False,
) -> None:
    """Nights of past days, in order, each with a window that ends on its day. The same command again resumes."""
    from flows.config import load_config

    loaded = load_config(
        config, settings or [], resources__device_memory=device_memory, resources__host_memory=host_memory
    )
    check_logs(logs or [], loaded.ingest)
    check_registry(root, loaded)
    server = start_server(root)
    from flows.backfill import backfill

    with server:
        result = backfill(root=root, logs=logs or [], since=day(since), until=day(until), config=loaded)
    answer(result, as_json, show_nights)


@app.command(epilog="Example: surf2vec plan --users 20000000 --items 1000000 --tokens 500000000")
def plan(
    users: Annotated[int, typer.Option("--users", min=1, help="Users.")],
    items: Annotated[int, typer.Option("--items", min=1, help="Items: distinct pages.")],
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens of all users: their events.")],
    dim: Annotated[int | None, typer.Option("--dim", help="Dimensions; by default train.vector_size.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Workers in all; by default those of one machine.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    device_memory: DeviceMemory = None,
    host_memory: HostMemory = None,
    as_json: AsJson = False,
) -> None:
    """What a training of this size would take: memory, chunks, item blocks, disk, seconds, and why. Trains nothing."""
    from flows.config import load_config
    from flows.operations import plan_size
    from tasks.training.forecast import Volume

    loaded = load_config(
        config, settings or [], train__vector_size=dim, resources__device_memory=device_memory,
        resources__host_memory=host_memory,
    )  # fmt: skip
    answer(plan_size(root, Volume(users, items, tokens, 0), loaded, workers), as_json, show_plan)


@app.command(epilog="Example: surf2vec similar USER_ID -k 10 --root my-root")
def similar(
    user_id: Annotated[str, typer.Argument(help="The user, as in the logs.")],
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many.")] = 10,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Nearest users, and the items that rank first for this user."""
    from flows.config import load_config
    from flows.operations import find_similar

    answer(find_similar(root, user_id, k, load_config(config, settings or [])), as_json, show_similar)


@app.command(epilog="Example: surf2vec explain USER_ID --root my-root")
def explain(
    user_id: Annotated[str, typer.Argument(help="The user, as in the logs.")],
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """What is known of one user: events, days, items, releases, movement between them. Nothing of it is kept."""
    from flows import operations
    from flows.config import load_config

    answer(operations.explain(root, user_id, load_config(config, settings or [])), as_json, show_explained)


@app.command(epilog="Example: surf2vec infer --logs 'new/*.csv' --out new.parquet --root my-root")
def infer(
    logs: Annotated[list[str], typer.Option("--logs", help="Glob of log files; repeatable.")],
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write: user_id, vector.")],
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    host_memory: HostMemory = None,
    as_json: AsJson = False,
) -> None:
    """Vectors for users that the model has not seen, by the release that serves. The root's events stay as they are."""
    from flows.config import load_config
    from flows.operations import infer_vectors

    loaded = load_config(config, settings or [], resources__host_memory=host_memory)
    check_logs(logs, loaded.ingest)
    if loaded.resources.ray_address:
        server = start_server(root)
        from flows import deployments

        with server:
            result = deployments.infer(root=root, logs=logs, out=out, config=loaded)
    else:
        result = infer_vectors(root, logs, out, loaded, say)
    answer(result, as_json, show_values)


@app.command(epilog="Example: surf2vec tune --trials 30 --sample 0.1 --root my-root")
def tune(
    logs: Annotated[
        list[str] | None, typer.Option("--logs", help="Glob of log files; repeatable. None: the newest corpus.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, those of earlier calls included.")] = 30,
    sample: Annotated[
        float, typer.Option(help="Share of the micro-partitions to search on, above 0, at most 1.")
    ] = 0.1,
    out: Annotated[Path | None, typer.Option("--out", help="TOML file to write; by default ROOT/tuned.toml.")] = None,
    max_vector_size: Annotated[
        int | None, typer.Option(max=4096, help="Search train.vector_size, too, up to this; by default it stays.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="No further trial begins after so many seconds.")] = None,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    host_memory: HostMemory = None,
    as_json: AsJson = False,
) -> None:
    """Search the settings that matter on a sample, and write the best as a configuration. The same command again goes on."""
    from flows.config import load_config
    from flows.operations import tune_settings
    from tasks.tuning.study import Search
    from trainer.system.units import parse_bytes

    loaded = load_config(config, settings or [], resources__host_memory=host_memory)
    asked = Search(
        trials, sample, out or root / "tuned.toml", loaded.train, loaded.publish, parse_bytes(loaded.resources.host_memory),
        shlex.join(["surf2vec", *sys.argv[1:]]), max_vector_size, seconds,
    )  # fmt: skip
    answer(tune_settings(root, logs or [], loaded, asked, say), as_json, show_tuned)


@app.command(epilog="Example: surf2vec pull models:/surf2vec-users@champion --out vectors")
def pull(
    uri: Annotated[str, typer.Argument(help="Which release: models:/NAME@champion or models:/NAME/VERSION.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")],
    since: Annotated[
        int | None,
        typer.Option(min=1, help="A version: --out gets only the rows that changed after it, and who is gone."),
    ] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow; by default the root's own.")] = None,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Vectors out of the registry, in the export's layout. With --since only what changed. Killed, it goes on."""
    from flows.operations import pull_release

    answer(pull_release(root, uri, out, since, tracking_uri, say), as_json, show_values)


@app.command(epilog="Example: surf2vec restore --from models:/surf2vec-users@champion --root new")
def restore(
    uri: Annotated[str, typer.Option("--from", help="Which release: models:/NAME@champion or models:/NAME/VERSION.")],
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow; by default the root's own.")] = None,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Make a root that was lost out of a release, so that the next night goes on from it."""
    from flows.operations import restore_root

    answer(restore_root(root, uri, tracking_uri, say), as_json, show_values)


@app.command(epilog="Example: surf2vec forget --ids-file ids.txt --root my-root")
def forget(
    ids_file: Annotated[
        Path | None,
        typer.Option(
            "--ids-file", help="One id a line, or .csv, .tsv, .parquet with the logs' column; none: all who ever were."
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    host_memory: HostMemory = None,
    as_json: AsJson = False,
) -> None:
    """Take users out of every place that can name them, publish a release without them, and prove it. For good."""
    from flows.config import load_config
    from flows.operations import forget_users
    from tasks.forgetting.forget import tell_elsewhere

    loaded = load_config(config, settings or [], resources__host_memory=host_memory)
    result = forget_users(root, ids_file, loaded, say)
    answer(result, as_json, show_forgotten)
    if left := tell_elsewhere(result["elsewhere"]):
        err.print(shown(left), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(LeftElsewhereError.exit_code)


@app.command(epilog="Example: surf2vec word2vec --out users.bin --root my-root")
def word2vec(
    out: Annotated[Path, typer.Option("--out", help="File to write; .gz for gzip.")],
    which: Annotated[str, typer.Option("--which", help="users or items.")] = "users",
    text: Annotated[bool, typer.Option("--text", help="Write text; by default binary.")] = False,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """The vectors of the release that serves as a word2vec-format file, for gensim's KeyedVectors and others."""
    from flows.config import load_config
    from flows.operations import write_word2vec

    answer(write_word2vec(root, out, which, not text, load_config(config, settings or []), say), as_json, show_values)


@app.command(epilog="Example: surf2vec promote 7 --override 'a holiday' --root my-root")
def promote(
    version: Annotated[int | None, typer.Argument(min=1, help="The version; by default the challenger.")] = None,
    override: Annotated[
        str | None,
        typer.Option("--override", help="Why a version that was held or rolled back may serve all the same."),
    ] = None,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Let a version serve: it becomes the champion. One that the gate held needs --override with a reason, which is kept."""
    from flows.config import load_config
    from flows.operations import promote_version

    answer(promote_version(root, version, override, load_config(config, settings or []), say), as_json, show_values)


@app.command(epilog="Example: surf2vec rollback --root my-root")
def rollback(
    version: Annotated[int | None, typer.Argument(min=1, help="The version; by default the champion before.")] = None,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Let the champion before serve again, at once, also while a night runs. The same call again changes nothing."""
    from flows.config import load_config
    from flows.operations import rollback_champion

    answer(rollback_champion(root, version, load_config(config, settings or []), say), as_json, show_values)


@app.command(epilog="Example: surf2vec repartition --partitions 64 --root my-root")
def repartition(
    partitions: Annotated[
        int | None, typer.Option(help="A power of two, 1 to 65,536; by default what ingest would choose today.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    host_memory: HostMemory = None,
    as_json: AsJson = False,
) -> None:
    """Split or join the micro-partitions of a root that grew. Vectors stay as they are; so do releases."""
    from flows.config import load_config
    from flows.operations import repartition_root

    loaded = load_config(config, settings or [], store__partitions=partitions, resources__host_memory=host_memory)
    answer(repartition_root(root, loaded, say), as_json, show_values)


@app.command(epilog="Example: surf2vec gc --dry-run --root my-root")
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    root: Root = DEFAULT_ROOT,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Remove what nothing refers to any more: old releases, corpora and vectors, and what killed calls left."""
    from flows.config import load_config
    from flows.operations import collect_garbage

    answer(collect_garbage(root, load_config(config, settings or []), dry_run, say), as_json, show_removed)


@app.command(epilog="Example: surf2vec doctor --root my-root")
def doctor(root: Root = DEFAULT_ROOT, as_json: AsJson = False) -> None:
    """Check a root: checksums, counts, orphaned files. Exit 1 when something is damaged."""
    from flows.operations import examine_root

    result = examine_root(root)
    answer(result, as_json, show_findings)
    if result["damage"]:
        raise typer.Exit(1)


@app.command(epilog="Example: surf2vec rejects --most 100 --root my-root")
def rejects(
    most: Annotated[int, typer.Option("--most", min=0, help="Lines shown of each source.")] = 20,
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Print which lines of the logs could not be used, and why: source, line number, reason, counts; never what is in them."""
    from tasks.ingest.rejects import list_rejects
    from tasks.root.run import Root

    answer(list_rejects(Root(root), most), as_json, show_rejects)


@app.command("sample-logs", epilog="Example: surf2vec sample-logs --users 100000 --out logs")
def sample_logs(
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")],
    users: Annotated[int, typer.Option(min=1, help="Users.")] = 20_000,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days of browsing.")] = 7,
    items: Annotated[int, typer.Option(min=1, help="Pages.")] = 5_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
    file_format: Annotated[str, typer.Option("--format", help="csv, jsonl, parquet or combined.")] = "csv",
    root: Root = DEFAULT_ROOT,
    as_json: AsJson = False,
) -> None:
    """Write realistic browsing logs to try things on."""
    from flows.operations import make_sample_logs

    answer(make_sample_logs(out, users, days, items, seed, file_format, say), as_json, show_values)


def day(moment: datetime | None) -> date | None:
    """The day of an option's moment."""
    return moment.date() if moment else None


def check_registry(root: Path, config: "PipelineConfig") -> None:
    """Raise ConfigError at once when another registry than the root's is named."""
    from tasks.root.identity import registry_uri
    from tasks.root.run import Root

    registry_uri(Root(root), config.publish)


def check_logs(logs: list[str], config: "IngestConfig") -> None:
    """Raise InputError for logs with credentials in their names, before Prefect keeps them as parameters, and for those on this
    machine that are not there or not of a shape that can be read.
    """
    from tasks.ingest.check_logs import check_shapes
    from tasks.ingest.remote_logs import refuse_credentials

    refuse_credentials(*logs)
    check_shapes(logs, config)


def start_server(root: Path) -> AbstractContextManager[None]:
    """Begin to start a Prefect server of the root's own, for a block that needs it; PREFECT_API_URL names another to use.

    Before Prefect is imported, and only once nothing more can be refused.
    """
    if os.environ.get("PREFECT_API_URL"):
        return nullcontext()
    from flows.server import Server

    return Server(root).running()


def say(name: str, values: dict[str, Any]) -> None:
    """The callback of commands that are no flows: log lines on standard error."""
    if name == "log":
        err.print(shown(values["message"]), highlight=False, markup=False)


def answer(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    """Print a result: one JSON object, or what `show` makes of it."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        show(shown_values(result))


def main() -> NoReturn:
    """The entry point: an expected error becomes its message and its exit code, never a traceback."""
    # On this terminal the steps speak for themselves; Prefect's server keeps all of its lines.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    warnings.filterwarnings("ignore")  # libraries' deprecations are for us, not for the person at the terminal
    heed_signals()
    as_json, has_server = "--json" in sys.argv, True
    try:
        code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:
            code = stopped(as_json)
    except SurfError as error:
        has_server = error.code != "server_ended"
        has_own_words = error.code == "stopped" or not (has_server and is_stopping())
        code = fail(error.code, str(error), error.exit_code, as_json) if has_own_words else stopped(as_json)
    except BaseException as error:
        format_message = getattr(error, "format_message", None)  # click's usage errors
        if is_stopping() or str(error) == "Query interrupted":  # DuckDB's word for a signal
            code = stopped(as_json)
        elif format_message is None:
            raise
        else:
            code = fail("bad_call", " ".join(format_message().split()), 2, as_json)
    leave(code, has_server)


def stopped(as_json: bool) -> int:
    """Say that a signal ended the command; return the exit code."""
    return fail("stopped", "stopped by a signal: the same command goes on with what had not ended", 1, as_json)


def leave(code: int, has_server: bool = True) -> NoReturn:
    """End the process once all exit handlers ran (Prefect tells its server the last there), without taking the interpreter down:

    DuckDB's bindings would list on standard error every object that an expected error's traceback still holds. A server that
    died is told nothing: Prefect would try for a minute.
    """
    if has_server:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fail(code: str, message: str, exit_code: int, as_json: bool) -> int:
    """Print an error as asked; returns the exit code."""
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False))
    err.print(
        f"[bold red]error[/bold red] {escape(shown(message))}" if not as_json else shown(message),
        markup=not as_json,
        highlight=False,
        soft_wrap=True,
    )
    return exit_code


if __name__ == "__main__":
    main()
