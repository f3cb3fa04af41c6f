"""Commands about nights and users, as functions: the command line, Prefect's flows and `import surf2vec` call these.

surf2vec/operations.py has the other commands. Each returns what its command prints with `--json`. Parameters that have help are
the command's options and arguments. Settings are keywords with two underscores for the dot, `train__epochs=5`, or a `config`,
which `load_config` reads from a TOML file. `on_event` receives log lines and progress; by default lines go to standard error.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from surf2vec.arguments import (
    ROOT,
    Logs,
    Result,
    RootPath,
    Since,
    Until,
    User,
    check_call,
    check_logs,
    configure,
    existing_root,
    find_names,
    list_globs,
)
from surf2vec.tasks.night.reporter import print_event
from surf2vec.trainer.events import OnEvent, log

if TYPE_CHECKING:
    from surf2vec.tasks.night.config import PipelineConfig


def run(
    logs: Logs = (),
    root: RootPath = ROOT,
    since: Since = None,
    until: Until = None,
    *,
    full: Annotated[bool, Option("--full", help="Train all users, and continue from no release.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be done, and what it would cost. Writes nothing.")
    ] = False,
    as_copy: Annotated[
        bool,
        Option("--as-copy", help="Give a copied root, which shares a registry with the original, its own identity."),
    ] = False,
    config: "PipelineConfig | None" = None,
    **settings: Any,
) -> Result:
    """Make user vectors from logs and register them in MLflow, with a report. Run the same command to resume."""
    from surf2vec.tasks.night.context import NightContext
    from surf2vec.tasks.night.summary import announce_run, find_finished, summarize_finished
    from surf2vec.tasks.root.run import Root

    given, config = list_globs(logs), configure(config, settings, root, as_copy)
    night = NightContext(Root(Path(root)), since, until, config, full)
    if not dry_run and night.root.sources.exists() and (done := find_finished(night, given)):
        log(print_event, announce_run(done.record()))
        return summarize_finished(done, config.publish)
    check_call(root, given, config)
    if dry_run:
        from surf2vec.tasks.night.preview import dry_run as preview

        return preview(night, given, print_event)
    from surf2vec.tasks.night.night import make_night

    return make_night(Path(root), given, since, until, config, full)


def backfill(
    logs: Logs = (),
    root: RootPath = ROOT,
    since: Since = None,
    until: Until = None,
    *,
    config: "PipelineConfig | None" = None,
    **settings: Any,
) -> Result:
    """Run past days in order, as if each had run then. Run the same command to resume."""
    config, given = configure(config, settings, root), list_globs(logs)
    check_call(root, given, config)
    from surf2vec.tasks.night.night import make_past_nights

    return make_past_nights(Path(root), given, since, until, config)


def nights(root: RootPath = ROOT, *, config: "PipelineConfig | None" = None, **settings: Any) -> Result:
    """List all nights of a root: quality, users, seconds, and what was held and why. Writes their page, runs/index.html."""
    from surf2vec.tasks.night.page import write_nights_page
    from surf2vec.tasks.root.failures import explain_failures

    opened, config = existing_root(root), configure(config, settings, root)
    with explain_failures(opened, "the page of the nights is written", config.host_bytes):
        listed = write_nights_page(opened, config.publish)
    return {"nights": listed, "report": str(opened.nights_page)}


def settings(
    section: Annotated[str | None, Argument(help="Only this section, e.g. train or ingest.columns.")] = None,
    root: RootPath = ROOT,
    *,
    file: Annotated[str | Path | None, Option("--config", help="A TOML file with settings.")] = None,
    given: Annotated[str | Sequence[str], Option("--set", help="A setting: train.epochs=5. Repeatable.")] = (),
    toml: Annotated[bool, Option("--toml", help="A TOML file to start from, with all lines commented.")] = False,
    json_schema: Annotated[bool, Option("--json-schema", help="The JSON schema of --config.")] = False,
) -> Result:
    """List every setting with its default, bounds and meaning, and where a value that a call would have comes from."""
    from surf2vec.tasks.night.config import PipelineConfig, as_toml, list_sections
    from surf2vec.tasks.night.root_settings import list_values
    from surf2vec.tasks.root.run import Root

    if json_schema:
        return {"lines": json.dumps(PipelineConfig.model_json_schema(), indent=2, ensure_ascii=False).splitlines()}
    if toml:
        return {"lines": as_toml(list_sections(section))}
    return {"sections": list_values(Root(Path(root)), section, Path(file) if file else None, list_globs(given))}


def plan(
    users: Annotated[int, Option(min=1, help="Users.")],
    items: Annotated[int, Option(min=1, help="Items: distinct pages.")],
    tokens: Annotated[int, Option(min=1, help="Tokens of all users: their events.")],
    root: RootPath = ROOT,
    workers: Annotated[int | None, Option(min=1, help="Workers in all; by default those of one machine.")] = None,
    *,
    config: "PipelineConfig | None" = None,
    **settings: Any,
) -> Result:
    """Estimate a training of this size: memory, chunks, item blocks, disk, seconds, and why. Trains nothing."""
    from surf2vec.tasks.ingest.ingest import choose_partitions
    from surf2vec.tasks.training.forecast import Volume, plan_size

    config = configure(config, settings, root)
    volume = Volume(users, items, tokens, config.store.partitions or choose_partitions(users))
    return plan_size(Path(root), volume, config.train, config.resources, workers)


def tune(
    logs: Annotated[Logs, Option("--logs", help="Glob of log files; repeatable. Omit to use the newest corpus.")] = (),
    root: RootPath = ROOT,
    trials: Annotated[int, Option(min=1, help="Trials in all, those of earlier calls included.")] = 30,
    out: Annotated[str | Path | None, Option(help="TOML file to write; by default ROOT/tuned.toml.")] = None,
    max_vector_size: Annotated[
        int | None, Option(max=4096, help="Search train.vector_size, too, up to this; by default it stays.")
    ] = None,
    seconds: Annotated[float | None, Option(min=0, help="No further trial begins after so many seconds.")] = None,
    *,
    program: str = "surf2vec.tune",  # the file names it as its maker
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Search the settings that matter, and write the best as a configuration. Run the same command to resume."""
    from surf2vec.tasks.corpus.build import build_corpus
    from surf2vec.tasks.corpus.folder import newest_corpus
    from surf2vec.tasks.corpus.window import CorpusRequest
    from surf2vec.tasks.ingest.ingest import ingest
    from surf2vec.tasks.ingest.sql_logs import choose_days
    from surf2vec.tasks.night.root_settings import remember
    from surf2vec.tasks.root.run import lock_root, open_root
    from surf2vec.tasks.tuning.study import Search
    from surf2vec.tasks.tuning.tune import tune

    given, config = list_globs(logs), configure(config, settings, root)
    search = Search(
        trials, Path(out) if out else Path(root) / "tuned.toml", config.train, config.publish, config.host_bytes, program,
        max_vector_size, seconds,
    )  # fmt: skip
    if not given:
        opened = existing_root(root)
        return tune(opened, newest_corpus(opened), search, on_event)
    opened, work = open_root(Path(root)), (config.host_bytes, config.threads, on_event)
    with lock_root(opened, "tune", partial(log, on_event)):  # as a night makes the corpus; it is not made again
        keep = partial(remember, opened, config, on_event)
        days = choose_days(None, None, config.window_days)
        ingest(opened, given, config.ingest, config.store.partitions, *work, before_commit=keep, days=days)
        request = CorpusRequest(config.ingest, config.evaluate, window_days=config.window_days)
        built = build_corpus(opened, request, *work)
    return tune(opened, built["window_id"], search, on_event)


def similar(
    user_id: User,
    k: Annotated[int, Option("-k", min=1, max=1000, help="How many.")] = 10,
    root: RootPath = ROOT,
    part: Annotated[
        str | None, Option(help="Compare by interest, trail or activity; by default by all but activity.")
    ] = None,
    *,
    config: "PipelineConfig | None" = None,
    **settings: Any,
) -> Result:
    """Find the nearest users, and the items that rank first for this user."""
    from surf2vec.tasks.queries.similar import similar_users
    from surf2vec.tasks.registry.releases import current_release

    opened, config = existing_root(root), configure(config, settings, root)
    name = find_names(opened, config)(user_id)
    return similar_users(opened, opened.export(current_release(opened, config.publish)), name, k, part)


def explain(user_id: User, root: RootPath = ROOT, *, config: "PipelineConfig | None" = None, **settings: Any) -> Result:
    """Show everything stored about one user: events, items, releases with the weights of the last pages, movement."""
    from surf2vec.tasks.queries.explain import explain_user

    opened, config = existing_root(root), configure(config, settings, root)
    return {"user_id": user_id} | explain_user(opened, config.publish, find_names(opened, config)(user_id))


def infer(
    logs: Annotated[Logs, Option("--logs", help="Glob of log files; repeatable.")],
    out: Annotated[str | Path, Option(help="Parquet file to write: user_id, vector.")],
    root: RootPath = ROOT,
    *,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Write vectors for users that the model has not seen, by the release that serves. The root's events stay as they are."""
    config, given = configure(config, settings, root), list_globs(logs)
    check_logs(given, config)
    from surf2vec.tasks.night.ray_cluster import open_fan_out
    from surf2vec.tasks.queries.infer import Inference, infer
    from surf2vec.tasks.registry.releases import current_release

    opened = existing_root(Path(root).resolve() if config.resources.ray_address else root)
    inference = Inference(given, Path(out), config.ingest, config.train, config.host_bytes)
    with open_fan_out(config.resources, opened) as fan_out:
        return infer(opened, current_release(opened, config.publish), inference, on_event, fan_out)


def as_of(
    requests: Annotated[str | Path, Option(help="Parquet or CSV file: user_id, ts, and any other columns.")],
    out: Annotated[str | Path, Option(help="Parquet file to write: these columns, release, vector.")],
    root: RootPath = ROOT,
    *,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Write the vector that each row's user had at the time of the row, to train models on without seeing the future."""
    from surf2vec.tasks.queries.as_of import as_of

    opened, config = existing_root(root), configure(config, settings, root)
    work = (config.host_bytes, config.threads, on_event)
    return as_of(opened, config.publish, config.ingest, Path(requests), Path(out), *work)


def forget(
    ids_file: Annotated[
        str | Path | None,
        Option(help="One id a line, or .csv, .tsv, .parquet with the logs' column; none: all who ever were."),
    ] = None,
    root: RootPath = ROOT,
    *,
    config: "PipelineConfig | None" = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Permanently delete users from all data and releases, and verify it."""
    from surf2vec.tasks.forgetting.forget import forget
    from surf2vec.tasks.root.run import FORGET, lock_root
    from surf2vec.tasks.users.ids_files import read_ids
    from surf2vec.trainer.store.writer import lock_store

    opened, config = existing_root(root), configure(config, settings, root)
    ids = read_ids(Path(ids_file), config.ingest.columns) if ids_file is not None else None
    find_name = find_names(opened, config) if ids else str
    given = {find_name(user_id): user_id for user_id in ids or ()}

    def name_missing(names: list[str]) -> None:
        missing = sorted(given[name] for name in names)
        named = ", ".join(map(repr, missing[:10])) + (" ..." if len(missing) > 10 else "")
        is_odd = any(user_id.strip(" \t\r\"'") != user_id for user_id in missing)
        hint = "; some have spaces or quotes around them, which belong to the id here" if is_odd else ""
        message = f"not found, though tombstones were written: {named}{hint}; compare them with the ids in the logs"
        on_event("private", {"message": message})  # on the caller's terminal, and in no log

    user_ids = None if ids is None else sorted(given)
    store_lock = lock_store(opened.store) if opened.store.exists() else nullcontext()
    with lock_root(opened, FORGET, partial(log, on_event)), store_lock:
        return forget(opened, user_ids, config.publish, config.host_bytes, on_event, name_missing)
