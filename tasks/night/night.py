"""The night: from logs to a registered release, one call per step."""

from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from surf2vec.tasks.night import steps
from surf2vec.tasks.night.config import DEFAULT_CONFIG, PipelineConfig
from surf2vec.tasks.night.context import open_night
from surf2vec.tasks.night.reporter import TERMINAL, Reporter
from surf2vec.tasks.night.step import Call, call_plainly
from surf2vec.tasks.night.summary import summarize, summarize_finished
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
    call: Call = call_plainly,
    reporter: Reporter = TERMINAL,
) -> dict[str, Any]:
    """Make user vectors from browsing logs and register them. Returns what `surf2vec run --json` prints.

    1. Ingest the log files that are new.
    2. Open the run of these sources, this window and these settings: it continues from the champion, or is full.
    3. Build the corpus of the window. If no user's tokens changed, the night ends and the champion stays.
    4. Train the vectors of the changed users, or of all; or continue from the last commit.
    5. Choose the weight of their parts and the popularity of items by the log.
    6. Evaluate them on held-out items, then fit the held-out users again, on all their events.
    7. Settle the vectors: merge them with the unchanged rows, or rotate them into the champion's space.
    8. Export the release, and compare it with the champion: the gate.
    9. Register it, so that it serves if the gate passes it. Push what serves to the stores, and write the report.

    `call` calls each step: plainly, or as a task of the flow in surf2vec/flows/nightly.py, whose arguments these are.
    """
    night = open_night(root, since, until, config, full, reporter)
    with keep_loaded(), reporter.step("lock") as on_event, lock_root(night.root, "run", partial(log, on_event)):
        ingested = call(steps.ingest_events, night, logs)
        run = call(steps.open_run, night, ingested, logs)
        call(steps.build_corpus, night, run)
        reporter.name_night(run)
        if steps.find_unchanged_base(night, run):
            call(steps.push_release, night, run)
            return summarize_finished(run, night.config.publish)
        call(steps.train_vectors, night, run)
        call(steps.choose_values, night, run)
        call(steps.evaluate_vectors, night, run)
        call(steps.refit_vectors, night, run)
        call(steps.settle_vectors, night, run)
        call(steps.export_vectors, night, run)
        call(steps.judge_release, night, run)
        call(steps.register_release, night, run)
        call(steps.push_release, night, run)
        call(steps.write_reports, night, run)
        return summarize(run, night.config.publish)
