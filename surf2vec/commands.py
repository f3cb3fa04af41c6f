"""Commands about nights and users, as functions: the command line, Prefect's flows and `import surf2vec` call these.

surf2vec/operations.py has the other commands. Each returns what its command prints with `--json`. Settings are keywords with two
underscores for the dot, `train__epochs=5`, or a `config`, which `load_config` reads from a TOML file. `on_event` receives log
lines and progress; by default lines go to standard error. Modules with a slow import are imported inside the functions.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surf2vec.arguments import ROOT, check_call, check_logs, configure, existing_root, list_globs, lock_writers
from surf2vec.tasks.night.config import PipelineConfig
from surf2vec.tasks.night.reporter import print_event
from surf2vec.tasks.root.run import FORGET, Root, lock_root, open_root
from surf2vec.trainer.events import OnEvent, log

if TYPE_CHECKING:
    from surf2vec.tasks.tuning.study import Search

Result = dict[str, Any]


def run(
    logs: str | Sequence[str] = (),
    root: str | Path = ROOT,
    since: date | None = None,
    until: date | None = None,
    *,
    full: bool = False,
    dry_run: bool = False,
    config: PipelineConfig | None = None,
    **settings: Any,
) -> Result:
    """Make user vectors from logs and register them in MLflow, with a report. Run the same command to resume.

    logs: globs of log files; omit them to use only logs that were read before. since, until: UTC days of the window.
    full: train everything anew. dry_run: return what would be done and what it would cost, and write nothing.
    """
    from surf2vec.tasks.night.context import NightContext
    from surf2vec.tasks.night.summary import announce_run, find_finished, summarize_finished

    given, config = list_globs(logs), configure(config, settings)
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
    logs: str | Sequence[str] = (),
    root: str | Path = ROOT,
    since: date | None = None,
    until: date | None = None,
    *,
    config: PipelineConfig | None = None,
    **settings: Any,
) -> Result:
    """Run past days in order, as if each had run then. Run the same command to resume."""
    config, given = configure(config, settings), list_globs(logs)
    check_call(root, given, config)
    from surf2vec.tasks.night.past_nights import make_past_nights

    return make_past_nights(Path(root), given, since, until, config)


def nights(root: str | Path = ROOT, *, config: PipelineConfig | None = None, **settings: Any) -> Result:
    """List all nights of a root: quality, users, seconds, and what was held and why. Writes their page, runs/index.html."""
    from surf2vec.tasks.night.page import write_nights_page

    opened = existing_root(root)
    return {
        "nights": write_nights_page(opened, configure(config, settings).publish),
        "report": str(opened.nights_page),
    }


def settings(section: str | None = None, *, toml: bool = False, json_schema: bool = False) -> Result:
    """List every setting with its default, bounds and meaning.

    section: only this one, such as "train" or "ingest.columns". toml, json_schema: return the lines of a file instead.
    """
    from surf2vec.tasks.night.settings import as_toml, list_sections, schema

    if json_schema:
        return {"lines": json.dumps(schema(), indent=2, ensure_ascii=False).splitlines()}
    sections = list_sections(section)
    return {"lines": as_toml(sections)} if toml else {"sections": [asdict(one) for one in sections]}


def plan(
    users: int,
    items: int,
    tokens: int,
    root: str | Path = ROOT,
    workers: int | None = None,
    *,
    config: PipelineConfig | None = None,
    **settings: Any,
) -> Result:
    """Estimate a training of this size: memory, chunks, item blocks, disk, seconds, and why. Trains nothing."""
    from surf2vec.tasks.ingest.ingest import choose_partitions
    from surf2vec.tasks.training.forecast import Volume, plan_size

    config = configure(config, settings)
    volume = Volume(users, items, tokens, config.store.partitions or choose_partitions(users))
    return plan_size(Path(root), volume, config.train, config.resources, workers)


def tune(
    logs: str | Sequence[str] = (),
    root: str | Path = ROOT,
    trials: int = 30,
    sample: float = 0.1,
    out: str | Path | None = None,
    max_vector_size: int | None = None,
    seconds: float | None = None,
    *,
    program: str = "surf2vec.tune",
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Search the settings that matter on a sample, and write the best as a configuration. Run the same command to resume.

    logs: globs of log files; omit them to use the newest corpus. trials: in all, those of earlier calls included.
    sample: share of the users. out: the TOML file, by default ROOT/tuned.toml; it names `program` as its maker.
    """
    from surf2vec.tasks.root.run import current_generation
    from surf2vec.tasks.training.trials import read_present
    from surf2vec.tasks.tuning.study import Search

    config = configure(config, settings)
    present = current_generation(Root(Path(root)))
    start = replace(config.train, **read_present(present.config)) if present else config.train  # what the log chose
    search = Search(
        trials, sample, Path(out) if out else Path(root) / "tuned.toml", start, config.publish, config.host_bytes, program,
        max_vector_size, seconds,
    )  # fmt: skip
    return search_settings(root, list_globs(logs), search, config, on_event)


def search_settings(
    root: str | Path, logs: list[str], search: "Search", config: PipelineConfig, on_event: OnEvent
) -> Result:
    """Search settings on a sample of the corpus that a night would make of `logs`, or without logs on the newest corpus.

    An existing corpus is not made again.
    """
    from surf2vec.tasks.corpus.build import build_corpus
    from surf2vec.tasks.corpus.folder import newest_corpus
    from surf2vec.tasks.corpus.window import CorpusRequest
    from surf2vec.tasks.ingest.ingest import ingest
    from surf2vec.tasks.tuning.tune import tune

    if not logs:
        opened = existing_root(root)
        return tune(opened, newest_corpus(opened), search, on_event)
    opened, work = open_root(Path(root)), (config.host_bytes, config.threads, on_event)
    with lock_root(opened, "tune", partial(log, on_event)):
        ingest(opened, logs, config.ingest, config.store.partitions, *work)
        request = CorpusRequest(config.ingest, config.evaluate, window_days=config.window_days)
        built = build_corpus(opened, request, *work)
    return tune(opened, built["window_id"], search, on_event)


def similar(
    user_id: str, k: int = 10, root: str | Path = ROOT, *, config: PipelineConfig | None = None, **settings: Any
) -> Result:
    """Find the nearest users, and the items that rank first for this user."""
    from surf2vec.tasks.queries.similar import similar_users
    from surf2vec.tasks.registry.releases import current_release

    opened, config = existing_root(root), configure(config, settings)
    name = find_name(opened, user_id, config)
    return similar_users(opened, opened.export(current_release(opened, config.publish)), name, k)


def explain(user_id: str, root: str | Path = ROOT, *, config: PipelineConfig | None = None, **settings: Any) -> Result:
    """Show everything stored about one user: events, items, releases with the weights of the last pages, movement."""
    from surf2vec.tasks.queries.explain import explain_user

    opened, config = existing_root(root), configure(config, settings)
    return {"user_id": user_id} | explain_user(opened, config.publish, find_name(opened, user_id, config))


def find_name(root: Root, user_id: str, config: PipelineConfig) -> str:
    """Return the name of a user in the root: the id, or its pseudonym."""
    from surf2vec.tasks.ingest.user_key import read_user_key
    from surf2vec.tasks.users.pseudonyms import pseudonym

    key = read_user_key(root, config.ingest)
    return pseudonym(user_id, key) if key else user_id


def infer(
    logs: str | Sequence[str],
    out: str | Path,
    root: str | Path = ROOT,
    *,
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Write vectors for users that the model has not seen, by the release that serves. The root's events stay as they are.

    out: a Parquet file of user_id and vector.
    """
    config, given = configure(config, settings), list_globs(logs)
    check_logs(given, config)
    from surf2vec.tasks.night.ray_cluster import open_fan_out
    from surf2vec.tasks.queries.infer import Inference, infer
    from surf2vec.tasks.registry.releases import current_release

    opened = existing_root(Path(root).resolve() if config.resources.ray_address else root)
    inference = Inference(given, Path(out), config.ingest, config.train, config.host_bytes)
    with open_fan_out(config.resources, opened) as fan_out:
        return infer(opened, current_release(opened, config.publish), inference, on_event, fan_out)


def forget(
    ids_file: str | Path | None = None,
    root: str | Path = ROOT,
    *,
    config: PipelineConfig | None = None,
    on_event: OnEvent = print_event,
    **settings: Any,
) -> Result:
    """Permanently delete users from all data and releases, and verify it.

    ids_file: one id a line, or .csv, .tsv, .parquet with the logs' column; None: all who ever were forgotten.
    """
    from surf2vec.tasks.forgetting.forget import forget
    from surf2vec.tasks.ingest.user_key import read_user_key
    from surf2vec.tasks.users.ids_files import read_ids
    from surf2vec.tasks.users.pseudonyms import pseudonym

    opened, config, user_ids = existing_root(root), configure(config, settings), None
    if ids_file is not None:
        user_ids, key = read_ids(Path(ids_file), config.ingest.columns), read_user_key(opened, config.ingest)
        user_ids = sorted(pseudonym(user_id, key) for user_id in user_ids) if key else user_ids
    with lock_writers(opened, FORGET, on_event):
        return forget(opened, user_ids, config.publish, config.host_bytes, on_event)
