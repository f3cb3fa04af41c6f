"""The night: from logs to a registered release, a call a step."""

from datetime import date
from pathlib import Path
from typing import Any

from prefect import flow

from flows.config import PipelineConfig
from flows.context import open_night
from flows.progress import report_step
from flows.steps import (
    build_corpus,
    evaluate_vectors,
    export_vectors,
    find_unchanged,
    ingest_events,
    judge_release,
    open_run,
    register_release,
    settle_vectors,
    train_vectors,
    write_reports,
)
from tasks.config import PublishConfig
from tasks.registry.promotion import find_alias
from tasks.report.funnel import list_losses, list_notes
from tasks.report.measured import list_train_metrics
from tasks.root.run import Run, lock_root

DEFAULT_CONFIG = PipelineConfig()


@flow(name="nightly", validate_parameters=True)
def nightly(
    root: Path,
    logs: list[str],
    since: date | None = None,
    until: date | None = None,
    config: PipelineConfig = DEFAULT_CONFIG,
    full: bool = False,
) -> dict[str, Any]:
    """User vectors from browsing logs, registered in MLflow.

    1. Ingest the log files that are new.
    2. Open the run that these sources, this window and these settings make: it goes on from the champion, or is full.
    3. Build the corpus of the window. Where no user's tokens changed, the champion is what there is to have.
    4. Train the vectors of who changed, or of all; or go on from the last commit.
    5. Evaluate them on held-out items.
    6. Settle them: beside the rows that did not change, or in the champion's space.
    7. Export the release.
    8. Hold it against the release that serves: the gate.
    9. Register it; it serves if the gate lets it.
    10. Write the morning's report.
    """
    night = open_night(root, since, until, config, full)
    with report_step("lock") as on_event, lock_root(night.root, "run", lambda line: on_event("log", {"message": line})):
        ingested = ingest_events(night, logs)
        run = open_run(night, ingested, logs)
        build_corpus(night, run)
        if base := find_unchanged(night, run):
            return summarize(base, night.config.publish) | {"run_id": run.run_id, "unchanged_since": base.run_id}
        train_vectors(night, run)
        evaluate_vectors(night, run)
        settle_vectors(night, run)
        export_vectors(night, run)
        judge_release(night, run)
        register_release(night, run)
        write_reports(night, run)
        return summarize(run, night.config.publish)


def summarize(run: Run, publish: PublishConfig) -> dict[str, Any]:
    """What `surf2vec run --json` prints, drawn from the run's story; the alias is the one that the version has now."""
    story = run.story()
    steps = story["steps"]
    return {
        "run_id": run.run_id,
        "release": steps["export"]["release"],
        "model_name": steps["register"]["model_name"],
        "model_version": steps["register"]["model_version"],
        "alias": find_alias(run.root, publish, steps["register"]),
        "gate": {name: steps["gate"].get(name) for name in ("passes", "verdict", "held_by", "overridden", "table")},
        "tracking_uri": steps["register"]["tracking_uri"],
        "users": steps["export"]["num_users"],
        "items": steps["export"]["num_items"],
        "events": steps["ingest"]["events"],
        "rejected": steps["ingest"]["num_rejected"],
        "tokens": steps["corpus"]["num_tokens"],
        "funnel": list_losses(story),
        "notes": list_notes(story),
        "night": describe_night(story),
        "export_dir": steps["export"]["export_dir"],
        "report": steps["report"]["report"],
        "training": list_train_metrics(steps["train"]),
        "metrics": steps["evaluate"]["metrics"] | steps["export"].get("metrics", {}),
        "seconds": {name: step["seconds"] for name, step in steps.items()},
    }


def describe_night(story: dict[str, Any]) -> dict[str, Any]:
    """What a night built on, and whom it trained: every user, or those whose tokens changed."""
    corpus, settled = story["steps"]["corpus"], story["steps"].get("settle", {})
    return {
        "kind": settled.get("kind", "full"),
        "base": (story.get("base") or {}).get("release"),
        "full_because": story.get("full_because"),
        "space_id": settled.get("space_id", story["run_id"]),
        "alignment": settled.get("cosine"),
        "changed": corpus.get("num_changed", corpus["num_users"]),
        "new_users": corpus.get("num_new_users"),
        "left": corpus.get("num_left"),
        "new_items": corpus.get("num_new_items"),
    }
