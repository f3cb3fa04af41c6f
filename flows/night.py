"""The night: from logs to a registered release, one call per step."""

from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.flows import steps
from surf2vec.flows.artifacts import name_flow_run
from surf2vec.flows.config import DEFAULT_CONFIG, PipelineConfig
from surf2vec.flows.context import open_night
from surf2vec.flows.progress import report_step
from surf2vec.flows.push import push_release
from surf2vec.flows.summary import summarize, summarize_finished
from surf2vec.tasks.root.memory import keep_loaded
from surf2vec.tasks.root.run import lock_root
from surf2vec.trainer.events import log


def make_night(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
    full: bool = False,
) -> dict[str, Any]:
    """User vectors from browsing logs, registered in MLflow.

    1. Ingest the log files that are new.
    2. Open the run of these sources, this window and these settings: it continues from the champion, or is full.
    3. Build the corpus of the window. If no user's tokens changed, the night ends and the champion stays.
    4. Choose the settings of the trail by short trainings on a sample, if all users are trained.
    5. Train the vectors of the changed users, or of all; or continue from the last commit.
    6. Choose the weights of their two parts by the log.
    7. Evaluate them on held-out items, then fit the held-out users again, on all their events.
    8. Settle the vectors: merge them with the unchanged rows, or rotate them into the champion's space.
    9. Export the release, and compare it with the champion: the gate.
    10. Register it, so that it serves if the gate passes it. Push what serves to the stores, and write the report.

    Args:
        root: The project root: everything is kept in it.
        logs: Globs of log files. None: what is ingested.
        since: First UTC day of the window; by default as config.window_days says, or all.
        until: Last UTC day of the window; by default that of the newest event.
        config: All settings, in the order of the night. None given: the defaults.
        full: Train everything anew, whatever serves.
    """
    night = open_night(root, since, until, config, full)
    with keep_loaded(), report_step("lock") as on_event, lock_root(night.root, "run", partial(log, on_event)):
        ingested = steps.ingest_events(night, logs)
        run = steps.open_run(night, ingested, logs)
        steps.build_corpus(night, run)
        name_flow_run(run)
        if steps.find_unchanged(night, run):
            push_release(night, run)
            return summarize_finished(run, night.config.publish)
        steps.try_settings(night, run)
        steps.train_vectors(night, run)
        steps.choose_weights(night, run)
        steps.evaluate_vectors(night, run)
        steps.refit_vectors(night, run)
        steps.settle_vectors(night, run)
        steps.export_vectors(night, run)
        steps.judge_release(night, run)
        steps.register_release(night, run)
        push_release(night, run)
        steps.write_reports(night, run)
        return summarize(run, night.config.publish)
