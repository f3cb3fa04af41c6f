"""The flows: the night, with its steps as Prefect tasks, nights of past days, and what a person starts from Prefect's UI.

A command without a Prefect server makes the same night (surf2vec/tasks/night/night.py) without this module.
"""

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import httpx
from prefect import Task, flow, get_client, runtime, task
from pydantic import Field

from surf2vec import commands, operations
from surf2vec.arguments import configure
from surf2vec.flows.report import PrefectReporter
from surf2vec.tasks.forgetting.forget import describe_elsewhere
from surf2vec.tasks.ingest.sql_logs import FOLDERS_ENV
from surf2vec.tasks.night import steps
from surf2vec.tasks.night.config import DEFAULT_CONFIG, PipelineConfig
from surf2vec.tasks.night.night import make_night, make_past_nights
from surf2vec.tasks.night.reporter import CHAMPION_OLD
from surf2vec.tasks.night.step import WAITS, Arguments, Result, print_retry
from surf2vec.tasks.registry.pull import find_version
from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.identity import registry_uri
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.root.wording import shown
from surf2vec.trainer.errors import LeftElsewhereError, UnavailableError

REPORTER = PrefectReporter()


def is_unavailable(task: Any, task_run: Any, state: Any) -> bool:
    """Return whether a task failed because a server did not respond."""
    error = getattr(state, "data", None)
    if isinstance(error, UnavailableError):
        print_retry(task.name, error)
    return isinstance(error, UnavailableError)


RETRIES: dict[str, Any] = {"retries": len(WAITS), "retry_delay_seconds": WAITS, "retry_condition_fn": is_unavailable}

TASKS: list[Task[..., Any]] = [
    task(name="ingest")(steps.ingest_events),
    task(name="open-run", **RETRIES)(steps.open_run),
    task(name="corpus")(steps.build_corpus),
    task(name="train")(steps.train_vectors),
    task(name="choose")(steps.choose_values),
    task(name="evaluate")(steps.evaluate_vectors),
    task(name="refit")(steps.refit_vectors),
    task(name="settle")(steps.settle_vectors),
    task(name="export")(steps.export_vectors),
    task(name="gate", **RETRIES)(steps.judge_release),
    task(name="register", **RETRIES)(steps.register_release),
    task(name="push")(steps.push_release),
    task(name="report", **RETRIES)(steps.write_reports),
]
"""The steps in the order of `make_night`. If no user's tokens changed, "push" follows "corpus", and the night ends."""


def call_task(step: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    [found] = [one for one in TASKS if one.fn is step]
    result: Any = found(*args, **kwargs)
    return result


def confine_queries() -> None:
    """Let queries (.sql) that the server or its form starts read only the folders that the worker's environment names."""
    if runtime.deployment.id:
        os.environ.setdefault(FOLDERS_ENV, "")


def check_server() -> None:
    """Raise UnavailableError unless the server that PREFECT_API_URL names answers, and lets this process in."""
    url = mask_credentials(os.environ["PREFECT_API_URL"])
    try:
        with get_client(sync_client=True) as client:
            client.read_flows(limit=1)
    except (RuntimeError, httpx.HTTPError, ValueError) as error:
        raise UnavailableError(
            f"the Prefect server at {url}, which PREFECT_API_URL names, does not answer ({shown(str(error))[:200]}): start it, "
            "give PREFECT_API_AUTH_STRING if it needs one, or unset PREFECT_API_URL to make the night without a server"
        ) from None


@flow(name="nightly")
def nightly(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
    full: bool = False,
) -> dict[str, Any]:
    """Make user vectors from browsing logs, and register them in MLflow.

    Args:
        root: The project root: everything is kept in it.
        logs: Globs of log files. Omit to use only logs that were read before.
        since: First UTC day of the window; by default as config.window_days says, or all.
        until: Last UTC day of the window; by default that of the newest event.
        config: All settings, by section. None given: the defaults.
        full: Train all users, and continue from no release.
    """
    confine_queries()
    return make_night(root, logs, since, until, configure(config, {}, root), full, call_task, REPORTER)


@flow(name="backfill")
def backfill(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
) -> dict[str, Any]:
    """Run past days in order, each as if it had run then: its window ends on its day.

    1. Ingest the log files that are new.
    2. Find the days, and which of them have events.
    3. Run the night of each day in order, unless it is done.
    4. Write the page of the nights.
    """
    confine_queries()
    return make_past_nights(root, logs, since, until, configure(config, {}, root), nightly, call_task, REPORTER)


@flow(name="watch", retries=3, retry_delay_seconds=60)
def watch(
    root: Path, config: PipelineConfig = DEFAULT_CONFIG, alert_days: Annotated[int, Field(ge=1)] = 3
) -> dict[str, Any]:
    """Raise an alarm if the champion is older than `alert_days`, even if no night failed."""
    config = configure(config, {}, root)
    version = find_version(f"models:/{config.publish.model_name}@champion", registry_uri(Root(root), config.publish))
    age_days = (datetime.now(UTC) - version.created_at) / timedelta(days=1)
    release = {"model_version": version.number, "release": version.tags["release"], "age_days": round(age_days, 3)}
    if age_days > alert_days:
        REPORTER.raise_alarm(CHAMPION_OLD, version.tags["release"], age_days=f"{age_days:.1f}")
    return {"model_name": version.name} | release


@flow(name="rollback")
def rollback(root: Path, version: int | None = None, config: PipelineConfig = DEFAULT_CONFIG) -> dict[str, Any]:
    """Restore the previous champion, or another version that served. The next night continues from it."""
    with REPORTER.step("rollback") as on_event:
        return operations.rollback(version, root, config=config, on_event=on_event)


@flow(name="forget")
def forget(root: Path, ids_file: Path, config: PipelineConfig = DEFAULT_CONFIG) -> dict[str, Any]:
    """Permanently delete the users in a file from all data and releases. Returns their number and the proof, without ids.

    Fails at the end if copies that others registered still have any of them.
    """
    with REPORTER.step("forget") as on_event:
        result = commands.forget(ids_file, root, config=config, on_event=on_event)
    if left := describe_elsewhere(result["elsewhere"]):
        raise LeftElsewhereError(left)
    return result
