"""The night: from logs to a registered release, a call a step."""

from datetime import date
from pathlib import Path
from typing import Any

from prefect import flow

from flows.config import PipelineConfig
from flows.progress import report_step
from flows.steps import (
    Night,
    build_corpus,
    evaluate_vectors,
    export_vectors,
    ingest_events,
    judge_release,
    open_run,
    register_release,
    train_vectors,
    write_reports,
)
from tasks.measured import list_train_metrics
from tasks.run import Run, lock_root, open_root

DEFAULT_CONFIG = PipelineConfig()


@flow(name="nightly", validate_parameters=True)
def nightly(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
) -> dict[str, Any]:
    """User vectors from browsing logs, registered in MLflow.

    1. Ingest the log files that are new.
    2. Open the run that these sources, this window and these settings make.
    3. Build the corpus of the window.
    4. Train the vectors, or go on from the last commit.
    5. Evaluate them on held-out items.
    6. Export the release.
    7. Hold it against the release that serves: the gate.
    8. Register it; it serves if the gate lets it.
    9. Write the morning's report.
    """
    night = Night(open_root(root), since, until, config)
    with report_step("lock") as on_event, lock_root(night.root, "run", lambda line: on_event("log", {"message": line})):
        ingested = ingest_events(night, logs)
        run = open_run(night, ingested, logs)
        corpus = build_corpus(night, run)
        train_vectors(night, run, corpus)
        evaluate_vectors(night, run, corpus)
        export_vectors(night, run, corpus)
        judge_release(night, run)
        register_release(night, run)
        write_reports(night, run)
        return summarize(run)


def summarize(run: Run) -> dict[str, Any]:
    """What `surf2vec run --json` prints, drawn from the run's story."""
    steps = run.story()["steps"]
    return {
        "run_id": run.run_id,
        "release": steps["export"]["release"],
        "model_name": steps["register"]["model_name"],
        "model_version": steps["register"]["model_version"],
        "alias": steps["register"]["alias"],
        "gate": {name: steps["gate"].get(name) for name in ("passes", "verdict", "held_by", "overridden", "table")},
        "tracking_uri": steps["register"]["tracking_uri"],
        "users": steps["export"]["num_users"],
        "items": steps["export"]["num_items"],
        "events": steps["ingest"]["events"],
        "rejected": steps["ingest"]["num_rejected"],
        "tokens": steps["corpus"]["num_tokens"],
        "export_dir": steps["export"]["export_dir"],
        "report": steps["report"]["report"],
        "training": list_train_metrics(steps["train"]),
        "metrics": steps["evaluate"]["metrics"] | steps["export"].get("metrics", {}),
        "seconds": {name: step["seconds"] for name, step in steps.items()},
    }
