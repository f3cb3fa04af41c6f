"""Commands that make nights, or prepare them: run, backfill, plan, tune."""

import os
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import HOST_MEMORY, MEMORY, Call, Logs, Since, Until, check_logs, command
from flows.cli.show import show_nights, show_plan, show_run, show_tuned
from trainer.errors import HeldBackError

if TYPE_CHECKING:
    from tasks.tuning.study import Search


def start_server(root: Path) -> AbstractContextManager[None]:
    """Begin to start a Prefect server of the root's own, for a block that needs it; PREFECT_API_URL names another to use.

    Before Prefect is imported, and only once nothing more can be refused.
    """
    if os.environ.get("PREFECT_API_URL"):
        return nullcontext()
    from flows.server import Server

    return Server(root).running()


def open_nights(call: Call, logs: list[str]) -> AbstractContextManager[None]:
    """The server that nights report to. Raises ConfigError or InputError first, for another registry and for bad logs."""
    from tasks.root.identity import registry_uri
    from tasks.root.run import Root

    check_logs(logs, call)
    registry_uri(Root(call.path), call.config.publish)
    return start_server(call.path)


def exit_if_held(result: dict[str, Any]) -> None:
    """Exit with 3 where the gate held the release back."""
    if not result["gate"]["passes"] and not result["gate"]["overridden"]:
        raise typer.Exit(HeldBackError.exit_code)


@command("surf2vec run --root my-root --logs 'logs/*.csv.gz'", show_run, MEMORY, exit_if_held)
def run(
    call: Call,
    logs: Logs = None,
    since: Since = None,
    until: Until = None,
    full: Annotated[bool, typer.Option("--full", help="Train everything anew, whatever serves.")] = False,
) -> dict[str, Any]:
    """From logs to user vectors in the MLflow registry, with a report. The same command again resumes."""
    server = open_nights(call, logs or [])
    from flows.nightly import nightly  # takes seconds, in which the server starts

    with server:
        days = {"since": since and since.date(), "until": until and until.date()}
        return nightly(root=call.path, logs=logs or [], config=call.config, full=full, **days)


@command("surf2vec backfill --since 2026-01-01 --until 2026-01-31 --root my-root", show_nights, MEMORY)
def backfill(
    call: Call,
    logs: Logs = None,
    since: Since = None,
    until: Until = None,
) -> dict[str, Any]:
    """Nights of past days, in order, each with a window that ends on its day. The same command again resumes."""
    server = open_nights(call, logs or [])
    from flows.backfill import backfill

    with server:
        days = {"since": since and since.date(), "until": until and until.date()}
        return backfill(root=call.path, logs=logs or [], config=call.config, **days)


@command("surf2vec plan --users 20000000 --items 1000000 --tokens 500000000", show_plan, MEMORY)
def plan(
    call: Call,
    users: Annotated[int, typer.Option("--users", min=1, help="Users.")],
    items: Annotated[int, typer.Option("--items", min=1, help="Items: distinct pages.")],
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens of all users: their events.")],
    dim: Annotated[int | None, typer.Option("--dim", help="Dimensions; by default train.vector_size.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Workers in all; by default those of one machine.")
    ] = None,
) -> dict[str, Any]:
    """What a training of this size would take: memory, chunks, item blocks, disk, seconds, and why. Trains nothing."""
    from tasks.ingest.ingest import choose_partitions
    from tasks.training.forecast import Volume, plan_size

    volume = Volume(users, items, tokens, call.config.store.partitions or choose_partitions(users))
    return plan_size(call.path, volume, call.config.train, call.config.resources, workers)


@command("surf2vec tune --trials 30 --sample 0.1 --root my-root", show_tuned, HOST_MEMORY)
def tune(
    call: Call,
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
) -> dict[str, Any]:
    """Search the settings that matter on a sample, and write the best as a configuration. The same command again goes on."""
    from tasks.tuning.study import Search

    asked = Search(
        trials, sample, out or call.path / "tuned.toml", call.config.train, call.config.publish, call.host_memory_bytes,
        shlex.join(["surf2vec", *sys.argv[1:]]), max_vector_size, seconds,
    )  # fmt: skip
    return search_settings(call, logs or [], asked)


def search_settings(call: Call, logs: list[str], asked: "Search") -> dict[str, Any]:
    """The best settings that a search finds on a sample of the corpus of `logs`, or of the newest corpus of the root."""
    from tasks.corpus.folder import newest_corpus
    from tasks.root.run import open_root
    from tasks.tuning.tune import tune

    if logs:
        root = open_root(call.path)
        window_id = prepare_corpus(replace(call, path=root.path), logs)
    else:
        root = call.root
        window_id = newest_corpus(root)
    return tune(root, window_id, asked, call.on_event)


def prepare_corpus(call: Call, logs: list[str]) -> str:
    """The window id of the corpus that a night would make of these logs; what is there already is not made again."""
    from tasks.corpus.build import build_corpus
    from tasks.corpus.window import CorpusRequest
    from tasks.ingest.ingest import ingest
    from tasks.root.run import Root, lock_root

    root, config = Root(call.path), call.config
    memory_bytes, threads = call.host_memory_bytes, config.train.threads or os.cpu_count() or 1
    with lock_root(root, "tune", call.log):
        ingest(root, logs, config.ingest, config.store.partitions, memory_bytes, threads, call.on_event)
        request = CorpusRequest(config.ingest, config.evaluate, window_days=config.window_days)
        built = build_corpus(root, request, memory_bytes, threads, call.on_event)
    return built["window_id"]
