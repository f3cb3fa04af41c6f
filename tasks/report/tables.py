"""What came of a run, as texts for people: facts, status, verdict, what each step made, and what was left out of the log.

The report, MLflow, Prefect and the terminal print these same lists. A step missing from the record, or a value missing from a
step, leaves a gap or a dash, never an error: a failed run needs its report most.
"""

import math
from datetime import date
from pathlib import Path
from typing import Any

from surf2vec.tasks.report.measured import list_train_metrics
from surf2vec.tasks.root.records import ChooseStep, CorpusStep, ExportStep, GateStep, RegisterStep, RunRecord, Step
from surf2vec.tasks.root.wording import (
    UNKNOWN,
    flatten,
    format_bytes,
    format_compact,
    format_duration,
    format_key,
    format_percent,
    format_ratio,
    format_score,
    format_value,
)

STEPS = ("ingest", "corpus", "train", "choose", "evaluate", "refit", "export", "gate", "register")
MADE = {
    "ingest": {
        "events": "{:,} events", "sources_new": "new sources: {:,}", "sources_replaced": "replaced: {:,}",
        "sources_known": "known: {:,}", "formats": "{}", "times": "{}",
    },
    "corpus": {"num_tokens": "{:,} tokens", "num_held_out": "{:,} held out", "partitions": "{:,} micro-partitions"},
    "train": {
        "generation": "generation {}", "tokens_per_second": "{:,.0f} tokens/s", "kernel": "{} kernel",
        "num_commits": "commits: {:,}",
    },
    "evaluate": {"num_users": "{:,} users ranked"},
    "refit": {"num_users": "{:,} users fitted again, on all they did"},
    "export": {"num_users": "{:,} user vectors", "num_items": "{:,} item vectors", "index_kind": "{} index"},
    "register": {"model_name": "{}", "model_version": "version {}", "alias": "{}"},
}  # fmt: skip
"""What each step made: the text for each value that its record has."""


def list_facts(record: RunRecord) -> dict[str, tuple[str, str]]:
    """Return what came of a run, by name: a value and a note, which may be empty."""
    steps, ingest, corpus, train = record.steps, record.steps.ingest, record.steps.corpus, record.steps.train
    export, registered, metrics = steps.export, steps.registered, steps.evaluate.metrics
    ended = {name: step.seconds or 0 for name, step in steps.ended().items() if name in STEPS}
    changed = f"{format_compact(corpus.num_changed)} changed since {record.base.release}" if record.base else ""
    rejected = ingest.num_rejected / ingest.lines if ingest.num_rejected is not None and ingest.lines else None
    facts = {
        "Users": (format_compact(export.num_users or corpus.num_users), changed or "with a vector"),
        "Items": (format_compact(export.num_items or corpus.num_items), "pages with a vector"),
        "Events": (format_compact(ingest.events), f"from {format_compact(ingest.lines)} lines"),
        "Rejected": (format_compact(ingest.num_rejected), f"{format_percent(rejected)} of lines"),
        "Window": describe_window(corpus),
        "Tokens": (format_compact(corpus.num_tokens), "events of the users and pages kept"),
        "Time": (format_duration(sum(ended.values()) if ended else None), f"{len(ended)} of {len(STEPS)} steps"),
    }
    if train:
        measured = list_train_metrics(train)
        memory = [format_bytes(measured[f"train_{name}"]) for name in ("peak_bytes", "budget_bytes")]
        facts["Training"] = (
            format_duration(measured["train_seconds"]),
            f"planned {format_duration(measured['train_predicted_seconds'])}; {memory[0]} of {memory[1]}; "
            f"{format_percent(measured['train_stall'])} waiting for the disk",
        )
    if metrics:
        popular = format_score(metrics.get("popularity_hit_at_10"))
        facts["hit@10"] = (format_score(metrics.get("hit_at_10")), f"popularity {popular}")
    if steps.gate:
        facts["Gate"] = (describe_gate(steps.gate), "")
    if registered:
        as_what = f"as {registered.alias}" if registered.alias else "without an alias"
        facts["Version"] = (f"{registered.model_version} of {registered.model_name}", f"registered {as_what}")
    return facts


def describe_window(corpus: CorpusStep) -> tuple[str, str]:
    """Return the days trained on: their number, and the first and last."""
    since, until = corpus.since, corpus.until
    if not since or not until:
        return ("All events", "they have no dates") if corpus.window_id else (UNKNOWN, "no corpus")
    num_days = (date.fromisoformat(until) - date.fromisoformat(since)).days + 1
    return f"{num_days:,} day{'s' if num_days > 1 else ''}", since if since == until else f"{since} to {until}"


def describe_status(record: RunRecord) -> dict[str, str]:
    """Return `{"tone", "text"}`: whether the run finished, and if not, which step did not end."""
    missing = [name for name in STEPS if name not in record.steps.ended()]
    if missing in (["register"], ["gate", "register"]):
        return {"tone": "warn", "text": "Exported, not registered"}
    if missing:
        return {"tone": "bad", "text": f"Not finished: {missing[0]} did not end"}
    step = record.require(RegisterStep)
    registered = f"registered{f' as {step.alias}' if step.alias else ''}, version {step.model_version or UNKNOWN}"
    if record.require(GateStep).is_held:
        return {"tone": "bad", "text": f"Held by the gate; {registered}"}
    return {"tone": "good", "text": f"R{registered[1:]}"}


def describe_gate(gate: GateStep) -> str:
    """Return the gate's verdict in one line."""
    held_by, table = ", ".join(gate.held_by), gate.table
    if gate.verdict == "first":
        return "The first release serves: there was no champion to compare it with."
    if gate.overridden:
        return f"Held by {held_by}; promoted by a person: {gate.overridden}"
    if gate.is_held:
        return f"Held by {held_by}: the champion keeps serving."
    unchecked = sum(row["verdict"] == "not checked" for row in table)
    return f"Passed {len(table) - unchecked} rules; {unchecked} not checked." if table else ""


def explain_held(record: RunRecord, root: str = "") -> list[str]:
    """Return which rules hold a release, by how much, and the two commands that can follow; empty if it is not held.

    root: how the commands name it; by default its path.
    """
    gate, number = record.steps.gate, record.steps.registered.model_version
    if not gate.is_held:
        return []
    root = root or str(Path(record.steps.export.export_dir or "ROOT/export/RELEASE").parents[1])
    held = (row for row in gate.table if row["verdict"] == "held")
    return [
        *map("{rule}: {tonight}, limit {limit}, {reason}".format_map, held),
        f'If it is right all the same: surf2vec promote{f" {number}" if number else ""} --override "WHY" --root {root}',
        f"If logs were missing or wrong, deliver them again, then: surf2vec run --logs 'LOGS' --root {root}",
    ]


def describe_verdict(record: RunRecord) -> dict[str, str]:
    """Return `{"tone", "figure", "text"}`: the quality as a figure and as a sentence."""
    evaluated = record.steps.evaluate
    if not evaluated:
        text = "The run stopped before it was evaluated. Run the same command again to resume it."
        return {"tone": "bad", "figure": "Not finished", "text": text}
    hit, popular = (evaluated.metrics.get(name) for name in ("hit_at_10", "popularity_hit_at_10"))
    if hit is None or popular is None:
        text = "No user had a page held out: evaluate.max_users is 0, or histories are too short."
        return {"tone": "quiet", "figure": "Quality not measured", "text": text}
    num_users = evaluated.num_users or 1
    compared = f"{format_ratio(hit / popular)} popularity" if popular > 0 else "where popularity finds none"
    text = (
        f"For {format_percent(hit)} of {num_users:,} users whose next new page was hidden, it was among the first ten. "
        f"The ten most visited pages alone are right for {format_percent(popular)}."
    )
    tone = "good" if hit > popular else "bad"
    if abs(hit - popular) <= 2 * math.sqrt((hit * (1 - hit) + popular * (1 - popular)) / num_users):
        tone, text = "warn", f"{text} The difference is within the error of measurement."
    return {"tone": tone, "figure": f"hit@10 {format_score(hit)}, {compared}", "text": text}


def list_steps(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return for each step, by name: `made` (None if it did not end), `size` in bytes, `seconds`, `share` of all seconds."""
    ended = record.steps.ended()
    seconds = {name: ended[name].seconds if name in ended else None for name in STEPS}
    total = sum(value or 0 for value in seconds.values()) or 1
    return {
        name: {
            "made": " · ".join(filter(None, list_made(ended[name]))) if name in ended else None,
            "size": getattr(ended.get(name), "bytes", getattr(ended.get(name), "bytes_written", None)),
            "seconds": seconds[name],
            "share": (seconds[name] or 0) / total,
        }
        for name in STEPS
    }


def list_made(step: Step) -> list[str]:
    """Return the results of a step as short texts; some are empty."""
    if isinstance(step, ChooseStep):
        return describe_choice(step)
    if isinstance(step, GateStep):
        return [describe_gate(step)]
    values = {name: getattr(step, name) for name in MADE[step.name]}
    values = {name: ", ".join(map(format_key, one)) if isinstance(one, dict) else one for name, one in values.items()}
    made = [text.format(values[name]) for name, text in MADE[step.name].items() if values[name]]
    return made + (describe_storage(step) if isinstance(step, ExportStep) else [])


def describe_choice(choice: ChooseStep) -> list[str]:
    """Return the weight of the trail and the popularity, where they are from, and what each part finds by itself."""
    if "popularity" not in choice.model_fields_set:
        return ["nothing to choose: a tree ranks, or train.trail_weight and train.discount are set"]
    reason = f"as in release {choice.kept_from}" if choice.kept_from else "as usual"
    if choice.gain is not None:
        reason = f"chosen by the log: {choice.describe_gain()} than with the usual values"
    return [
        f"{choice.describe_values()}, {reason}",
        *(
            f"hit@20 by the {part} alone {format_score(choice.hit_at_20[weight])}"
            for part, weight in (("interest", "0"), ("trail", "1"))
            if weight in choice.hit_at_20
        ),
    ]


def describe_storage(export: ExportStep) -> list[str]:
    """Return what activity says, and what is lost by storing a release smaller: index recall, variance, precision, quality."""
    found = export.metrics
    texts = []
    if export.activity:
        counts = ", ".join(f"{half:,.0f} {name} ({ninth:,.0f})" for name, (half, ninth) in export.activity.items())
        texts.append(f"activity when the space began: half of the users had {counts} or more; in brackets, a ninth")
    if "index_recall_at_10" in found:
        texts.append(f"finds {format_percent(found['index_recall_at_10'])} of the 10 nearest users")
    if "export_explained_variance" in found:
        variance = format_percent(found["export_explained_variance"])
        texts.append(f"reduced to {export.vector_size} dimensions, {variance} of the variance")
    if export.dtype != "float32":
        texts.append(f"stored as {export.dtype}")
    if "export_hit_at_10_loss" in found:
        lost = found["export_hit_at_10_loss"]
        side = "below" if lost >= 0 else "above"
        texts.append(f"hit@10 {format_score(found['export_hit_at_10'])}, {abs(lost):.4f} {side} that in full")
    return texts


def list_settings(values: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return a nested configuration as text, by section. Values outside sections come first, under an empty name."""
    alone = {name: value for name, value in values.items() if not isinstance(value, dict)}
    sections = sorted((name, flatten(section)) for name, section in values.items() if isinstance(section, dict))
    return {
        name: {key: format_value(key, value) for key, value in rows.items()}
        for name, rows in [("", alone), *sections]
        if rows
    }


def list_losses(record: RunRecord) -> list[dict[str, Any]]:
    """Return the stages that left something out, in order: `what` was counted, `before`, `after`, and `because`."""
    ingest, corpus = record.steps.ingest, record.steps.corpus
    stages = {"lines": ingest.lines, "events": ingest.events} | dict(corpus.funnel)
    left_out = sorted((ingest.left_out | ingest.rejected).items(), key=lambda pair: (-pair[1], pair[0]))
    reasons = ", ".join(f"{n:,} {format_key(why)}" for why, n in left_out if n)

    def setting(name: str) -> str:
        value = record.setting("ingest", name)
        return f"ingest.{name}" if value is None else f"{value:,} (ingest.{name})"

    newest = f"more events of a user than {setting('max_user_events')}: the newest stay"
    item_limits = f"fewer events than {setting('min_item_events')}, or fewer users than {setting('min_item_users')}"
    few = f"bots, and fewer events of items kept than {setting('min_user_events')}"
    losses = [
        ("lines", "events", reasons),
        ("events in the window", "events without bots", f"bots: more events on a day than {setting('max_day_events')}"),
        ("events without bots", "events without repeats", "the same page again at once"),
        ("items in the window", "items in the vocabulary", item_limits),
        ("events without repeats", "events of items in the vocabulary", "events of the items left out"),
        ("users in the window", "users kept", few),
        ("events of items in the vocabulary", "events of users kept", "events of the users left out"),
        ("events of users kept", "tokens (the newest events of each user)", newest),
    ]
    return [
        {"what": before.split()[0], "before": stages[before], "after": stages[after], "because": because}
        for before, after, because in losses
        if None not in (stages.get(before), stages.get(after)) and stages[before] != stages[after]
    ]


def list_notes(record: RunRecord) -> list[str]:
    """Return hints about the log as sentences: pages that differ only in their query, and events with an order but no times."""
    notes = [
        f"{hint['page']} has about {hint['num_queries']:,} different queries (keys: {', '.join(hint['keys'])}), and all "
        f"count as one page. Name the keys that distinguish pages in ingest.keep_query."
        for hint in record.steps.ingest.many_queries
    ]
    if record.steps.corpus.has_order is False:
        notes.append(
            "The order of a user's events says nothing about what comes next: their times are all the same, or might as well be "
            "others. So vectors have no trail, and recency is off."
        )
    return notes
