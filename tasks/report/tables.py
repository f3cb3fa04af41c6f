"""The tables of the report, made from the run record: status, verdict, steps, settings, and what was left out between log and
tokens.

A step missing from the record, or a value missing from a step, leaves a gap or a dash, never an error: a failed run needs
its report most.
"""

import math
from datetime import date
from itertools import pairwise
from typing import Any

from surf2vec.tasks.root.credentials import mask_credentials
from surf2vec.tasks.root.records import (
    ChooseStep,
    CorpusStep,
    EvaluateStep,
    ExportStep,
    GateStep,
    IngestStep,
    RefitStep,
    RegisterStep,
    RunRecord,
    Step,
    TrainStep,
    TrialStep,
)
from surf2vec.tasks.root.wording import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_key,
    format_percent,
    format_ratio,
    format_score,
    format_short,
)

STEPS = ("ingest", "corpus", "trial", "train", "choose", "evaluate", "refit", "export", "gate", "register")


def describe_status(record: RunRecord) -> dict[str, str]:
    """Returns `{"tone", "text"}`: whether the run finished, and if not, which step did not end."""
    # Earlier runs lack the steps trial and choose.
    missing = [name for name in STEPS if name not in record.steps.ended() and name not in ("trial", "choose")]
    if missing in (["register"], ["gate", "register"]):
        return {"tone": "warn", "text": "Exported, not registered"}
    if missing:
        return {"tone": "bad", "text": f"Not finished: {missing[0]} did not end"}
    step = record.require(RegisterStep)
    registered = f"registered{f' as {step.alias}' if step.alias else ''}, version {step.model_version or UNKNOWN}"
    if record.require(GateStep).is_held:
        return {"tone": "bad", "text": f"Held by the gate; {registered}"}
    return {"tone": "good", "text": f"R{registered[1:]}"}


def describe_gate(gate: GateStep | None) -> str:
    """Returns the gate's verdict in one line; empty if the gate has not judged."""
    if gate is None:
        return ""
    held_by, table = ", ".join(gate.held_by), gate.table
    if gate.verdict == "first":
        return "The first release serves: there was no champion to compare it with."
    if gate.overridden:
        return f"Held by {held_by}; promoted by a person: {gate.overridden}"
    if gate.is_held:
        return f"Held by {held_by}: the champion keeps serving."
    unchecked = sum(row["verdict"].startswith("not checked") for row in table)
    return f"Passed {len(table) - unchecked} rules; {unchecked} not checked." if table else ""


def describe_verdict(record: RunRecord) -> dict[str, str]:
    """Returns `{"tone", "figure", "text"}`: the quality as a figure and as a sentence."""
    evaluated = record.steps.evaluate
    metrics = evaluated.metrics if evaluated else {}
    hit, popular = metrics.get("hit_at_10"), metrics.get("popularity_hit_at_10")
    if evaluated is None:
        text = "The run stopped before it was evaluated. Run the same command again to resume it."
        return {"tone": "bad", "figure": "Not finished", "text": text}
    if hit is None:
        text = "No user had a page held out: evaluate.max_users is 0, or histories are too short."
        return {"tone": "quiet", "figure": "Quality not measured", "text": text}
    num_users = evaluated.num_users or 1
    asked = f"{format_count(num_users)} users whose next new page was hidden"
    found = f"For {format_percent(hit)} of {asked}, it was among the first ten."
    if popular is None:
        return {"tone": "quiet", "figure": f"hit@10 {format_score(hit)}", "text": found}
    noise = 2 * math.sqrt((hit * (1 - hit) + popular * (1 - popular)) / num_users)
    compared = f"{format_ratio(hit / popular)} popularity" if popular > 0 else "where popularity finds none"
    figure = f"hit@10 {format_score(hit)}, {compared}"
    text = f"{found} The ten most visited pages alone are right for {format_percent(popular)}."
    if abs(hit - popular) <= noise:
        return {"tone": "warn", "figure": figure, "text": f"{text} The difference is within the error of measurement."}
    return {"tone": "good" if hit > popular else "bad", "figure": figure, "text": text}


def describe_window(corpus: CorpusStep | None) -> tuple[str, str]:
    """Returns the days trained on: their number, and the first and last."""
    if not corpus:
        return UNKNOWN, "no corpus"
    since, until = corpus.since, corpus.until
    if not since or not until:
        return "All events", "they have no dates"
    num_days = (date.fromisoformat(until) - date.fromisoformat(since)).days + 1
    return f"{num_days:,} day{'s' if num_days > 1 else ''}", since if since == until else f"{since} to {until}"


def list_steps(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Returns for each step, by name: `made` (None if it did not end), `size` in bytes, `seconds`, `share` of all seconds."""
    ended = record.steps.ended()
    total = sum(step.seconds or 0 for name, step in ended.items() if name in STEPS) or 1
    rows: dict[str, dict[str, Any]] = {}
    for name in STEPS:
        step = ended.get(name)
        rows[name] = {
            "made": " · ".join(filter(None, list_made(step))) if step else None,
            "size": getattr(step, "bytes", getattr(step, "bytes_written", None)),
            "seconds": step.seconds if step else None,
            "share": ((step.seconds if step else None) or 0) / total,
        }
    return rows


def list_made(step: Step) -> list[str]:
    """Returns the results of a step as short texts; some are empty."""
    match step:
        case IngestStep():
            kinds = [("new", step.sources_new), ("replaced", step.sources_replaced), ("known", step.sources_known)]
            sources = ", ".join(f"{format_count(number)} {kind}" for kind, number in kinds if number)
            formats, clocks = (", ".join(map(format_key, names)) for names in (step.formats, step.times))
            return [format_counted(step.events, "event"), f"sources: {sources}" if sources else "", formats, clocks]
        case CorpusStep():
            held_out = f"{format_count(step.num_held_out)} held out"
            return [
                format_counted(step.num_tokens, "token"),
                held_out,
                format_counted(step.partitions, "micro-partition"),
            ]
        case TrainStep():
            return [
                f"generation {step.generation or UNKNOWN}",
                f"{format_short(step.tokens_per_second)} tokens/s" if step.tokens_per_second else "",
                f"{step.kernel or UNKNOWN} kernel",
                format_counted(step.num_commits, "commit"),
            ]
        case TrialStep():
            return describe_trials(step)
        case ChooseStep():
            return describe_choice(step)
        case EvaluateStep():
            ranked = f"{format_counted(step.num_users, 'user')} ranked"
            return [ranked if step.num_users else "turned off, or no user held out"]
        case RefitStep():
            return [f"{format_counted(step.num_users, 'user')} fitted again, on all they did"]
        case ExportStep():
            vectors = f"{format_count(step.num_users)} user and {format_count(step.num_items)} item vectors"
            index = f"{step.index_kind or 'no'} index in {format_duration(step.index_seconds)}"
            return [vectors, index, *describe_storage(step)]
        case GateStep():
            return [describe_gate(step)]
        case RegisterStep():
            return [f"{step.model_name or UNKNOWN} version {step.model_version or UNKNOWN}", step.alias or ""]
    return []


def describe_trials(trial: TrialStep) -> list[str]:
    """Returns the settings of the trail that the log chose, with their gains; or why none was."""
    if not trial.gains:
        return [trial.reason or "no trial stayed finite: the trail's settings stay"]
    gains = [gain for gain in trial.gains if gain["is_chosen"]]
    return [
        f"{format_counted(trial.num_asked, 'user')} asked, of {format_count(trial.num_users)} trained in "
        f"{len(trial.gains) + 1} trials",
        *(
            f"chosen by the log: {gain['name']} {gain['value']:g}, hit@20 {gain['gain']:+.3f} ± {gain['standard_error']:.3f}"
            for gain in gains
        ),
        "" if gains else "no other setting of the trail is better beyond two standard errors",
    ]


def describe_choice(choice: ChooseStep) -> list[str]:
    """Returns the weight of the trail, why it has it, and what each part finds by itself."""
    if choice.trail_weight is None:
        return ["nothing to choose: vectors have one part, or train.trail_weight is set"]
    alone = {name: choice.hit_at_20.get(key) for name, key in (("interest", "0"), ("trail", "1"))}
    reason = f"as in release {choice.kept_from}" if choice.kept_from else "as usual"
    if choice.gain is not None:
        reason = f"chosen by the log: {choice.describe_gain()} than with the usual weight"
    return [
        f"weight of the trail {choice.trail_weight:g}, {reason}",
        *(f"hit@20 by the {name} alone {format_score(hit)}" for name, hit in alone.items() if hit is not None),
    ]


def describe_storage(export: ExportStep) -> list[str]:
    """Returns what a release loses by being stored smaller: index recall, variance, precision and quality."""
    metrics = export.metrics
    recall, kept = metrics.get("index_recall_at_10"), metrics.get("export_explained_variance")
    hit, lost = metrics.get("export_hit_at_10"), metrics.get("export_hit_at_10_loss")
    return [
        f"finds {format_percent(recall)} of the 10 nearest users" if recall is not None else "",
        f"reduced to {export.vector_size} dimensions, {format_percent(kept)} of the variance"
        if kept is not None
        else "",
        f"stored as {export.dtype}" if export.dtype != "float32" else "",
        f"hit@10 {format_score(hit)}, {abs(lost):.4f} {'below' if lost >= 0 else 'above'} that in full"
        if lost is not None
        else "",
    ]


def list_settings(values: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Returns a nested configuration as text, by section. Values outside sections come first, under an empty name."""
    sections = {name: flatten(section) for name, section in values.items() if isinstance(section, dict)}
    alone = {name: value for name, value in values.items() if name not in sections}
    return {
        name: {key: show_value(key, value) for key, value in rows.items()}
        for name, rows in [("", alone), *sorted(sections.items())]
        if rows
    }


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted name: `{"train": {"epochs": 5}}` → `{"train.epochs": 5}`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def show_value(key: str, value: Any) -> str:
    """Returns a setting's value as text: with a unit if the key names one, without credentials."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return mask_credentials(", ".join(str(one) for one in value)) or UNKNOWN
    if isinstance(value, int | float):
        if key.endswith("_bytes"):
            return format_bytes(value)
        return format_count(value) if isinstance(value, int) else f"{value:g}"
    return mask_credentials(str(value))


def list_losses(record: RunRecord) -> list[dict[str, Any]]:
    """Returns the stages that left something out, in order: `what` was counted, `before`, `after`, and `because`."""
    ingest, corpus = record.steps.ingest or IngestStep(), record.steps.corpus or CorpusStep()
    stages = {"lines": ingest.lines, "events": ingest.events} | dict(corpus.funnel)
    reasons = ", ".join(f"{n:,} {why}" for why, n in sorted_reasons(ingest.left_out | ingest.rejected))

    def setting(name: str) -> str:
        value = record.setting("ingest", name)
        return f"ingest.{name}" if value is None else f"{value:,} (ingest.{name})"

    item_limits = f"fewer events than {setting('min_item_events')}, or fewer users than {setting('min_item_users')}"
    losses = [
        ("lines", "lines", "events", reasons),
        ("events", "events in the window", "events without bots",
            f"bots: users with more events on a day than {setting('max_day_events')}"),
        ("events", "events without bots", "events without repeats", "the same page again at once"),
        ("pages", "items in the window", "items in the vocabulary", item_limits),
        ("events", "events without repeats", "events of items in the vocabulary", "events of the pages left out"),
        ("users", "users in the window", "users kept",
            f"bots, and fewer events of pages kept than {setting('min_user_events')}"),
        ("events", "events of items in the vocabulary", "events of users kept", "events of the users left out"),
        ("events", "events of users kept", "tokens (the newest events of each user)",
            f"more events of a user than {setting('max_user_events')}: the newest stay"),
    ]  # fmt: skip
    return [
        {"what": what, "before": stages[before], "after": stages[after], "because": because}
        for what, before, after, because in losses
        if None not in (stages.get(before), stages.get(after)) and stages[before] != stages[after]
    ]


def list_funnel(record: RunRecord) -> list[list[dict[str, Any]]]:
    """Returns three groups of stages, each with its own scale: from lines to tokens, items, and users.

    A stage has `name`, `n`, `share` of the group's largest, `gone` (how many the stage left out), and `lost`, these by reason
    if known.
    """
    ingest, corpus = record.steps.ingest or IngestStep(), record.steps.corpus or CorpusStep()
    groups: dict[str, list[tuple[str, int]]] = {"lines": [], "items": [], "users": []}
    if record.steps.ingest:
        groups["lines"] = [("lines", ingest.lines or 0), ("events", ingest.events or 0)]
    for name, n in corpus.funnel:
        unit = format_key(name).split(" ")[0]
        group = groups[unit if unit in groups else "lines"]
        if not (unit == "events" and group and group[-1] == ("events", n)):  # the window has all ingested events
            group.append((format_key(name), n))
    funnel: list[list[dict[str, Any]]] = []
    for stages in filter(None, groups.values()):
        most = max(n for _, n in stages) or 1
        funnel.append([
            {"name": name, "n": n, "share": n / most, "gone": max(before - n, 0), "gone_share": max(before - n, 0) / most,
             "lost": {}}
            for (_, before), (name, n) in pairwise([stages[0], *stages])
        ])  # fmt: skip
    if len(groups["lines"]) > 1:
        lost = {"bad": sorted_reasons(ingest.rejected), "": sorted_reasons(ingest.left_out)}
        funnel[0][1]["lost"] = {tone: reasons for tone, reasons in lost.items() if reasons}
    return funnel


def sorted_reasons(reasons: dict[str, int]) -> list[tuple[str, int]]:
    """Returns the reasons that occurred, the most frequent first."""
    return sorted(((why, n) for why, n in reasons.items() if n), key=lambda pair: (-pair[1], pair[0]))


def list_notes(record: RunRecord) -> list[str]:
    """Returns hints about the log as sentences: pages that differ only in their query, and events with an order but no times."""
    notes = [
        f"{hint['page']} has about {hint['num_queries']:,} different queries (keys: {', '.join(hint['keys'])}), and all "
        f"count as one page. Name the keys that tell pages apart in ingest.keep_query."
        for hint in (record.steps.ingest or IngestStep()).many_queries
    ]
    if record.steps.corpus and record.steps.corpus.has_order is False:
        notes.append(
            "The order of a user's events says nothing of what comes next: their times are all the same, or might as well be "
            "others. So vectors have no trail, and recency is off."
        )
    return notes
