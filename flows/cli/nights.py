"""Commands that run or prepare nights: run, backfill, plan, tune."""

import json
import os
import shlex
import sys
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surf2vec.flows.cli.options import HOST_MEMORY, MEMORY, Call, Logs, Since, Until, command
from surf2vec.flows.cli.show import show_nights, show_plan, show_run, show_settings, show_tuned
from surf2vec.trainer.errors import HeldBackError

if TYPE_CHECKING:
    from surf2vec.tasks.tuning.study import Search


def check_nights(call: Call, logs: list[str]) -> None:
    """Check the registry and the logs. Raises ConfigError or InputError."""
    from surf2vec.tasks.root.identity import registry_uri
    from surf2vec.tasks.root.run import Root

    call.check_logs(logs)
    registry_uri(Root(call.path), call.config.publish)


def find_finished(
    call: Call, logs: list[str], since: date | None, until: date | None, *, full: bool
) -> dict[str, Any] | None:  # fmt: skip
    """Return the result of a night that is complete already; None if there may be something to do."""
    from surf2vec.tasks.night.context import NightContext
    from surf2vec.tasks.night.summary import announce_run, find_finished, summarize_finished
    from surf2vec.tasks.root.run import Root

    night = NightContext(Root(call.path), since, until, call.config, full)
    if not night.root.sources.exists() or not (run := find_finished(night, logs)):
        return None
    call.log(announce_run(run.record()))
    return summarize_finished(run, call.config.publish)


def foresee_night(
    call: Call, logs: list[str], since: date | None, until: date | None, *, full: bool
) -> dict[str, Any]:  # fmt: skip
    """Return what a night would do. Like the night it checks the registry and the logs first."""
    from surf2vec.tasks.night.context import NightContext
    from surf2vec.tasks.night.preview import dry_run
    from surf2vec.tasks.root.run import Root

    check_nights(call, logs)
    return dry_run(NightContext(Root(call.path), since, until, call.config, full), logs, call.on_event)


def held_exit_code(result: dict[str, Any]) -> int:
    """Returns 3 if the gate held the release back, else 0."""
    if "dry_run" in result:
        return 0
    return 0 if result["gate"]["passes"] or result["gate"]["overridden"] else HeldBackError.exit_code


@command("surf2vec run --root my-root --logs 'logs/*.csv.gz'", show_run, MEMORY, held_exit_code)
def run(
    call: Call,
    logs: Logs = None,
    since: Since = None,
    until: Until = None,
    full: Annotated[bool, typer.Option("--full", help="Train everything anew, whatever serves.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and what it would cost. Writes nothing.")
    ] = False,
) -> dict[str, Any]:
    """From logs to user vectors in the MLflow registry, with a report. The same command again resumes.

    If PREFECT_API_URL names a Prefect server, the night is a flow run there.
    """
    days = since and since.date(), until and until.date()
    if dry_run:
        return foresee_night(call, logs or [], *days, full=full)
    has_server = bool(os.environ.get("PREFECT_API_URL"))
    if not has_server and (finished := find_finished(call, logs or [], *days, full=full)):
        return finished
    check_nights(call, logs or [])
    if has_server:
        from surf2vec.flows.nightly import nightly

        return nightly(call.path, logs or [], *days, call.config, full)
    from surf2vec.tasks.night.night import make_night

    return make_night(call.path, logs or [], *days, call.config, full)


@command("surf2vec backfill --since 2026-01-01 --until 2026-01-31 --root my-root", show_nights, MEMORY)
def backfill(call: Call, logs: Logs = None, since: Since = None, until: Until = None) -> dict[str, Any]:
    """Nights of past days, in order, each with a window that ends on its day. The same command again resumes."""
    check_nights(call, logs or [])
    days = since and since.date(), until and until.date()
    if os.environ.get("PREFECT_API_URL"):
        from surf2vec.flows.nightly import backfill

        return backfill(call.path, logs or [], *days, call.config)
    from surf2vec.tasks.night.past_nights import make_past_nights

    return make_past_nights(call.path, logs or [], *days, call.config)


@command("surf2vec nights --root my-root", show_nights)
def nights(call: Call) -> dict[str, Any]:
    """All nights of a root: quality, users, seconds, and what was held and why. Writes their page, runs/index.html."""
    from surf2vec.tasks.night.page import write_nights_page

    return {"nights": write_nights_page(call.root, call.config.publish), "report": str(call.root.nights_page)}


@command("surf2vec settings train", show_settings, ("as_json",))
def settings(
    call: Call,
    section: Annotated[str | None, typer.Argument(help="Only this section, e.g. train or ingest.columns.")] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print a TOML file to start from, with all lines commented.")
    ] = False,
    json_schema: Annotated[bool, typer.Option("--json-schema", help="Print the JSON schema of --config.")] = False,
) -> dict[str, Any]:
    """Every setting with its default, bounds and meaning."""
    from surf2vec.tasks.night.settings import as_toml, list_sections, schema

    if json_schema:
        return {"lines": json.dumps(schema(), indent=2, ensure_ascii=False).splitlines()}
    sections = list_sections(section)
    return {"lines": as_toml(sections)} if toml else {"sections": [asdict(one) for one in sections]}


@command("surf2vec plan --users 20000000 --items 1000000 --tokens 500000000", show_plan, MEMORY)
def plan(
    call: Call,
    users: Annotated[int, typer.Option(min=1, help="Users.")],
    items: Annotated[int, typer.Option(min=1, help="Items: distinct pages.")],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of all users: their events.")],
    dim: Annotated[int | None, typer.Option(help="Dimensions; by default train.vector_size.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Workers in all; by default those of one machine.")] = None,
) -> dict[str, Any]:
    """What a training of this size would take: memory, chunks, item blocks, disk, seconds, and why. Trains nothing."""
    from surf2vec.tasks.ingest.ingest import choose_partitions
    from surf2vec.tasks.training.forecast import Volume, plan_size

    volume = Volume(users, items, tokens, call.config.store.partitions or choose_partitions(users))
    return plan_size(call.path, volume, call.config.train, call.config.resources, workers)


@command("surf2vec tune --trials 30 --sample 0.1 --root my-root", show_tuned, HOST_MEMORY)
def tune(
    call: Call,
    logs: Annotated[
        list[str] | None, typer.Option(help="Glob of log files; repeatable. None: the newest corpus.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, those of earlier calls included.")] = 30,
    sample: Annotated[float, typer.Option(help="Share of the users to search on, above 0, at most 1.")] = 0.1,
    out: Annotated[Path | None, typer.Option(help="TOML file to write; by default ROOT/tuned.toml.")] = None,
    max_vector_size: Annotated[
        int | None, typer.Option(max=4096, help="Search train.vector_size, too, up to this; by default it stays.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="No further trial begins after so many seconds.")] = None,
) -> dict[str, Any]:
    """Search the settings that matter on a sample, and write the best as a configuration. The same command again goes on."""
    from surf2vec.tasks.root.run import Root, current_generation
    from surf2vec.tasks.training.trials import read_present
    from surf2vec.tasks.tuning.study import Search

    config, program = call.config, shlex.join(["surf2vec", *sys.argv[1:]])
    present = current_generation(Root(call.path))
    start = replace(config.train, **read_present(present.config)) if present else config.train  # what the log chose
    search = Search(
        trials, sample, out or call.path / "tuned.toml", start, config.publish, config.host_bytes, program,
        max_vector_size, seconds,
    )  # fmt: skip
    return search_settings(call, logs or [], search)


def search_settings(call: Call, logs: list[str], search: "Search") -> dict[str, Any]:
    """Search settings on a sample of the corpus that a night would make of `logs`, or without logs on the root's newest corpus.
    An existing corpus is not made again. Returns the result of `tune`.
    """
    from surf2vec.tasks.corpus.build import build_corpus
    from surf2vec.tasks.corpus.folder import newest_corpus
    from surf2vec.tasks.corpus.window import CorpusRequest
    from surf2vec.tasks.ingest.ingest import ingest
    from surf2vec.tasks.root.run import lock_root, open_root
    from surf2vec.tasks.tuning.tune import tune

    if not logs:
        return tune(call.root, newest_corpus(call.root), search, call.on_event)
    root, config, work = open_root(call.path), call.config, (call.config.host_bytes, call.config.threads, call.on_event)
    with lock_root(root, "tune", call.log):
        ingest(root, logs, config.ingest, config.store.partitions, *work)
        built = build_corpus(root, CorpusRequest(config.ingest, config.evaluate, window_days=config.window_days), *work)
    return tune(root, built["window_id"], search, call.on_event)
